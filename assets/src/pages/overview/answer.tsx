import type { ComponentChildren } from 'preact'
import { Bar } from '../../components/bar'
import { Glyph } from '../../components/status'
import { live } from '../../lib/feed'
import { bytesParts, count, percent, plural, rateParts } from '../../lib/format'
import { useStore } from '../../lib/store'
import type { Finding, Overview, Past } from '../../lib/types'

/** Is it all right, and if not what is wrong and what to do. */
export function Answer() {
  const { overview, past, host } = useStore(live)
  if (!overview) return null
  const { health } = overview
  return (
    <section class="answer" aria-labelledby="answer-title">
      <div class="answer-head">
        <Glyph look={health.tone} size={26} />
        <div>
          <h1 id="answer-title">{health.title}</h1>
          <p class="answer-sub">{describe(overview, host?.names.name)}</p>
        </div>
      </div>
      {health.findings.length > 0 && (
        <ul class="findings">
          {health.findings.map((f) => (
            <FindingRow key={f.subject + f.title} finding={f} />
          ))}
        </ul>
      )}
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

function FindingRow({ finding: f }: { finding: Finding }) {
  return (
    <li class={`finding tone-${f.tone}`}>
      <Glyph look={f.tone} />
      <div>
        <p>
          <b>{f.subject}</b> {f.title}.
        </p>
        <p class="finding-remedy">{f.remedy}</p>
      </div>
    </li>
  )
}

/** The last value of a series, undefined when it was not measured. */
export function latest(past: Past | null, key: string): number | undefined {
  const column = past?.v[past.keys.indexOf(key)]
  return column?.[column.length - 1] ?? undefined
}

function Headline({ overview: o, past }: { overview: Overview; past: Past | null }) {
  const cells: ComponentChildren[] = []
  if (o.space && o.space.totalBytes > 0) {
    const used = o.space.totalBytes - o.space.freeBytes
    const share = 1 - o.space.availBytes / o.space.totalBytes
    cells.push(
      <Cell name="Space used" wide figure={bytesParts(used)} note={`of ${bytesParts(o.space.totalBytes).join(' ')}, ${bytesParts(o.space.availBytes).join(' ')} available`}>
        <Bar share={share} />
      </Cell>,
    )
  }
  if (o.files && o.files.total > 0) {
    const used = o.files.total - o.files.free
    cells.push(
      <Cell name="Inodes used" figure={[count(used), '']} note={`of ${count(o.files.total)}, ${percent(used / o.files.total)}`}>
        <Bar share={used / o.files.total} />
      </Cell>,
    )
  }
  const read = latest(past, 'read')
  const write = latest(past, 'write')
  const ops = latest(past, 'ops')
  const clients = latest(past, 'clients')
  if (read !== undefined) cells.push(<Cell name="Reading" figure={rateParts(read)} note="from storage targets" />)
  if (write !== undefined) cells.push(<Cell name="Writing" figure={rateParts(write)} note="to storage targets" />)
  if (ops !== undefined) cells.push(<Cell name="Metadata" figure={[count(ops), '/s']} note="operations" />)
  if (clients !== undefined) cells.push(<Cell name="Clients" figure={[count(clients), '']} note="connected" />)
  if (cells.length === 0) return null
  return <dl class="headline">{cells}</dl>
}

function Cell(props: { name: string; figure: [string, string]; note: string; wide?: boolean; children?: ComponentChildren }) {
  return (
    <div class={props.wide ? 'cell cell-wide' : 'cell'}>
      <dt>{props.name}</dt>
      <dd>
        <span class="figure num">{props.figure[0]}</span>
        {props.figure[1] && <span class="unit"> {props.figure[1]}</span>}
        <span class="cell-note num">{props.note}</span>
        {props.children}
      </dd>
    </div>
  )
}
