import type { ComponentChildren } from 'preact'
import { Cell, Verdict } from '../../components/verdict'
import { Spark } from '../../components/spark'
import { live } from '../../lib/feed'
import { count, plural } from '../../lib/format'
import { useStore } from '../../lib/store'
import type { Locks, Namespace } from '../../lib/types'

const sparkPoints = 120
const leastPoints = 60

/** A sum over namespaces; null when none has the figure. */
export function sum(all: Namespace[], figure: (n: Namespace) => number | undefined): number | null {
  let total: number | null = null
  for (const n of all) {
    const v = figure(n)
    if (v !== undefined) total = (total ?? 0) + v
  }
  return total
}

export function LocksAnswer({ locks }: { locks: Locks }) {
  const { past, host } = useStore(live)
  const servers = locks.namespaces.filter((n) => n.side === 'server')
  const clients = locks.namespaces.filter((n) => n.side === 'client')
  const parts: string[] = []
  if (servers.length) parts.push(plural(servers.length, 'lock server'))
  if (clients.length) parts.push(plural(clients.length, 'lock cache'))
  if (parts.length && host?.names.name) parts.push(`seen from ${host.names.name}`)

  const cells: ComponentChildren[] = []
  const cell = (name: string, v: number | null, note?: string): void => {
    if (v !== null) cells.push(<Cell key={name} name={name} figure={[count(v), '']} {...(note ? { note, wide: true } : {})} />)
  }
  const rate = (name: string, key: string): void => {
    const column = past?.v[past.keys.indexOf(key)] ?? []
    const v = column[column.length - 1]
    if (v == null) return
    cells.push(
      <Cell key={name} name={name} figure={[count(v), '/s']}>
        <Spark values={column.slice(-sparkPoints)} length={Math.min(Math.max(column.length, leastPoints), sparkPoints)} />
      </Cell>,
    )
  }
  if (servers.length) {
    const resources = sum(servers, (n) => n.resource_count)
    cell('Locks', sum(servers, (n) => n.lock_count), resources === null ? undefined : `on ${count(resources)} ${resources === 1 ? 'resource' : 'resources'}`)
    cell('Waiting', sum(servers, (n) => n.lock_waiting_count))
    rate('Granted', 'lockGrant')
    rate('Given back', 'lockCancel')
    rate('Called back', 'lockCallBack')
    rate('Had to wait', 'lockWait')
  } else if (clients.length) {
    const unused = sum(clients, (n) => n.lock_unused_count)
    cell('Locks held', sum(clients, (n) => n.lock_count), unused === null ? undefined : `${count(unused)} unused`)
    rate('Granted', 'mirrorGrant')
    rate('Given back', 'mirrorCancel')
    rate('Found in the cache', 'mirrorHit')
  }
  return (
    <section class="answer" aria-labelledby="answer-title">
      <Verdict health={locks.health} sub={parts.join(', ')} />
      {cells.length > 0 && <dl class="headline">{cells}</dl>}
    </section>
  )
}
