import { live } from '../../lib/feed'
import { useStore } from '../../lib/store'
import { TablesAnswer } from './answer'
import { Figures } from './figures'
import { TableCard } from './table'

/** How full every hash table of this process is, how long its chains are, and what bounds it. */
export function HashTablesPage() {
  const { hashtables, link } = useStore(live)
  if (!hashtables) {
    return link.state === 'lost' ? null : <p class="empty">Reading the hash tables.</p>
  }
  const { tables } = hashtables
  return (
    <div class={link.state === 'lost' ? 'page page-old' : 'page'}>
      <TablesAnswer view={hashtables} />
      {tables.length > 0 && (
        <>
          <p class="legend">
            Bars count chains by their length. The mark <svg viewBox="0 0 16 8" width="16" height="8" aria-hidden="true"><path class="expected" d="M0 4h16" /></svg> is where each bar ends when the hash spreads the entries evenly at this load.
          </p>
          <div class="cards">
            {tables.map((t) => (
              <TableCard key={t.table} table={t} />
            ))}
          </div>
          <Figures tables={tables} />
        </>
      )}
    </div>
  )
}
