// Package stats is the one tree of parameters and statistics of a process.
//
// What `lctl get_param` prints, what /metrics exports and what the dashboard draws are
// all read from one [Registry] at the moment of asking, so they never disagree.
//
// Words:
//
//   - path: the name of a parameter as lctl prints it, elements joined by dots, such as
//     "obdfilter.strake-OST0000.read_bytes" (Lustre manual, chapter "Lustre Parameters").
//     An element holds no dot; [Element] makes one from any string.
//   - metric: the name of the same figure in Prometheus' exposition format, with labels
//     that tell apart the paths that share it. The figure is one, the names are two.
//   - counter: a figure that only grows while the process lives. Gauge: one that goes both
//     ways. Func: one measured when it is read. Histogram: a distribution of durations.
//     Text: several lines, such as recovery_status. Param: text that can be set. Rows: several
//     lines whose numbers are exported too, such as a stats file of Lustre.
//   - permanent value: what the MGS keeps for a parameter, set by `lctl set_param -P`; see
//     [Registry.SetPermanent].
//   - node: an entry or a folder of entries, as lctl's patterns find them; see [Registry.List].
//
// Metric names and labels. The metric's name is the label "__name__", as in Prometheus'
// data model; [Metric] makes it. Left out, it follows from the path: the first element and
// those after the second, joined by underscores behind "strake_", with "_total" behind a
// counter and "_seconds" behind a histogram. With no other label given, a path of three
// elements or more carries target=<second element>. So
//
//	r.Counter("obdfilter.strake-OST0000.read_bytes", "Bytes read.")
//
// is strake_obdfilter_read_bytes_total{target="strake-OST0000"}, and with
// stats.Metric("lustre_read_bytes_total") it is
// lustre_read_bytes_total{target="strake-OST0000"}.
//
// Invariant: a path has one kind for as long as it is registered.
// Invariant: no two paths export the same metric with the same labels, and all paths of one
// metric have the same kind, a func counting as a gauge.
//
// Counters, gauges, histograms and tallies of rows do not allocate and take no lock when they are updated.
// The registry's lock is held for registration and for the copying of entries only, never
// while a Func, a Text, a Param or the visitor of Walk runs.
package stats
