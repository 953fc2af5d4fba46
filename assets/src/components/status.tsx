import type { Tone } from '../lib/types'

export type Look = Tone | 'stale'

// One shape for each tone, told apart without colour: a disc with a tick, a half disc, an
// empty ring, a triangle, a square with a cross, a broken ring.
function shape(look: Look) {
  switch (look) {
    case 'ok':
      return (
        <>
          <circle class="fill" cx="8" cy="8" r="7" />
          <path class="cut" d="m4.8 8.2 2.3 2.3 4.3-4.7" />
        </>
      )
    case 'busy':
      return (
        <>
          <circle class="line" cx="8" cy="8" r="6.2" />
          <path class="fill" d="M8 1.800a6.2 6.2 0 0 1 0 12.400Z" />
        </>
      )
    case 'idle':
      return <circle class="line" cx="8" cy="8" r="6.2" />
    case 'warn':
      return (
        <>
          <path class="fill" d="M8 .9 15.6 14.400a.7.7 0 0 1-.6 1H1a.7.7 0 0 1-.6-1Z" />
          <path class="cut" d="M8 5.800v4M8 12.400v.1" />
        </>
      )
    case 'bad':
      return (
        <>
          <rect class="fill" x="1" y="1" width="14" height="14" rx="2.5" />
          <path class="cut" d="m5.2 5.2 5.6 5.600m0-5.6-5.6 5.6" />
        </>
      )
    case 'stale':
      return <circle class="line dashed" cx="8" cy="8" r="6.2" />
  }
}

export function Glyph({ look, size = 14 }: { look: Look; size?: number }) {
  return (
    <svg class={`glyph tone-${look}`} viewBox="0 0 16 16" width={size} height={size} aria-hidden="true">
      {shape(look)}
    </svg>
  )
}

/** A state: shape, word, colour. */
export function Status({ look, word }: { look: Look; word: string }) {
  return (
    <span class={`status tone-${look}`}>
      <Glyph look={look} />
      <span class="status-word">{word}</span>
    </span>
  )
}
