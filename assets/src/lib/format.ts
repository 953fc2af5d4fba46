// Figures in words. Every function returns text whose length changes as little as possible
// with the value, so that nothing on the page moves when a figure does.

const binary = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB']
const decimal = ['', ' k', ' M', ' G', ' T', ' P']

/** Three significant digits: 1.23, 12.3, 123. */
function three(v: number): string {
  const a = Math.abs(v)
  return v.toFixed(a >= 99.95 || a === 0 ? 0 : a >= 9.995 ? 1 : 2)
}

/** [number, unit] so that a table can align the numbers and mute the units. */
export function bytesParts(v: number): [string, string] {
  let i = 0
  while (Math.abs(v) >= 999.5 && i < binary.length - 1) {
    v /= 1024
    i++
  }
  return [i === 0 ? v.toFixed(0) : three(v), binary[i]!]
}

export const bytes = (v: number): string => bytesParts(v).join(' ')

export function rateParts(v: number): [string, string] {
  const [n, unit] = bytesParts(v)
  return [n, unit + '/s']
}

export const rate = (v: number): string => rateParts(v).join(' ')

/** A whole number, grouped while it is short: 1,204 then 3.21 M. */
export function count(v: number): string {
  if (Math.abs(v) < 100_000) return Math.round(v).toLocaleString('en')
  let i = 0
  while (Math.abs(v) >= 999.5 && i < decimal.length - 1) {
    v /= 1000
    i++
  }
  return three(v) + decimal[i]!
}

/** How full, as df counts it: what is reserved is neither used nor left. */
export function fullness(space: { totalBytes: number; freeBytes: number; availBytes: number }): number {
  const used = space.totalBytes - space.freeBytes
  return used === 0 ? 0 : used / (used + space.availBytes)
}

export function perSecond(v: number): string {
  return (v < 99.95 && v !== Math.round(v) ? v.toFixed(1) : count(v)) + ' /s'
}

export function percent(share: number): string {
  const p = share * 100
  if (p === 0) return '0 %'
  if (p > 0 && p < 0.1) return '< 0.1 %'
  if (p < 100 && p > 99.9) return '> 99.9 %'
  return p.toFixed(p < 10 ? 1 : 0) + ' %'
}

/** "34 s", "12 min", "3 h", "5 days". */
export function age(ms: number): string {
  const s = Math.max(0, Math.round(ms / 1000))
  if (s < 120) return `${s} s`
  if (s < 7200) return `${Math.floor(s / 60)} min`
  if (s < 172_800) return `${Math.floor(s / 3600)} h`
  return `${Math.floor(s / 86_400)} days`
}

export function nanoseconds(ns: number): string {
  if (ns < 1000) return `${ns} ns`
  if (ns < 1e6) return `${three(ns / 1e3)} µs`
  if (ns < 1e9) return `${three(ns / 1e6)} ms`
  return `${three(ns / 1e9)} s`
}

const two = (n: number): string => String(n).padStart(2, '0')

export function clock(ms: number): string {
  const d = new Date(ms)
  return `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`
}

export function plural(n: number, one: string, many = one + 's'): string {
  return `${n} ${n === 1 ? one : many}`
}
