import { Bar } from '../../components/bar'
import { Glyph } from '../../components/status'
import { bytes, count, percent, plural } from '../../lib/format'
import type { HashTable } from '../../lib/types'
import { Chains } from './chains'

/** One table: what it is, its chains, its figures, its limit. */
export function TableCard({ table: t }: { table: HashTable }) {
  const facts: [string, string][] = []
  if (t.theta !== undefined) facts.push(['Load', t.theta.toFixed(2) + (t.t_max !== undefined ? ` (grows at ${t.t_max})` : '')])
  if (t.maxdep !== undefined) facts.push(['Longest chain', count(t.maxdep)])
  if (t.empty !== undefined && t.cur) facts.push(['Empty chains', percent(t.empty / t.cur)])
  if (t.cache_hit !== undefined && t.cache_miss !== undefined && t.cache_hit + t.cache_miss > 0) {
    facts.push(['Found', `${percent(t.cache_hit / (t.cache_hit + t.cache_miss))} of ${count(t.cache_hit + t.cache_miss)}`])
  }
  if (t.grows !== undefined && t.shrinks !== undefined) facts.push(['Resized', `${count(t.grows)} up, ${count(t.shrinks)} down`])
  else if (t.rehash !== undefined) facts.push(['Resized', plural(t.rehash, 'time')])
  if (t.lru_purged !== undefined) facts.push(['Put out', count(t.lru_purged)])
  if (t.busy !== undefined) facts.push(['In use', count(t.busy)])
  const title = `card-${t.table}`
  return (
    <section class={`card tone-${t.tone}`} aria-labelledby={title}>
      <h2 id={title} class="card-title">
        {t.tone !== 'ok' && <Glyph look={t.tone} />}
        <span class="wrap">{t.table}</span>
      </h2>
      <p class="card-sub">
        <span class="num">
          {t.count !== undefined && <b>{count(t.count)}</b>} {t.count !== undefined && (t.count === 1 ? 'entry' : 'entries')}
          {t.cur !== undefined && ` in ${plural2(t.cur, 'chain')}`}
        </span>
        {t.name !== t.table && <span class="card-name">{t.name}</span>}
      </p>
      {t.distribution && t.chains && <Chains table={t} counts={t.distribution} classes={t.chains} />}
      <dl class="card-facts">
        {facts.map(([name, v]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd class="num">{v}</dd>
          </div>
        ))}
      </dl>
      <Limit table={t} />
    </section>
  )
}

const plural2 = (n: number, one: string): string => `${count(n)} ${n === 1 ? one : one + 's'}`

/** Memory and entries against what bounds them, with the rule that gave the bound. */
function Limit({ table: t }: { table: HashTable }) {
  const share = t.limit_bytes && t.bytes !== undefined ? t.bytes / t.limit_bytes : t.limit_entries && t.count !== undefined ? t.count / t.limit_entries : null
  const words: string[] = []
  if (t.bytes !== undefined) words.push(bytes(t.bytes) + (t.limit_bytes ? ` of ${bytes(t.limit_bytes)}` : ''))
  if (t.limit_entries) words.push(`at most ${count(t.limit_entries)} entries`)
  if (words.length === 0 && !t.rule) return null
  return (
    <div class="card-limit">
      {share !== null && <Bar share={share} warnAt={1.1} badAt={1.5} />}
      {words.length > 0 && <span class="second num">{words.join(', ')}</span>}
      {t.rule && <span class="second wrap">{t.rule}</span>}
    </div>
  )
}
