package stats

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// NotMeasured stands in a figure of [TableStats] that the table's owner does not count. It is shown as "-" by lctl, and
// not at all by /metrics and the dashboard: 0 is a measurement.
const NotMeasured = -1

// ChainClasses is how many classes of chain length a distribution has.
const ChainClasses = 8

// ChainClass is the class of a chain of length entries: 0, 1, 2-3, 4-7, 8-15, 16-31, 32-63, 64 and more.
func ChainClass(length int) int {
	class := 0
	for ; length > 0 && class < ChainClasses-1; length >>= 1 {
		class++
	}
	return class
}

// ChainClassName is the range of lengths of a class in words, such as "4-7" or "64+".
func ChainClassName(class int) string {
	switch {
	case class <= 0:
		return "0"
	case class == 1:
		return "1"
	case class >= ChainClasses-1:
		return strconv.Itoa(1<<(ChainClasses-2)) + "+"
	}
	return fmt.Sprintf("%d-%d", 1<<(class-1), 1<<class-1)
}

// TableStats are the figures of one hash table or cache of the process, those of Lustre's hash_stats and site_stats and
// what these lack. A figure that the owner does not set stays [NotMeasured].
type TableStats struct {
	// Name of the table as hash_stats prints it, such as "NID_HASH"; left empty it is the path's last element.
	Name string

	Buckets                int64 // chains there are (cur)
	MinBuckets, MaxBuckets int64 // bounds of Buckets (min, max)
	Entries                int64 // what the table holds (count; total)
	Busy                   int64 // of those, in use and not to be purged (busy, active)
	Longest                int64 // entries of the longest chain (maxdep, max_search)
	Empty                  int64 // buckets without an entry
	Grows, Shrinks         int64 // times that the number of buckets changed; their sum is rehash

	Created   int64 // entries made
	Hits      int64 // searches that found their entry (cache_hit)
	Misses    int64 // searches that found none (cache_miss)
	Evictions int64 // entries put out for room or age (lru_purged)

	Bytes        int64  // memory of the table and its entries
	LimitEntries int64  // entries at most
	LimitBytes   int64  // memory at most
	Rule         string // where the limit comes from, in words: "lu_cache_percent: 20 % of 16 GiB"; may be empty

	// ShrinkTheta and GrowTheta are the loads at which the table halves and doubles (t-min, t-max); 0: it does not.
	ShrinkTheta, GrowTheta float64

	// Chains counts the buckets of each class of chain length, see [ChainClass]; Chains[0] NotMeasured: not measured.
	Chains [ChainClasses]int64
}

// unmeasured has no figure.
func unmeasured() TableStats {
	s := TableStats{}
	for _, f := range s.figures() {
		*f = NotMeasured
	}
	s.Chains[0] = NotMeasured
	return s
}

func (s *TableStats) figures() []*int64 {
	return []*int64{&s.Buckets, &s.MinBuckets, &s.MaxBuckets, &s.Entries, &s.Busy, &s.Longest, &s.Empty, &s.Grows,
		&s.Shrinks, &s.Created, &s.Hits, &s.Misses, &s.Evictions, &s.Bytes, &s.LimitEntries, &s.LimitBytes}
}

// Theta is the load, entries per bucket; false when it was not measured.
func (s *TableStats) Theta() (float64, bool) {
	if s.Buckets <= 0 || s.Entries < 0 {
		return 0, false
	}
	return float64(s.Entries) / float64(s.Buckets), true
}

// Rehash is how often the number of buckets changed; NotMeasured when neither way was counted.
func (s *TableStats) Rehash() int64 {
	if s.Grows < 0 && s.Shrinks < 0 {
		return NotMeasured
	}
	return max(s.Grows, 0) + max(s.Shrinks, 0)
}

// HasChains reports whether the distribution was measured.
func (s *TableStats) HasChains() bool { return s.Chains[0] >= 0 }

// tableAge is how old the figures of a table may be when they are shown. A table that takes long to walk is walked less
// often: the walk may take a fiftieth of the time at most.
const (
	tableAge   = time.Second
	tableShare = 50
)

// table is one registered table with its last reading.
type table struct {
	path string
	read func(*TableStats)

	mu   sync.Mutex
	last TableStats // guarded by mu
	next time.Time  // when last has become too old; guarded by mu
}

func (t *table) stats() TableStats {
	t.mu.Lock()
	last, next := t.last, t.next
	t.mu.Unlock()
	began := time.Now()
	if began.Before(next) {
		return last
	}
	s := unmeasured()
	t.read(&s)
	if s.Name == "" {
		s.Name = t.path[strings.LastIndexByte(t.path, '.')+1:]
	}
	ended := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last, t.next = s, ended.Add(max(tableAge, tableShare*ended.Sub(began)))
	return s
}

// Table registers a hash table or cache. path is the table's own, such as "ldlm.namespaces.strake-MDT0000" or
// "mdt.strake-MDT0000.exports"; below it come the texts hash_stats and site_stats, in Lustre's forms. read gets figures
// that are all NotMeasured and sets those that it knows; it follows the rules of Func's, but for that it may walk the
// table: its figures are kept for a second at least. A second call replaces read. It panics as Counter does.
func (r *Registry) Table(path, help string, read func(*TableStats)) {
	t := &table{path: path, read: read}
	r.register(&Entry{Path: path + ".hash_stats", Help: help, Kind: KindText, table: t, text: func() string {
		s := t.stats()
		return s.HashStats()
	}}, nil)
	r.Text(path+".site_stats", "Busy and total entries, chains in use and in all, longest search, created, hits, misses, "+
		"races, races with a dying entry, purged; - where it is not counted.", func() string {
		s := t.stats()
		return s.SiteStats()
	})
}

// Table returns the figures of the table whose hash_stats this is, and false for all other paths. They may be a second
// old, and older for tables that take long to walk.
func (e *Entry) Table() (TableStats, bool) {
	if e.table == nil {
		return TableStats{}, false
	}
	return e.table.stats(), true
}

// TablePath is the path that a table was registered with; of other entries it is their own.
func (e *Entry) TablePath() string {
	if e.table == nil {
		return e.Path
	}
	return strings.TrimSuffix(e.Path, ".hash_stats")
}

// HashStats is the text of hash_stats: Lustre's columns, then ours, then the limit with its rule.
func (s *TableStats) HashStats() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	theta, chains := "-", "-"
	if v, ok := s.Theta(); ok {
		theta = strconv.FormatFloat(v, 'f', 3, 64)
	}
	if s.HasChains() {
		parts := make([]string, len(s.Chains))
		for i, n := range s.Chains {
			parts[i] = strconv.FormatInt(n, 10)
		}
		chains = strings.Join(parts, "/")
	}
	// Nothing to write to can fail: it is memory.
	_, _ = fmt.Fprintf(w, "name\tcur\tmin\tmax\ttheta\tt-min\tt-max\tflags\trehash\tcount\tmaxdep\tdistribution\t"+
		"empty\tgrows\tshrinks\thits\tmisses\tbytes\n")
	_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t-\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Name,
		dash(s.Buckets), dash(s.MinBuckets), dash(s.MaxBuckets), theta, threshold(s.ShrinkTheta), threshold(s.GrowTheta),
		dash(s.Rehash()), dash(s.Entries), dash(s.Longest), chains, dash(s.Empty), dash(s.Grows), dash(s.Shrinks),
		dash(s.Hits), dash(s.Misses), dash(s.Bytes))
	_ = w.Flush()
	if limit := s.limit(); limit != "" {
		b.WriteString("limit: " + limit + "\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// limit says the limit and its rule.
func (s *TableStats) limit() string {
	var parts []string
	if s.LimitEntries >= 0 {
		parts = append(parts, fmt.Sprintf("%d entries", s.LimitEntries))
	}
	if s.LimitBytes >= 0 {
		parts = append(parts, fmt.Sprintf("%d bytes", s.LimitBytes))
	}
	limit := strings.Join(parts, ", ")
	switch {
	case s.Rule == "":
		return limit
	case limit == "":
		return s.Rule
	}
	return limit + " (" + s.Rule + ")"
}

// SiteStats is the text of site_stats, one line: busy/total populated/buckets longest created cache_hit cache_miss
// cache_race cache_death_race lru_purged. What is not counted is "-"; the two races are races of Lustre's own locking.
func (s *TableStats) SiteStats() string {
	populated := int64(NotMeasured)
	if s.Buckets >= 0 && s.Empty >= 0 {
		populated = s.Buckets - s.Empty
	}
	return fmt.Sprintf("%s/%s %s/%s %s %s %s %s - - %s", dash(s.Busy), dash(s.Entries), dash(populated), dash(s.Buckets),
		dash(s.Longest), dash(s.Created), dash(s.Hits), dash(s.Misses), dash(s.Evictions))
}

// dash is a figure, "-" when it was not measured.
func dash(v int64) string {
	if v < 0 {
		return "-"
	}
	return strconv.FormatInt(v, 10)
}

func threshold(theta float64) string {
	if theta <= 0 {
		return "-"
	}
	return strconv.FormatFloat(theta, 'f', 3, 64)
}
