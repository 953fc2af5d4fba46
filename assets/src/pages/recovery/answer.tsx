import type { ComponentChildren } from 'preact'
import { Cell, Verdict } from '../../components/verdict'
import { live } from '../../lib/feed'
import { count, plural } from '../../lib/format'
import { useStore } from '../../lib/store'
import type { Recovery, RecoveryTarget } from '../../lib/types'

const sum = (all: RecoveryTarget[], figure: (t: RecoveryTarget) => number): number => all.reduce((n, t) => n + figure(t), 0)

export function RecoveryAnswer({ view }: { view: Recovery }) {
  const { host } = useStore(live)
  const { targets, imports } = view
  const cells: ComponentChildren[] = []
  const cell = (name: string, figure: [string, string], note?: string): void => {
    cells.push(<Cell key={name} name={name} figure={figure} {...(note ? { note, wide: true } : {})} />)
  }
  const open = targets.filter((t) => t.time_remaining_sec !== undefined)
  if (open.length > 0) {
    const known = sum(open, (t) => t.clients.known)
    cell('Clients back', [count(sum(open, (t) => t.clients.connected)), ''], `of ${count(known)}, ${count(sum(open, (t) => t.clients.completed))} done`)
    cell('Time left', [Math.max(...open.map((t) => t.time_remaining_sec!)).toFixed(0), 's'])
    cell('Queued', [count(sum(open, (t) => t.queued_requests)), ''], `${count(sum(open, (t) => t.replayed_requests))} replayed`)
  }
  if (targets.length > 0) cell('Not on disk yet', [count(sum(targets, (t) => t.uncommitted)), ''], 'transactions')
  const cos = targets.filter((t) => t.cos)
  if (cos.length > 0) {
    const rates = cos.map((t) => t.cos!.forced_per_sec).filter((v) => v !== undefined)
    cell('Commits forced by sharing', rates.length > 0 ? [rates.reduce((a, b) => a + b, 0).toFixed(1), '/s'] : ['0', '/s'], `${count(sum(cos, (t) => t.cos!.forced_commits))} in all`)
  }
  if (imports.length > 0) cell('Connections', [count(imports.filter((i) => i.state === 'FULL' && i.active).length), `of ${count(imports.length)}`])
  const parts: string[] = []
  if (targets.length) parts.push(plural(targets.length, 'target'))
  if (imports.length) parts.push(plural(imports.length, 'connection'))
  if (host?.names.name) parts.push(`of the process on ${host.names.name}`)
  return (
    <section class="answer" aria-labelledby="answer-title">
      <Verdict health={view.health} sub={targets.length + imports.length > 0 ? parts.join(', ') : ''} />
      {cells.length > 0 && <dl class="headline">{cells}</dl>}
    </section>
  )
}
