// The live feed: one EventSource, connected again with a growing pause when it breaks.

import { Store } from './store'
import type { HashTables, Host, Locks, Overview, Past, Recovery, Tick } from './types'

/** What a page hears of beside what all pages do. */
export type Topic = '' | 'locks' | 'hashtables' | 'recovery'

export type Link =
  | { state: 'connecting' }
  | { state: 'live' }
  /** No message for a while, or the connection broke. */
  | { state: 'lost'; sinceMs: number; retryAtMs: number }

export interface Live {
  link: Link
  /** Page's clock at the last message; 0 before the first. */
  heardMs: number
  /** Server's clock minus the page's. */
  skewMs: number
  overview: Overview | null
  host: Host | null
  past: Past | null
  /** As last heard; of a topic that is not listened to they are old. */
  locks: Locks | null
  hashtables: HashTables | null
  recovery: Recovery | null
  /** Grows with every message: tells charts to draw again though arrays are reused. */
  version: number
}

const keepPoints = 600
const silenceMs = 5000
const pauseMs = [1000, 2000, 4000, 8000]

export const live = new Store<Live>({
  link: { state: 'connecting' },
  heardMs: 0,
  skewMs: 0,
  overview: null,
  host: null,
  past: null,
  locks: null,
  hashtables: null,
  recovery: null,
  version: 0,
})

let source: EventSource | null = null
let failures = 0
let retry = 0
let topic: Topic = ''

function update(change: Partial<Live>): void {
  live.set({ ...live.value, ...change, version: live.value.version + 1 })
}

function onPast(e: MessageEvent<string>): void {
  update({ past: JSON.parse(e.data) as Past })
}

function onTick(e: MessageEvent<string>): void {
  const tick = JSON.parse(e.data) as Tick
  const { past } = live.value
  if (tick.point && past) append(past, tick.point.t, tick.point.v)
  failures = 0
  const now = Date.now()
  update({
    link: { state: 'live' },
    heardMs: now,
    skewMs: tick.host.atMs - now,
    overview: tick.overview,
    host: tick.host,
    ...(tick.locks ? { locks: tick.locks } : {}),
    ...(tick.hashtables ? { hashtables: tick.hashtables } : {}),
    ...(tick.recovery ? { recovery: tick.recovery } : {}),
  })
}

function append(past: Past, t: number, v: (number | null)[]): void {
  past.t.push(t)
  past.v.forEach((column, i) => column.push(v[i] ?? null))
  if (past.t.length > keepPoints) {
    past.t.shift()
    for (const column of past.v) column.shift()
  }
}

function lose(): void {
  source?.close()
  source = null
  const pause = pauseMs[Math.min(failures, pauseMs.length - 1)]!
  failures++
  const now = Date.now()
  update({ link: { state: 'lost', sinceMs: live.value.heardMs || now, retryAtMs: now + pause } })
  clearTimeout(retry)
  retry = window.setTimeout(connect, pause)
}

export function connect(): void {
  clearTimeout(retry)
  source?.close()
  source = new EventSource('/api/v1/events' + (topic ? `?about=${topic}` : ''))
  source.addEventListener('past', onPast)
  source.addEventListener('tick', onTick)
  source.onerror = lose
}

/** Says what the page that is shown wants to hear of. */
export function listen(to: Topic): void {
  if (to === topic) return
  topic = to
  connect()
}

/** A connection that is open but silent (a suspended machine, a stopped server) is lost. */
export function watch(): void {
  setInterval(() => {
    const { link, heardMs } = live.value
    if (link.state === 'live' && Date.now() - heardMs > silenceMs) lose()
  }, 1000)
}
