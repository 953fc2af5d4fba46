import { useState } from 'preact/hooks'
import type { HashTable } from '../../lib/types'

const columns: [string, (t: HashTable) => number | undefined][] = [
  ['cur', (t) => t.cur],
  ['min', (t) => t.min],
  ['max', (t) => t.max],
  ['theta', (t) => t.theta],
  ['rehash', (t) => t.rehash],
  ['count', (t) => t.count],
  ['busy', (t) => t.busy],
  ['maxdep', (t) => t.maxdep],
  ['empty', (t) => t.empty],
  ['created', (t) => t.created],
  ['cache_hit', (t) => t.cache_hit],
  ['cache_miss', (t) => t.cache_miss],
  ['lru_purged', (t) => t.lru_purged],
  ['bytes', (t) => t.bytes],
  ['limit_bytes', (t) => t.limit_bytes],
  ['limit_entries', (t) => t.limit_entries],
]

/** The raw table: every figure under lctl's name, columns that nobody measures left out. */
export function Figures({ tables }: { tables: HashTable[] }) {
  const [open, setOpen] = useState(false)
  const shown = columns.filter(([, get]) => tables.some((t) => get(t) !== undefined))
  return (
    <details class="panel statistics" id="figures" onToggle={(e) => setOpen(e.currentTarget.open)}>
      <summary class="panel-head">
        <h2>All figures</h2>
        <span class="panel-note">under the names of hash_stats and site_stats</span>
      </summary>
      {open && (
        <div class="scroll">
          <table class="table raw">
            <thead>
              <tr>
                <th scope="col">Table</th>
                {shown.map(([name]) => (
                  <th scope="col" class="right" key={name}>
                    {name}
                  </th>
                ))}
                <th scope="col" class="right">distribution</th>
              </tr>
            </thead>
            <tbody>
              {tables.map((t) => (
                <tr key={t.table}>
                  <th scope="row" class="path">{t.table}</th>
                  {shown.map(([name, get]) => (
                    <td class="right num" key={name}>
                      {get(t)?.toLocaleString('en')}
                    </td>
                  ))}
                  <td class="right num">{t.distribution?.join('/')}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </details>
  )
}
