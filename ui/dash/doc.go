// Package dash serves the dashboard: one page, the JSON views behind it, a live feed and
// /metrics.
//
// Words:
//
//   - view: what the cluster says of itself, a [ClusterView], asked from [Options].Cluster.
//     An overview is a view made ready for the page: sums, staleness, health in words.
//   - point: one value of every series (CPU, network, bytes read, …) at one second. The
//     points of the last minutes are kept in a ring, so that a page that opens has a past.
//   - tick: one message of the live feed (server-sent events), once a second.
//   - topic: what a page asks to hear beside what every tick holds: locks, hashtables, recovery. It is
//     read only while such a page listens, and never for more than a fiftieth of the time.
//   - namespace, resource, holder, waiter: as package ldlm has them. A namespace is shown with
//     what the registry holds below ldlm.namespaces, under the same names.
//   - table: a hash table or cache that its owner has registered with stats.Registry.Table.
//   - stale: not reported for longer than [StaleAfter]. What is stale is shown as it was,
//     with its age, and counts as trouble.
//
// Routes, all GET: / and /assets/*, /api/v1/overview, /api/v1/host, /api/v1/locks,
// /api/v1/hashtables, /api/v1/recovery, /api/v1/stats?pattern=, /api/v1/events?about=, /metrics, /healthz.
// docs/dashboard-api.md has what they answer.
//
// Invariant: every figure comes from the stats.Registry or from the view. A figure not
// measured is null or left out, never 0.
//
// Invariant: no route changes anything.
//
// Security. The listener is on loopback unless [Options].AnyAddress says otherwise; there,
// a request whose Host is not this machine's loopback name is refused, so that a foreign
// site cannot reach the pages by a name it controls. The page may load from and connect to
// its own origin only (Content-Security-Policy).
//
// Lock order: none of the locks of this package is held while another is taken, nor across
// a call of Options.Cluster or a write to a connection.
package dash
