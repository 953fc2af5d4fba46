package dash

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/strakefs/strake/fs/stats"
)

// What of a table is a finding. The load is off when it is far past the one at which the table should have grown.
const (
	loadTimes   = 2
	deepChain   = 16
	overPercent = 110
)

// tablesView is the JSON of /api/v1/hashtables.
type tablesView struct {
	AtMs   int64       `json:"atMs"`
	Health health      `json:"health"`
	Tables []tableView `json:"tables"`
}

// tableView is one table, its figures under the names of hash_stats and site_stats. What is not measured is left out.
type tableView struct {
	Table string `json:"table"` // its path in the registry
	Name  string `json:"name"`
	Help  string `json:"help,omitempty"`
	Tone  string `json:"tone"`

	Cur     *int64   `json:"cur,omitempty"`
	Min     *int64   `json:"min,omitempty"`
	Max     *int64   `json:"max,omitempty"`
	Theta   *float64 `json:"theta,omitempty"`
	TMin    *float64 `json:"t_min,omitempty"`
	TMax    *float64 `json:"t_max,omitempty"`
	Rehash  *int64   `json:"rehash,omitempty"`
	Grows   *int64   `json:"grows,omitempty"`
	Shrinks *int64   `json:"shrinks,omitempty"`
	Count   *int64   `json:"count,omitempty"`
	Busy    *int64   `json:"busy,omitempty"`
	Maxdep  *int64   `json:"maxdep,omitempty"`
	Empty   *int64   `json:"empty,omitempty"`
	// Distribution counts buckets by the length of their chain, classes as in Chains.
	Distribution []int64  `json:"distribution,omitempty"`
	Chains       []string `json:"chains,omitempty"`

	Created   *int64 `json:"created,omitempty"`
	CacheHit  *int64 `json:"cache_hit,omitempty"`
	CacheMiss *int64 `json:"cache_miss,omitempty"`
	LRUPurged *int64 `json:"lru_purged,omitempty"`

	Bytes        *int64 `json:"bytes,omitempty"`
	LimitBytes   *int64 `json:"limit_bytes,omitempty"`
	LimitEntries *int64 `json:"limit_entries,omitempty"`
	Rule         string `json:"rule,omitempty"`
}

// readTables makes the view of /api/v1/hashtables: every table of the process, the largest first.
func readTables(r *stats.Registry, now time.Time) tablesView {
	v := tablesView{AtMs: now.UnixMilli(), Tables: []tableView{}}
	h := health{Tone: toneOK, Findings: []finding{}}
	// The visitor returns no error and the empty pattern is valid.
	_ = r.Walk("", func(e stats.Entry) error {
		if s, ok := e.Table(); ok {
			t := tableOf(&s)
			t.Table, t.Help = e.TablePath(), e.Help
			if f, off := judgeTable(&t, &s); off {
				t.Tone = f.Tone
				h.Findings = append(h.Findings, f)
			}
			v.Tables = append(v.Tables, t)
		}
		return nil
	})
	slices.SortStableFunc(v.Tables, func(a, b tableView) int {
		return cmp.Or(cmp.Compare(figure(b.Bytes), figure(a.Bytes)), cmp.Compare(a.Table, b.Table))
	})
	switch n := len(v.Tables); {
	case n == 0:
		h.Tone, h.Title = toneIdle, "This process has no hash table to show."
	case len(h.Findings) > 0:
		h.Tone, h.Title = toneWarn, count(len(h.Findings), "table needs", "tables need")+" a look."
	case n == 1:
		h.Title = "The only table is in good shape."
	default:
		h.Title = fmt.Sprintf("All %d tables are in good shape.", n)
	}
	v.Health = h
	return v
}

func tableOf(s *stats.TableStats) tableView {
	t := tableView{Name: s.Name, Tone: toneOK, Rule: s.Rule,
		Cur: measured(s.Buckets), Min: measured(s.MinBuckets), Max: measured(s.MaxBuckets), Rehash: measured(s.Rehash()),
		Grows: measured(s.Grows), Shrinks: measured(s.Shrinks), Count: measured(s.Entries), Busy: measured(s.Busy),
		Maxdep: measured(s.Longest), Empty: measured(s.Empty), Created: measured(s.Created), CacheHit: measured(s.Hits),
		CacheMiss: measured(s.Misses), LRUPurged: measured(s.Evictions), Bytes: measured(s.Bytes),
		LimitBytes: measured(s.LimitBytes), LimitEntries: measured(s.LimitEntries)}
	if theta, ok := s.Theta(); ok {
		theta = math.Round(theta*1000) / 1000
		t.Theta = &theta
	}
	if s.GrowTheta > 0 {
		t.TMin, t.TMax = &s.ShrinkTheta, &s.GrowTheta
	}
	if s.HasChains() {
		t.Distribution = slices.Clone(s.Chains[:])
		for i := range s.Chains {
			t.Chains = append(t.Chains, stats.ChainClassName(i))
		}
	}
	return t
}

// measured is nil for a figure that was not.
func measured(v int64) *int64 {
	if v < 0 {
		return nil
	}
	return &v
}

func figure(v *int64) int64 {
	if v == nil {
		return -1
	}
	return *v
}

// judgeTable says what is wrong with a table; false when nothing is.
func judgeTable(t *tableView, s *stats.TableStats) (finding, bool) {
	theta, known := s.Theta()
	switch {
	case known && s.GrowTheta > 0 && theta > loadTimes*s.GrowTheta && (s.MaxBuckets < 0 || s.Buckets < s.MaxBuckets):
		return finding{toneWarn, t.Table, fmt.Sprintf("has %.2f entries per bucket and should have grown at %.2f", theta, s.GrowTheta),
			"Searches walk long chains. Report it: a table that grows by rule does not get there."}, true
	case s.Longest >= deepChain:
		return finding{toneWarn, t.Table, fmt.Sprintf("has a chain of %d entries", s.Longest),
			"Searches in that chain are slow. When the load is low the names are chosen to meet in one bucket; look who makes them."}, true
	case s.LimitBytes > 0 && s.Bytes > s.LimitBytes/100*overPercent:
		return finding{toneWarn, t.Table, fmt.Sprintf("holds %d bytes, its limit is %d", s.Bytes, s.LimitBytes),
			"Its entries are in use and cannot be put out. Close files, or raise the limit: " + t.Rule}, true
	case s.LimitEntries >= 100 && s.Entries-max(s.Busy, 0) > s.LimitEntries/100*overPercent:
		return finding{toneWarn, t.Table, fmt.Sprintf("holds %d entries that nobody uses, its limit is %d", s.Entries-max(s.Busy, 0), s.LimitEntries),
			"They should have been put out. Report it, with the rule of the limit: " + t.Rule}, true
	}
	return finding{}, false
}
