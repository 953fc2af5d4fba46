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

export interface Health {
  tone: Tone
  title: string
  findings: Finding[]
}

export interface Overview {
  atMs: number
  fsname: string
  health: Health
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
  locks?: Locks
  hashtables?: HashTables
  recovery?: Recovery
}

export interface Times {
  count: number
  minNs: number
  maxNs: number
  p50Ns: number
  p99Ns: number
}

/** What the registry holds below ldlm.namespaces.NAME, under lctl's names; any of it may be missing. */
export interface Namespace {
  namespace: string
  side: 'server' | 'client'
  lock_count?: number
  lock_waiting_count?: number
  lock_unused_count?: number
  lock_called_count?: number
  resource_count?: number
  granted?: number
  cancelled?: number
  converted?: number
  waited?: number
  blocking_asts?: number
  ldlm_bl_callback?: number
  lock_timeouts?: number
  evictions?: number
  contention_events?: number
  deadlocks?: number
  lock_lru_hits?: number
  lock_lru_misses?: number
  lru_max_age?: number
  ast_time?: Times
  wait_time?: Times
  ldlm_enqueue?: Times
  pool?: {
    limit?: number
    granted?: number
    grant_rate?: number
    cancel_rate?: number
    grant_plan?: number
    server_lock_volume?: number
    client_lock_volume?: number
    lock_volume_factor?: number
    state?: number | string
  }
  per_sec?: Record<string, number>
  last_eviction_ms?: number
}

export interface Party {
  client: string
  mode: string
  bits?: string
  extent?: string
  called_back: boolean
}

export interface LockResource {
  namespace: string
  resource: string
  type: string
  fid?: string
  name?: boolean
  paths?: string[]
  object?: string
  stripe?: number
  granted: number
  waiting: number
  converting: number
  conflicts: number
  contended: boolean
  holders: Party[]
  waiters: Party[]
}

export interface Locks {
  atMs: number
  health: Health
  namespaces: Namespace[]
  resources: LockResource[]
}

/** A hash table or cache, its figures under the names of hash_stats and site_stats. */
export interface HashTable {
  table: string
  name: string
  help?: string
  tone: Tone
  cur?: number
  min?: number
  max?: number
  theta?: number
  t_min?: number
  t_max?: number
  rehash?: number
  grows?: number
  shrinks?: number
  count?: number
  busy?: number
  maxdep?: number
  empty?: number
  distribution?: number[]
  chains?: string[]
  created?: number
  cache_hit?: number
  cache_miss?: number
  lru_purged?: number
  bytes?: number
  limit_bytes?: number
  limit_entries?: number
  rule?: string
}

export interface HashTables {
  atMs: number
  health: Health
  tables: HashTable[]
}

/** Where a target is in getting its clients back. Transnos are text: they are above what a number holds here. */
export interface RecoveryTarget {
  name: string
  kind: string
  status: string
  tone: Tone
  clients: {
    known: number
    connected: number
    replaying: number
    locking: number
    completed: number
    evicted: number
    missing: string[]
  }
  queued_requests: number
  held_requests: number
  replayed_requests: number
  refused_requests: number
  replayed_locks: number
  time_remaining_sec?: number
  duration_sec?: number
  ended_ms?: number
  last_transno: string
  last_committed: string
  uncommitted: number
  vbr: boolean
  restored?: string
  cos?: {
    mode: number
    forced_commits: number
    waits: number
    waited_sec: number
    forced_per_sec?: number
  }
}

/** A connection of this process to a target. */
export interface Import {
  name: string
  target: string
  state: string
  tone: Tone
  active: boolean
  since: number
  address?: string
  error?: string
  reconnects: number
  evictions: number
  rpcs_in_flight: number
  replay_requests?: number
}

export interface Recovery {
  atMs: number
  health: Health
  targets: RecoveryTarget[]
  imports: Import[]
}

export interface Stat {
  path: string
  kind: string
  help?: string
  value?: number
  text?: string
  histogram?: { count: number; minNs: number; maxNs: number; p50Ns: number; p99Ns: number }
}
