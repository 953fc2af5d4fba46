import { useCallback, useRef, useState } from 'preact/hooks'
import { live } from '../lib/feed'
import { age, clock, count, perSecond } from '../lib/format'
import { useStore } from '../lib/store'
import type { Past } from '../lib/types'
import { Chart, moveCursor } from './chart'
import { Panel } from './panel'

/** The time axis grows with what is known, between these. */
const leastSec = 60
const mostSec = 300

export interface Row {
  title: string
  note?: string
  lines: { key: string; name: string }[]
  say: (v: number) => string
  /** Upper end of the value axis. */
  top: (largest: number) => number
}

/** Rows under one heading. */
export interface Rows {
  title: string
  rows: Row[]
}

/** The next of 1, 2, 5 times a power of ten. */
export function round10(v: number, least: number): number {
  v = Math.max(v, least)
  const power = 10 ** Math.floor(Math.log10(v))
  return ([1, 2, 5, 10].find((m) => m * power >= v) ?? 10) * power
}

/** The next power of two, for bytes. */
export const round2 = (v: number, least: number): number => 2 ** Math.ceil(Math.log2(Math.max(v, least)))

/** Rows of which something was measured, without the lines that were not. */
function measured(rows: Row[], past: Past): Row[] {
  return rows
    .map((r) => ({ ...r, lines: r.lines.filter((l) => past.v[past.keys.indexOf(l.key)]?.some((v) => v !== null)) }))
    .filter((r) => r.lines.length > 0)
}

export interface PlotsProps {
  id: string
  title: string
  json: string
  groups: Rows[]
  /** What is said when nothing was measured. */
  empty: string
}

/** Small multiples on one time axis, with one cursor. */
export function Plots({ id, title, json, groups, empty }: PlotsProps) {
  const { past } = useStore(live)
  const [cursor, setCursor] = useState<number | null>(null)
  const cursorRef = useRef(cursor)
  cursorRef.current = cursor
  const onCursor = useCallback((i: number | null) => {
    if (cursorRef.current !== i) setCursor(i)
  }, [])
  if (!past) return null
  const last = past.t[past.t.length - 1]
  if (last === undefined) {
    return (
      <Panel id={id} title={title} json={json}>
        <p class="empty">The first figures come in a second.</p>
      </Panel>
    )
  }
  const spanSec = Math.min(Math.max((last - past.t[0]!) / 1000, leastSec), mostSec)
  const start = Math.max(0, past.t.findIndex((t) => t >= last - spanSec * 1000))
  const times = past.t.slice(start).map((t) => t / 1000)
  const at = cursor !== null && cursor < times.length ? cursor : times.length - 1
  const onKey = (e: KeyboardEvent): void => {
    if (e.key === 'Escape') return moveCursor(id, null)
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30, Home: -times.length, End: times.length }[e.key]
    if (step === undefined) return
    e.preventDefault()
    moveCursor(id, times[Math.min(Math.max(at + step, 0), times.length - 1)]!)
  }
  const shown = groups.map((g) => ({ ...g, rows: measured(g.rows, past) })).filter((g) => g.rows.length > 0)
  const shared = { past, start, times, at, onCursor, group: id, from: last / 1000 - spanSec, to: last / 1000 }
  return (
    <Panel
      id={id}
      title={title}
      note={cursor === null ? <span class="num">last {age(spanSec * 1000)}, every second</span> : <span class="num">at {clock(times[at]! * 1000)}</span>}
      json={json}
    >
      <div class="plots" tabIndex={0} role="group" aria-label="Figures over time. Left and right arrow move through time, Escape returns to now." onKeyDown={onKey} onBlur={() => moveCursor(id, null)}>
        {shown.map((g, n) => (
          <div key={g.title}>
            <h3 class="plots-title">{g.title}</h3>
            {g.rows.map((r, i) => (
              <PlotRow key={r.title} row={r} {...shared} withTimes={n === shown.length - 1 && i === g.rows.length - 1} />
            ))}
          </div>
        ))}
        {shown.length === 0 && <p class="empty">{empty}</p>}
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
  group: string
  withTimes: boolean
  onCursor: (i: number | null) => void
}

function PlotRow({ row, past, start, times, at, from, to, group, withTimes, onCursor }: PlotRowProps) {
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
