import { Bar } from '../../components/bar'
import { Panel } from '../../components/panel'
import { Status } from '../../components/status'
import { age, count, plural } from '../../lib/format'
import type { Recovery, RecoveryTarget } from '../../lib/types'

/** The targets of this process: state, clients, queue, time, transnos, commit on share. */
export function RecoveryTargets({ view }: { view: Recovery }) {
  const { targets } = view
  if (targets.length === 0) return null
  const cos = targets.some((t) => t.cos)
  return (
    <Panel id="recovery-targets" title="Targets" json="/api/v1/recovery">
      <div class="scroll">
        <table class="table recovery">
          <thead>
            <tr>
              <th scope="col">Target</th>
              <th scope="col">State</th>
              <th scope="col">Clients</th>
              <th scope="col" class="right">Replayed</th>
              <th scope="col" class="right">Transactions</th>
              {cos && <th scope="col" class="right">Forced by sharing</th>}
            </tr>
          </thead>
          <tbody>
            {targets.map((t) => (
              <Row key={t.name} target={t} at={view.atMs} cos={cos} />
            ))}
          </tbody>
        </table>
      </div>
    </Panel>
  )
}

const words: Record<string, string> = {
  INACTIVE: 'in service',
  COMPLETE: 'in service',
  RECOVERING: 'recovering',
  WAITING_FOR_CLIENTS: 'waits for clients',
}

/** A transno as people read it: the start of the target that gave it, and its number in that start. */
export function transno(text: string): string {
  const n = BigInt(text)
  if (n === 0n) return '0'
  return `${n >> 44n}·${(n & ((1n << 44n) - 1n)).toLocaleString('en')}`
}

/** What there is to say of the time. */
function timeOf(t: RecoveryTarget, atMs: number): string {
  if (t.time_remaining_sec !== undefined) return `${t.time_remaining_sec.toFixed(0)} s left, for ${age((t.duration_sec ?? 0) * 1000)}`
  if (t.ended_ms !== undefined) return `took ${(t.duration_sec ?? 0).toFixed(1)} s, ${age(atMs - t.ended_ms)} ago`
  return 'no client was left by the start before'
}

function Row({ target: t, at, cos }: { target: RecoveryTarget; at: number; cos: boolean }) {
  const { clients: c } = t
  return (
    <tr>
      <th scope="row">
        <span class="name">{t.name}</span>
        {t.restored && <span class="second">restored from a backup</span>}
      </th>
      <td class="cell-state">
        <Status look={t.tone} word={words[t.status] ?? t.status.toLowerCase()} />
        <span class="second num">{timeOf(t, at)}</span>
      </td>
      <td class="cell-clients">
        {c.known > 0 ? (
          <>
            <Bar share={c.completed / c.known} warnAt={2} badAt={2} />
            <span class="num">
              {count(c.completed)} of {count(c.known)} done
            </span>
            {t.time_remaining_sec !== undefined && (
              <span class="second num">
                {[`${count(c.connected)} here`, c.replaying > 0 && `${count(c.replaying)} replay`, c.locking > 0 && `${count(c.locking)} hand back locks`].filter(Boolean).join(', ')}
              </span>
            )}
            {c.evicted > 0 && <span class="second num">{count(c.evicted)} evicted</span>}
            {c.missing.length > 0 && (
              <ul class="missing">
                {c.missing.slice(0, 8).map((name) => (
                  <li key={name} class="wrap">
                    <Status look="busy" word="missing" /> {name}
                  </li>
                ))}
                {c.missing.length > 8 && <li class="muted num">and {count(c.missing.length - 8)} more</li>}
              </ul>
            )}
          </>
        ) : (
          <span class="muted">none to wait for</span>
        )}
      </td>
      <td class="right num">
        <span class="big">{count(t.replayed_requests)}</span>
        <span class="on-narrow"> replayed</span>
        {t.queued_requests > 0 && <span class="second">{count(t.queued_requests)} queued</span>}
        {t.held_requests > 0 && <span class="second">{count(t.held_requests)} held</span>}
        {t.refused_requests > 0 && <span class="second">{count(t.refused_requests)} refused</span>}
        {t.replayed_locks > 0 && <span class="second">{plural(t.replayed_locks, 'lock')}</span>}
      </td>
      <td class="right num">
        <span class="big">{transno(t.last_transno)}</span>
        <span class="on-narrow"> newest</span>
        <span class="second">on disk {transno(t.last_committed)}</span>
        <span class="second">{t.uncommitted > 0 ? `${count(t.uncommitted)} not on disk` : 'all on disk'}</span>
      </td>
      {cos && (
        <td class={t.cos ? 'right num' : 'right num cell-none'}>
          {t.cos ? (
            <>
              <span class="big">{count(t.cos.forced_commits)}</span>
              <span class="on-narrow"> forced by sharing</span>
              <span class="second">{plural(t.cos.waits, 'wait')}, {t.cos.waited_sec.toFixed(1)} s</span>
              <span class="second">commit_on_sharing={t.cos.mode}</span>
            </>
          ) : (
            <span class="muted">not here</span>
          )}
        </td>
      )}
    </tr>
  )
}
