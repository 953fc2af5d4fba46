/** How much of a whole is used. The text beside it says the same; the bar is decoration. */
export function Bar({ share, warnAt = 0.85, badAt = 0.95 }: { share: number; warnAt?: number; badAt?: number }) {
  const level = share >= badAt ? 'bad' : share >= warnAt ? 'warn' : 'ok'
  const width = Math.min(Math.max(share, 0), 1) * 100
  return (
    <span class={`bar bar-${level}`} aria-hidden="true">
      <span class="bar-fill" style={{ width: share > 0 ? `max(2px, ${width.toFixed(2)}%)` : '0' }} />
    </span>
  )
}
