import { useCallback, useRef, useState } from 'preact/hooks'
import { Chart, moveCursor } from '../../components/chart'
import { Panel } from '../../components/panel'
import { live } from '../../lib/feed'
import { age, bytes, clock, count, percent, perSecond, plural, rate } from '../../lib/format'
import { useStore } from '../../lib/store'
import type { Host, Past } from '../../lib/types'

/** The time axis grows with what is known, between these. */
const leastSec = 60
const mostSec = 300
const group = 'overview'

interface Row {
  title: string
  note?: string
  lines: { key: string; name: string }[]
  say: (v: number) => string
  /** Upper end of the value axis. */
  top: (largest: number) => number
}

/** The next of 1, 2, 5 times a power of ten. */
function round10(v: number, least: number): number {
  v = Math.max(v, least)
  const power = 10 ** Math.floor(Math.log10(v))
  return ([1, 2, 5, 10].find((m) => m * power >= v) ?? 10) * power
}

/** The next power of two, for bytes. */
const round2 = (v: number, least: number): number => 2 ** Math.ceil(Math.log2(Math.max(v, least)))

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

/** Rows of which something was measured, without the lines that were not. */
function measured(rows: Row[], past: Past): Row[] {
  return rows
    .map((r) => ({ ...r, lines: r.lines.filter((l) => past.v[past.keys.indexOf(l.key)]?.some((v) => v !== null)) }))
    .filter((r) => r.lines.length > 0)
}

export function Activity() {
  const { past, host } = useStore(live)
  const [cursor, setCursor] = useState<number | null>(null)
  const cursorRef = useRef(cursor)
  cursorRef.current = cursor
  const onCursor = useCallback((i: number | null) => {
    if (cursorRef.current !== i) setCursor(i)
  }, [])
  if (!past || !host) return null
  const last = past.t[past.t.length - 1]
  if (last === undefined) {
    return (
      <Panel id="activity" title="Activity" json="/api/v1/host">
        <p class="empty">The first figures come in a second.</p>
      </Panel>
    )
  }
  const spanSec = Math.min(Math.max((last - past.t[0]!) / 1000, leastSec), mostSec)
  const start = Math.max(0, past.t.findIndex((t) => t >= last - spanSec * 1000))
  const times = past.t.slice(start).map((t) => t / 1000)
  const at = cursor !== null && cursor < times.length ? cursor : times.length - 1
  const onKey = (e: KeyboardEvent): void => {
    if (e.key === 'Escape') return moveCursor(group, null)
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30, Home: -times.length, End: times.length }[e.key]
    if (step === undefined) return
    e.preventDefault()
    moveCursor(group, times[Math.min(Math.max(at + step, 0), times.length - 1)]!)
  }
  const onTargets = measured(perTargetRows, past)
  const onHost = measured(hostRows(host), past)
  const shared = { past, start, times, at, onCursor, from: last / 1000 - spanSec, to: last / 1000 }
  return (
    <Panel
      id="activity"
      title="Activity"
      note={cursor === null ? <span class="num">last {age(spanSec * 1000)}, every second</span> : <span class="num">at {clock(times[at]! * 1000)}</span>}
      json="/api/v1/host"
    >
      <div class="plots" tabIndex={0} role="group" aria-label="Figures over time. Left and right arrow move through time, Escape returns to now." onKeyDown={onKey} onBlur={() => moveCursor(group, null)}>
        {onTargets.length > 0 && <h3 class="plots-title">Targets of this process</h3>}
        {onTargets.map((r) => (
          <PlotRow key={r.title} row={r} {...shared} withTimes={false} />
        ))}
        <h3 class="plots-title">Host{host.names.name ? ` ${host.names.name}` : ''}</h3>
        {onHost.map((r, i) => (
          <PlotRow key={r.title} row={r} {...shared} withTimes={i === onHost.length - 1} />
        ))}
        {onHost.length === 0 && <p class="empty">No figure of the host was measured yet.</p>}
      </div>
    </Panel>
  )
}

interface PlotRowProps {
  row: Row
  past: Past
  start: number
  times: number[]
  at: number
  from: number
  to: number
  withTimes: boolean
  onCursor: (i: number | null) => void
}

function PlotRow({ row, past, start, times, at, from, to, withTimes, onCursor }: PlotRowProps) {
  const columns = row.lines.map((l) => past.v[past.keys.indexOf(l.key)]!.slice(start))
  return (
    <div class="plot-row">
      <div class="plot-words">
        <div class="plot-title">
          {row.title}
          {row.note && <span class="plot-note num">{row.note}</span>}
        </div>
        {row.lines.map((l, i) => {
          const v = columns[i]![at]
          return (
            <div class="plot-value" key={l.key}>
              <span class={`swatch swatch-${i}`} aria-hidden="true" />
              <span class="plot-name">{l.name}</span>
              <span class="num">{v == null ? 'not measured' : row.say(v)}</span>
            </div>
          )
        })}
      </div>
      <Chart times={times} lines={columns} from={from} to={to} top={row.top} label={row.say === perSecond ? (v) => count(v) + ' /s' : row.say} group={group} withTimes={withTimes} onCursor={onCursor} />
    </div>
  )
}
