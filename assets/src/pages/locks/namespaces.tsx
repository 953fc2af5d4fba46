import type { ComponentChildren } from 'preact'
import { Bar } from '../../components/bar'
import { Panel } from '../../components/panel'
import { age, count, nanoseconds, percent } from '../../lib/format'
import type { Locks, Namespace, Times } from '../../lib/types'

/** A figure with what it counts; nothing when it was not measured. */
function Figure({ v, say = count, of, bad }: { v: number | undefined; say?: (v: number) => string; of: string; bad?: boolean }) {
  if (v === undefined) return null
  return (
    <span class={bad && v > 0 ? 'fact fact-bad' : 'fact'}>
      <b class="num">{say(v)}</b> {of}
    </span>
  )
}

/** A rate per second: small ones with a digit, so that they do not flicker between 0 and 1. */
const perSec = (v: number): string => (v > 0 && v < 9.95 ? v.toFixed(1) : count(v))

function Took({ times, what }: { times: Times | undefined; what: string }) {
  if (!times || times.count === 0) return null
  return (
    <>
      <span class="fact">
        <b class="num">{nanoseconds(times.p50Ns)}</b> half {what} under
      </span>
      <span class="fact">
        <b class="num">{nanoseconds(times.p99Ns)}</b> 99 % under
      </span>
    </>
  )
}

function Cell({ name, children }: { name: string; children: ComponentChildren }) {
  return (
    <td>
      <span class="on-narrow cell-name">{name}</span>
      {children}
    </td>
  )
}

function Table({ head, children }: { head: string[]; children: ComponentChildren }) {
  return (
    <div class="scroll">
      <table class="table facts">
        <thead>
          <tr>
            {head.map((h) => (
              <th scope="col" key={h}>
                {h}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  )
}

/** The namespaces of targets in this process. */
export function Servers({ locks }: { locks: Locks }) {
  const all = locks.namespaces.filter((n) => n.side === 'server')
  if (all.length === 0) return null
  const head = ['Lock server', 'Locks', 'Per second', 'Called back', 'Waited', 'Trouble', 'Pool']
  return (
    <Panel id="lock-servers" title="Lock servers" note="namespaces of this process's targets" json="/api/v1/stats?pattern=ldlm.namespaces.**">
      <Table head={head}>
        {all.map((n) => (
          <tr key={n.namespace}>
            <th scope="row" class="name">{n.namespace}</th>
            <Cell name={head[1]!}>
              <Figure v={n.lock_count} of="locks" />
              <Figure v={n.resource_count} of="resources" />
              <Figure v={n.lock_waiting_count} of="waiting" />
            </Cell>
            <Cell name={head[2]!}>
              <Figure v={n.per_sec?.granted} say={perSec} of="granted" />
              <Figure v={n.per_sec?.converted} say={perSec} of="converted" />
              <Figure v={n.per_sec?.cancelled} say={perSec} of="given back" />
            </Cell>
            <Cell name={head[3]!}>
              <Figure v={n.blocking_asts} of="in all" />
              <Took times={n.ast_time} what="of ASTs" />
            </Cell>
            <Cell name={head[4]!}>
              <Figure v={n.waited} of="in all" />
              <Took times={n.wait_time} what="of waits" />
            </Cell>
            <Cell name={head[5]!}>
              <Figure v={n.lock_timeouts} of="timeouts" bad />
              <Figure v={n.evictions} of="evictions" bad />
              <Figure v={n.contention_events} of="contended" />
            </Cell>
            <Cell name={head[6]!}>
              <PoolShare n={n} />
            </Cell>
          </tr>
        ))}
      </Table>
    </Panel>
  )
}

/** How much of what the memory is meant for is granted, and how hard clients are pressed. */
function PoolShare({ n }: { n: Namespace }) {
  const p = n.pool
  if (!p) return null
  return (
    <>
      {p.limit !== undefined && p.limit > 0 && p.granted !== undefined && <Bar share={p.granted / p.limit} />}
      <Figure v={p.limit} of="limit" />
      <Figure v={p.grant_plan} of="planned" />
      <Figure v={p.server_lock_volume} of="SLV" />
      {typeof p.state === 'string' && <span class="fact">{p.state}</span>}
    </>
  )
}

/** The mirrors of mounts in this process. */
export function Clients({ locks }: { locks: Locks }) {
  const all = locks.namespaces.filter((n) => n.side === 'client')
  if (all.length === 0) return null
  const head = ['Lock cache', 'Locks', 'Per second', 'Found', 'Called back', 'Kept', 'Pool', 'Trouble']
  return (
    <Panel id="lock-caches" title="Lock caches" note="namespaces of this process's mounts" json="/api/v1/stats?pattern=ldlm.namespaces.**">
      <Table head={head}>
        {all.map((n) => (
          <tr key={n.namespace}>
            <th scope="row" class="name">{n.namespace}</th>
            <Cell name={head[1]!}>
              <Figure v={n.lock_count} of="locks" />
              <Figure v={n.lock_unused_count} of="unused" />
              <Figure v={n.resource_count} of="resources" />
            </Cell>
            <Cell name={head[2]!}>
              <Figure v={n.per_sec?.granted} say={perSec} of="granted" />
              <Figure v={n.per_sec?.converted} say={perSec} of="converted" />
              <Figure v={n.per_sec?.cancelled} say={perSec} of="given back" />
            </Cell>
            <Cell name={head[3]!}>
              <Found n={n} />
            </Cell>
            <Cell name={head[4]!}>
              <Figure v={n.ldlm_bl_callback} of="in all" />
              <Took times={n.ldlm_enqueue} what="of enqueues" />
            </Cell>
            <Cell name={head[5]!}>
              <Figure v={n.lock_unused_count} of="in the LRU" />
              {n.lru_max_age !== undefined && n.lru_max_age > 0 && <span class="fact"><b class="num">{age(n.lru_max_age)}</b> at most</span>}
            </Cell>
            <Cell name={head[6]!}>
              <Figure v={n.pool?.limit} of="limit" />
              <Figure v={n.pool?.server_lock_volume} of="SLV" />
              <Figure v={n.pool?.lock_volume_factor} of="factor" />
            </Cell>
            <Cell name={head[7]!}>
              <Figure v={n.evictions} of="evictions" bad />
            </Cell>
          </tr>
        ))}
      </Table>
    </Panel>
  )
}

/** How often the lock that was needed was there. */
function Found({ n }: { n: Namespace }) {
  const [hits, misses] = [n.lock_lru_hits, n.lock_lru_misses]
  if (hits === undefined || misses === undefined || hits + misses === 0) return null
  return (
    <>
      <span class="fact">
        <b class="num">{percent(hits / (hits + misses))}</b> found
      </span>
      <Figure v={hits} of="hits" />
      <Figure v={misses} of="misses" />
    </>
  )
}
