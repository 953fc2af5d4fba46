import type { ComponentChildren } from 'preact'
import { Bar } from '../../components/bar'
import { Spark } from '../../components/spark'
import { Cell, Verdict } from '../../components/verdict'
import { live } from '../../lib/feed'
import { bytes, bytesParts, count, fullness, plural, rateParts } from '../../lib/format'
import { useStore } from '../../lib/store'
import type { Overview, Past } from '../../lib/types'

/** Is it all right, and if not what is wrong and what to do. */
export function Answer() {
  const { overview, past, host } = useStore(live)
  if (!overview) return null
  const { health } = overview
  return (
    <section class="answer" aria-labelledby="answer-title">
      <Verdict health={health} sub={describe(overview, host?.names.name)} />
      <Headline overview={overview} past={past} />
    </section>
  )
}

function describe(o: Overview, host: string | undefined): string {
  const mdts = o.targets.filter((t) => t.kind === 'MDT').length
  const osts = o.targets.filter((t) => t.kind === 'OST').length
  const parts = o.fsname ? [`File system ${o.fsname}`] : []
  if (mdts) parts.push(plural(mdts, 'metadata target'))
  if (osts) parts.push(plural(osts, 'storage target'))
  if (o.nodes.length) parts.push(plural(o.nodes.length, 'node'))
  if (host) parts.push(`seen from ${host}`)
  return parts.join(', ')
}

/** Points that a spark shows, once there are as many. */
const leastPoints = 60
const mostPoints = 120

function Headline({ overview: o, past }: { overview: Overview; past: Past | null }) {
  const cells: ComponentChildren[] = []
  if (o.space && o.space.totalBytes > 0) {
    const { totalBytes, freeBytes, availBytes } = o.space
    cells.push(
      <Cell name="Space used" wide figure={bytesParts(totalBytes - freeBytes)} note={`of ${bytes(totalBytes)}, ${bytes(availBytes)} left`}>
        <Bar share={fullness(o.space)} />
      </Cell>,
    )
  }
  if (o.files && o.files.total > 0) {
    const used = o.files.total - o.files.free
    cells.push(
      <Cell name="Inodes used" figure={[count(used), '']} note={`of ${count(o.files.total)}`}>
        <Bar share={used / o.files.total} />
      </Cell>,
    )
  }
  const series: [string, string, (v: number) => [string, string]][] = [
    ['read', 'Reading', rateParts],
    ['write', 'Writing', rateParts],
    ['ops', 'Metadata', (v) => [count(v), 'op/s']],
    ['clients', 'Clients', (v) => [count(v), '']],
  ]
  for (const [key, name, parts] of series) {
    const column = past?.v[past.keys.indexOf(key)] ?? []
    const v = column[column.length - 1]
    if (v == null) continue
    cells.push(
      <Cell name={name} figure={parts(v)}>
        <Spark values={column.slice(-mostPoints)} length={Math.min(Math.max(column.length, leastPoints), mostPoints)} />
      </Cell>,
    )
  }
  if (cells.length === 0) return null
  return <dl class="headline">{cells}</dl>
}
