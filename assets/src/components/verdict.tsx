import type { ComponentChildren } from 'preact'
import type { Finding, Health } from '../lib/types'
import { Glyph } from './status'

/** The answer on top of a page: what is the matter, why, and what to do. */
export function Verdict({ health, sub }: { health: Health; sub: string }) {
  return (
    <>
      <div class="answer-head">
        <Glyph look={health.tone} size={26} />
        <div>
          <h1 id="answer-title">{health.title}</h1>
          {sub && <p class="answer-sub">{sub}</p>}
        </div>
      </div>
      {health.findings.length > 0 && (
        <ul class="findings">
          {health.findings.map((f) => (
            <FindingRow key={f.subject + f.title} finding={f} />
          ))}
        </ul>
      )}
    </>
  )
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

/** A figure of the headline. */
export function Cell(props: { name: string; figure: [string, string]; note?: string; wide?: boolean; children?: ComponentChildren }) {
  return (
    <div class={props.wide ? 'cell cell-wide' : 'cell'}>
      <dt>{props.name}</dt>
      <dd>
        <span class="amount">
          <span class="figure num">{props.figure[0]}</span>
          {props.figure[1] && <span class="unit"> {props.figure[1]}</span>}
        </span>
        {props.note && <span class="cell-note num">{props.note}</span>}
      </dd>
      {props.children && <dd class="cell-foot">{props.children}</dd>}
    </div>
  )
}
