package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/strakefs/strake/fs/stats"
)

// tableDescs are the metrics of a table that are one number, with the label "table": its path in the registry.
var tableDescs = [...]struct {
	name, help string
	kind       prometheus.ValueType
	get        func(*stats.TableStats) int64
}{
	{"strake_hash_buckets", "Chains of a hash table.", prometheus.GaugeValue, func(s *stats.TableStats) int64 { return s.Buckets }},
	{"strake_hash_entries", "Entries of a hash table.", prometheus.GaugeValue, func(s *stats.TableStats) int64 { return s.Entries }},
	{"strake_hash_busy_entries", "Entries in use, not to be put out.", prometheus.GaugeValue, func(s *stats.TableStats) int64 { return s.Busy }},
	{"strake_hash_longest_chain", "Entries of the longest chain.", prometheus.GaugeValue, func(s *stats.TableStats) int64 { return s.Longest }},
	{"strake_hash_empty_buckets", "Chains without an entry.", prometheus.GaugeValue, func(s *stats.TableStats) int64 { return s.Empty }},
	{"strake_hash_grows_total", "Times that a table got more chains.", prometheus.CounterValue, func(s *stats.TableStats) int64 { return s.Grows }},
	{"strake_hash_shrinks_total", "Times that a table got fewer chains.", prometheus.CounterValue, func(s *stats.TableStats) int64 { return s.Shrinks }},
	{"strake_hash_bytes", "Memory of a table and its entries in bytes.", prometheus.GaugeValue, func(s *stats.TableStats) int64 { return s.Bytes }},
	{"strake_hash_limit_bytes", "Memory that a table may take in bytes.", prometheus.GaugeValue, func(s *stats.TableStats) int64 { return s.LimitBytes }},
	{"strake_hash_limit_entries", "Entries that a table may have.", prometheus.GaugeValue, func(s *stats.TableStats) int64 { return s.LimitEntries }},
	{"strake_cache_hits_total", "Searches in a table that found their entry.", prometheus.CounterValue, func(s *stats.TableStats) int64 { return s.Hits }},
	{"strake_cache_misses_total", "Searches in a table that found none.", prometheus.CounterValue, func(s *stats.TableStats) int64 { return s.Misses }},
	{"strake_cache_created_total", "Entries made in a table.", prometheus.CounterValue, func(s *stats.TableStats) int64 { return s.Created }},
	{"strake_cache_evictions_total", "Entries put out of a table for room or age.", prometheus.CounterValue, func(s *stats.TableStats) int64 { return s.Evictions }},
}

// sendTable sends the figures of a table that were measured.
func sendTable(ch chan<- prometheus.Metric, path string, s *stats.TableStats) {
	labels := []string{"table"}
	for i := range tableDescs {
		d := &tableDescs[i]
		if v := d.get(s); v >= 0 {
			ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(d.name, d.help, labels, nil), d.kind, float64(v), path)
		}
	}
	if theta, ok := s.Theta(); ok {
		desc := prometheus.NewDesc("strake_hash_theta", "Entries per chain of a hash table.", labels, nil)
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, theta, path)
	}
	if !s.HasChains() {
		return
	}
	desc := prometheus.NewDesc("strake_hash_chains", "Chains of a hash table by their length.", []string{"table", "length"}, nil)
	for i, n := range s.Chains {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n), path, stats.ChainClassName(i))
	}
}
