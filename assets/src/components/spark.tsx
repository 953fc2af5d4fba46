/** The shape of a series behind its figure; decoration. The newest value is at the right. */
export function Spark({ values, length }: { values: (number | null)[]; length: number }) {
  const top = Math.max(1, ...values.map((v) => v ?? 0))
  const start = length - values.length
  const y = (v: number | null): string => (23 - (22 * (v ?? 0)) / top).toFixed(1)
  const line = values.map((v, i) => `${start + i},${y(v)}`).join(' ')
  return (
    <svg class="spark" viewBox={`0 0 ${length - 1} 24`} preserveAspectRatio="none" aria-hidden="true">
      {values.length > 1 && (
        <>
          <polygon points={`${start},24 ${line} ${length - 1},24`} />
          <polyline points={line} />
        </>
      )}
    </svg>
  )
}
