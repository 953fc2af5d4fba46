import { count } from '../../lib/format'
import type { HashTable } from '../../lib/types'

const width = 320
const height = 104
const plotTop = 16
const plotBottom = 84

/** The first length of each class: 0, 1, 2, 4, 8, … */
const firstOf = (i: number): number => (i === 0 ? 0 : 2 ** (i - 1))

/** The share of chains in each class when entries fall on chains at random with this load (Poisson). */
export function evenly(theta: number, classes: number): number[] {
  const shares = new Array<number>(classes).fill(0)
  let p = Math.exp(-theta)
  for (let length = 0, i = 0; length < firstOf(classes - 1); length++) {
    while (i + 1 < classes && length >= firstOf(i + 1)) i++
    shares[i]! += p
    p *= theta / (length + 1)
  }
  shares[classes - 1] = Math.max(0, 1 - shares.reduce((a, b) => a + b, 0))
  return shares
}

/** The classes from which a chain is a reason to look. */
const level = (i: number): string => (firstOf(i) >= 16 ? 'bad' : firstOf(i) >= 8 ? 'warn' : 'ok')

/** A histogram of chain lengths. Beside it the same is in the table of all figures. */
export function Chains({ table: t, counts, classes }: { table: HashTable; counts: number[]; classes: string[] }) {
  const all = counts.reduce((a, b) => a + b, 0)
  const expected = t.theta !== undefined && all > 0 ? evenly(t.theta, classes.length).map((s) => s * all) : []
  const top = Math.max(1, ...counts, ...expected)
  const slot = width / classes.length
  const y = (v: number): number => plotBottom - ((plotBottom - plotTop) * v) / top
  const words = classes.map((c, i) => (counts[i] ? `${count(counts[i]!)} of length ${c}` : '')).filter(Boolean)
  return (
    <svg class="chains" viewBox={`0 0 ${width} ${height}`} role="img" aria-label={`Chains: ${words.join(', ') || 'none'}`}>
      {classes.map((c, i) => {
        const n = counts[i] ?? 0
        const tip = Math.min(y(n), plotBottom - (n > 0 ? 2 : 0))
        const even = expected[i] ?? 0
        return (
          <g key={c} transform={`translate(${(i * slot).toFixed(2)} 0)`}>
            {n > 0 && <rect class={`chains-bar bar-${level(i)}`} x="4" y={tip.toFixed(2)} width={slot - 8} height={(plotBottom - tip).toFixed(2)} rx="2" />}
            {even >= 0.5 && <path class="expected" d={`M2 ${y(even).toFixed(2)}H${slot - 2}`} />}
            {n > 0 && (
              <text class="chains-count num" x={slot / 2} y={Math.min(tip, even >= 0.5 ? y(even) : tip) - 4}>
                {count(n)}
              </text>
            )}
            <text class="chains-class" x={slot / 2} y={height - 6}>
              {c}
            </text>
          </g>
        )
      })}
      <path class="chains-base" d={`M0 ${plotBottom}H${width}`} />
    </svg>
  )
}
