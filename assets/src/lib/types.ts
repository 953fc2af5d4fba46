// The JSON of the server (ui/dash). Bytes and milliseconds are plain numbers; a figure that
// was not measured is missing or null.

export type Tone = 'ok' | 'busy' | 'idle' | 'warn' | 'bad'

export interface Space {
  totalBytes: number
  freeBytes: number
  availBytes: number
}

export interface Inodes {
  total: number
  free: number
}

export interface Finding {
  tone: Tone
  subject: string
  title: string
  remedy: string
}

export interface Target {
  name: string
  kind: string
  index: number
  state: string
  tone: Tone
  reason?: string
  address?: string
  sinceMs?: number
  ageMs: number
  stale: boolean
  space?: Space
  inodes?: Inodes
  readPerSec?: number
  writePerSec?: number
}

export interface Node {
  host: string
  address?: string
  roles: string[]
  version?: string
  sinceMs?: number
  ageMs: number
  stale: boolean
}

export interface Overview {
  atMs: number
  fsname: string
  health: { tone: Tone; title: string; findings: Finding[] }
  space?: Space
  files?: Inodes
  targets: Target[]
  nodes: Node[]
  problem?: string
}

export interface Host {
  atMs: number
  names: Record<string, string>
  figures: Record<string, number>
  process: Record<string, number>
  devices: Record<string, Record<string, Record<string, number>>>
}

/** The points of the last minutes, as columns. */
export interface Past {
  keys: string[]
  intervalMs: number
  t: number[]
  v: (number | null)[][]
}

export interface Tick {
  point?: { t: number; v: (number | null)[] }
  overview: Overview
  host: Host
}

export interface Stat {
  path: string
  kind: string
  help?: string
  value?: number
  text?: string
  histogram?: { count: number; minNs: number; maxNs: number; p50Ns: number; p99Ns: number }
}
