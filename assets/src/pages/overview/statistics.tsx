import { useEffect, useState } from 'preact/hooks'
import { nanoseconds, plural } from '../../lib/format'
import type { Stat } from '../../lib/types'

const everyMs = 2000
const globs = /[*?[{]/

interface Answer {
  entries: Stat[]
  more: boolean
}

/** Reads the tree while the table is open. */
function useStatistics(open: boolean, pattern: string): { answer: Answer | null; problem: string } {
  const [answer, setAnswer] = useState<Answer | null>(null)
  const [problem, setProblem] = useState('')
  useEffect(() => {
    if (!open) return
    const abort = new AbortController()
    let timer = 0
    const read = async (): Promise<void> => {
      try {
        const r = await fetch('/api/v1/stats?pattern=' + encodeURIComponent(pattern), { signal: abort.signal })
        const body = (await r.json()) as Answer & { error?: string }
        if (r.ok) setAnswer(body)
        setProblem(r.ok ? '' : (body.error ?? `status ${r.status}`))
      } catch (e) {
        if (abort.signal.aborted) return
        setProblem('the server does not answer; the table shows what it said last')
      }
      if (!abort.signal.aborted) timer = window.setTimeout(() => void read(), everyMs)
    }
    void read()
    return () => {
      abort.abort()
      clearTimeout(timer)
    }
  }, [open, pattern])
  return { answer, problem }
}

/** The raw table: every parameter and statistic, as `lctl get_param` prints them. */
export function Statistics() {
  const [open, setOpen] = useState(false)
  const [filter, setFilter] = useState('')
  const isGlob = globs.test(filter)
  const { answer, problem } = useStatistics(open, isGlob ? filter.trim() : '')
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean)
  const shown = (answer?.entries ?? []).filter((e) => isGlob || words.every((w) => e.path.toLowerCase().includes(w)))
  return (
    <details class="panel statistics" id="statistics" onToggle={(e) => setOpen(e.currentTarget.open)}>
      <summary class="panel-head">
        <h2>All statistics</h2>
        <span class="panel-note">every parameter and figure, under the names lctl uses</span>
      </summary>
      <div class="filter">
        <label for="filter">Filter</label>
        <input id="filter" type="search" value={filter} placeholder="words, or a pattern such as *.*.read_bytes" spellcheck={false} autocomplete="off" maxLength={200} onInput={(e) => setFilter(e.currentTarget.value)} />
        <span class="muted num" role="status">
          {problem || (answer && plural(shown.length, 'entry', 'entries') + (answer.more ? ', more not shown' : ''))}
        </span>
      </div>
      {answer && shown.length === 0 && !problem && <p class="empty">Nothing matches this filter.</p>}
      {shown.length > 0 && (
        <div class="scroll">
          <table class="table raw">
            <thead>
              <tr>
                <th scope="col">Path</th>
                <th scope="col" class="right">Value</th>
                <th scope="col" class="col-help">Meaning</th>
              </tr>
            </thead>
            <tbody>
              {shown.map((e) => (
                <tr key={e.path}>
                  <th scope="row" class="path">{e.path}</th>
                  <td class="right num">
                    <Value stat={e} />
                  </td>
                  <td class="col-help muted">{e.help}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </details>
  )
}

function Value({ stat }: { stat: Stat }) {
  const h = stat.histogram
  if (h) {
    if (h.count === 0) return <>0 observations</>
    return (
      <>
        {h.count.toLocaleString('en')}; half under {nanoseconds(h.p50Ns)}, 99 % under {nanoseconds(h.p99Ns)}, longest {nanoseconds(h.maxNs)}
      </>
    )
  }
  if (stat.value !== undefined) return <>{stat.value.toLocaleString('en')}</>
  return <span class="text-value">{stat.text}</span>
}
