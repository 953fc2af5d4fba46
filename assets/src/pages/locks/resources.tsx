import { Panel } from '../../components/panel'
import { Status } from '../../components/status'
import { count, plural } from '../../lib/format'
import type { LockResource, Locks, Party } from '../../lib/types'

/** The resources that several want: what, who holds it, who waits. */
export function Resources({ locks }: { locks: Locks }) {
  const { resources } = locks
  if (!locks.namespaces.some((n) => n.side === 'server')) return null
  return (
    <Panel id="resources" title="Most contended" note={resources.length > 0 ? plural(resources.length, 'resource') : undefined} json="/api/v1/locks">
      {resources.length === 0 ? (
        <p class="empty">No lock has a request waiting for it, and none was fought over in the last seconds.</p>
      ) : (
        <div class="scroll">
          <table class="table contended">
            <thead>
              <tr>
                <th scope="col">Resource</th>
                <th scope="col" class="right">Waiting</th>
                <th scope="col" class="col-held">Held by</th>
                <th scope="col" class="col-wanted">Wanted by</th>
              </tr>
            </thead>
            <tbody>
              {resources.map((r) => (
                <ResourceRow key={r.namespace + ' ' + r.resource} resource={r} />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Panel>
  )
}

/** What the resource is about: path, object or FID, the best that is known. */
function subject(r: LockResource): string {
  if (r.paths?.[0]) return r.paths[0]
  if (r.object) return `object ${r.object}`
  return r.fid ?? r.resource
}

const types: Record<string, string> = { ibits: 'inode bits', extent: 'extent', flock: 'flock', plain: 'plain' }

function ResourceRow({ resource: r }: { resource: LockResource }) {
  const more = (r.paths?.length ?? 0) - 1
  const about = [types[r.type] ?? r.type]
  if (r.name) about.push('one name in this folder')
  if (r.object) about.push(r.stripe === undefined ? `object ${r.object}` : `object ${r.object}, stripe ${r.stripe}`)
  if (r.fid) about.push(r.fid)
  return (
    <tr>
      <th scope="row" class="cell-resource">
        <span class="name wrap">{subject(r)}</span>
        {more > 0 && <span class="muted"> and {plural(more, 'more path')}</span>}
        <span class="second num wrap">{about.join(', ')}</span>
        <span class="second">{r.namespace}</span>
      </th>
      <td class="right num cell-waiting">
        <span class="big">{count(r.waiting)}</span>
        <span class="on-narrow"> waiting</span>
        {r.converting > 0 && <span class="second">{count(r.converting)} converting</span>}
        {r.conflicts > 0 && <span class="second">{plural(r.conflicts, 'conflict')}</span>}
        {r.contended && <span class="second">{r.type === 'extent' ? 'lockless now' : 'contended'}</span>}
      </td>
      <td class="cell-parties">
        <Parties name="Held by" parties={r.holders} of={r.granted} />
      </td>
      <td class="cell-parties">
        <Parties name="Wanted by" parties={r.waiters} of={r.waiting} />
      </td>
    </tr>
  )
}

const shownParties = 6

/** Locks that look the same, with how many there are. */
function alike(parties: Party[]): { party: Party; n: number }[] {
  const all = new Map<string, { party: Party; n: number }>()
  for (const party of parties) {
    const key = [party.client, party.mode, party.bits, party.extent, party.called_back].join('\n')
    const have = all.get(key)
    if (have) have.n++
    else all.set(key, { party, n: 1 })
  }
  return [...all.values()]
}

function Parties({ name, parties, of }: { name: string; parties: Party[]; of: number }) {
  if (of === 0 && parties.length === 0) return null
  const groups = alike(parties).slice(0, shownParties)
  const rest = Math.max(of, parties.length) - groups.reduce((n, g) => n + g.n, 0)
  return (
    <>
      <span class="on-narrow cell-name">{name}</span>
      <ul class="parties">
        {groups.map(({ party: p, n }, i) => (
          <li key={i}>
            <span class="mode">{p.mode}</span> <span class="party">{p.client}</span>{' '}
            <span class="muted num">{[p.bits && bitsOf(p.bits), p.extent].filter(Boolean).join(' ')}</span>
            {n > 1 && <span class="num times"> × {n}</span>}
            {p.called_back && (
              <span class="called">
                <Status look="busy" word="called back" />
              </span>
            )}
          </li>
        ))}
        {rest > 0 && <li class="muted num">and {count(rest)} more</li>}
      </ul>
    </>
  )
}

const bitsOf = (bits: string): string => bits.toLowerCase().split('|').join(', ')
