import { Plots, round10, round2, type Row } from '../../components/plots'
import { live } from '../../lib/feed'
import { bytes, percent, perSecond, plural, rate } from '../../lib/format'
import { useStore } from '../../lib/store'
import type { Host } from '../../lib/types'

const permille = (v: number): string => percent(v / 1000)
const milli = (v: number): string => (v / 1000).toFixed(2)

const perTargetRows: Row[] = [
  { title: 'Data', lines: [{ key: 'read', name: 'read' }, { key: 'write', name: 'written' }], say: rate, top: (v) => round2(v, 64 * 1024) },
  { title: 'Metadata', lines: [{ key: 'ops', name: 'operations' }], say: perSecond, top: (v) => round10(v, 10) },
]

function hostRows(host: Host): Row[] {
  const cpus = host.figures.cpu_count
  const memory = host.figures.memory_total_bytes
  return [
    { title: 'CPU', ...(cpus ? { note: plural(cpus, 'processor') } : {}), lines: [{ key: 'cpu', name: 'busy' }, { key: 'iowait', name: 'waiting for disk' }], say: permille, top: () => 1000 },
    { title: 'Memory', ...(memory ? { note: `of ${bytes(memory)}` } : {}), lines: [{ key: 'memUsed', name: 'used' }], say: bytes, top: (v) => memory ?? v },
    { title: 'Disk', lines: [{ key: 'diskRead', name: 'read' }, { key: 'diskWrite', name: 'written' }], say: rate, top: (v) => round2(v, 64 * 1024) },
    { title: 'Network', lines: [{ key: 'netReceive', name: 'received' }, { key: 'netSend', name: 'sent' }], say: rate, top: (v) => round2(v, 64 * 1024) },
    { title: 'Load', lines: [{ key: 'load', name: 'over one minute' }], say: milli, top: (v) => round10(v, 1000 * Math.max(1, cpus ?? 1)) },
  ]
}

export function Activity() {
  const { host } = useStore(live)
  if (!host) return null
  return (
    <Plots
      id="activity"
      title="Activity"
      json="/api/v1/host"
      empty="No figure was measured yet."
      groups={[
        { title: 'Targets of this process', rows: perTargetRows },
        { title: `Host${host.names.name ? ` ${host.names.name}` : ''}`, rows: hostRows(host) },
      ]}
    />
  )
}
