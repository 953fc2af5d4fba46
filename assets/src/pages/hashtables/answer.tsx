import type { ComponentChildren } from 'preact'
import { Cell, Verdict } from '../../components/verdict'
import { live } from '../../lib/feed'
import { bytesParts, count, percent } from '../../lib/format'
import { useStore } from '../../lib/store'
import type { HashTable, HashTables } from '../../lib/types'

/** The sum of a figure over the tables that measure it; null when none does. */
function total(tables: HashTable[], figure: (t: HashTable) => number | undefined): number | null {
  const all = tables.map(figure).filter((v) => v !== undefined)
  return all.length === 0 ? null : all.reduce((a, b) => a + b, 0)
}

export function TablesAnswer({ view }: { view: HashTables }) {
  const { host } = useStore(live)
  const { tables } = view
  const cells: ComponentChildren[] = []
  const entries = total(tables, (t) => t.count)
  const memory = total(tables, (t) => t.bytes)
  const longest = tables.reduce<HashTable | null>((a, t) => (t.maxdep !== undefined && t.maxdep > (a?.maxdep ?? -1) ? t : a), null)
  const hits = total(tables, (t) => (t.cache_miss === undefined ? undefined : t.cache_hit))
  const misses = total(tables, (t) => (t.cache_hit === undefined ? undefined : t.cache_miss))
  const purged = total(tables, (t) => t.lru_purged)
  if (tables.length > 0) cells.push(<Cell key="tables" name="Tables" figure={[count(tables.length), '']} />)
  if (entries !== null) cells.push(<Cell key="entries" name="Entries" figure={[count(entries), '']} />)
  if (memory !== null) cells.push(<Cell key="memory" name="Memory" figure={bytesParts(memory)} />)
  if (longest) cells.push(<Cell key="longest" name="Longest chain" figure={[count(longest.maxdep!), '']} note={longest.table.replace('ldlm.namespaces.', '')} wide />)
  if (hits !== null && misses !== null && hits + misses > 0) {
    cells.push(<Cell key="found" name="Searches that found" figure={[percent(hits / (hits + misses)), '']} note={`of ${count(hits + misses)}`} />)
  }
  if (purged !== null) cells.push(<Cell key="purged" name="Put out" figure={[count(purged), '']} />)
  const sub = tables.length > 0 && host?.names.name ? `Hash tables and caches of the process on ${host.names.name}` : ''
  return (
    <section class="answer" aria-labelledby="answer-title">
      <Verdict health={view.health} sub={sub} />
      {cells.length > 0 && <dl class="headline">{cells}</dl>}
    </section>
  )
}
