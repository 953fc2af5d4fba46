package stats

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Unit is what a row's samples are measured in, as Lustre's stats files print it.
type Unit string

// Units. Rows of Requests show how many samples there were and nothing else.
const (
	Requests     Unit = "reqs"
	Bytes        Unit = "bytes"
	Pages        Unit = "pages"
	Microseconds Unit = "usecs"
)

// Tally counts samples with their least, greatest, sum and sum of squares. Its zero value is empty and ready. Safe for
// concurrent use; no method allocates or blocks.
type Tally struct {
	count, minPlus1, max, sum, sumSq atomic.Int64
}

// Observe adds one sample, in the row's unit. A negative one counts as 0. Sums wrap past 2^63, as Lustre's do.
func (t *Tally) Observe(n int64) {
	n = min(max(n, 0), math.MaxInt64-1)
	for cur := t.minPlus1.Load(); cur == 0 || n < cur-1; cur = t.minPlus1.Load() {
		if t.minPlus1.CompareAndSwap(cur, n+1) {
			break
		}
	}
	for cur := t.max.Load(); n > cur; cur = t.max.Load() {
		if t.max.CompareAndSwap(cur, n) {
			break
		}
	}
	t.sum.Add(n)
	t.sumSq.Add(n * n)
	t.count.Add(1)
}

// Since adds the time since start in microseconds.
func (t *Tally) Since(start time.Time) { t.Observe(int64(time.Since(start) / time.Microsecond)) }

// Inc adds one sample of which nothing is measured.
func (t *Tally) Inc() { t.count.Add(1) }

// Count returns how many samples there were.
func (t *Tally) Count() int64 { return t.count.Load() }

func (t *Tally) clear() {
	for _, v := range []*atomic.Int64{&t.count, &t.minPlus1, &t.max, &t.sum, &t.sumSq} {
		v.Store(0)
	}
}

// Row is one line of a stats file at one moment.
type Row struct {
	Name                        string
	Unit                        Unit
	Count, Min, Max, Sum, SumSq int64
}

// String is the row in the form of Lustre's stats files: name, "N samples [unit]", and for all units but Requests min,
// max, sum and sum of squares.
func (r *Row) String() string {
	s := fmt.Sprintf("%-25s %d samples [%s]", r.Name, r.Count, r.Unit)
	if r.Unit != Requests {
		s += fmt.Sprintf(" %d %d %d %d", r.Min, r.Max, r.Sum, r.SumSq)
	}
	return s
}

// Rows is a stats file: rows by name. Make it with [Registry.Rows].
type Rows struct {
	mu    sync.Mutex
	rows  []*row    // by name; guarded by mu
	began time.Time // when it was made or cleared; guarded by mu
}

type row struct {
	name  string
	unit  Unit
	tally *Tally
}

// Row returns the tally of a row, made at the first call; keep it, finding it takes a lock. It panics when name could not
// be a path's element or the row has another unit.
func (r *Rows) Row(name string, unit Unit) *Tally {
	if name == "" || Element(name) != name {
		panic(fmt.Sprintf("stats: malformed row %q", name))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	i, found := slices.BinarySearchFunc(r.rows, name, func(have *row, name string) int { return strings.Compare(have.name, name) })
	if !found {
		r.rows = slices.Insert(r.rows, i, &row{name: name, unit: unit, tally: &Tally{}})
	}
	if have := r.rows[i]; have.unit != unit {
		panic(fmt.Sprintf("stats: row %s counts %s, not %s", name, have.unit, unit))
	}
	return r.rows[i].tally
}

// Read returns the rows by name, those without a sample left out.
func (r *Rows) Read() []Row {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Row, 0, len(r.rows))
	for _, x := range r.rows {
		s := Row{Name: x.name, Unit: x.unit, Count: x.tally.count.Load(), Max: x.tally.max.Load(),
			Sum: x.tally.sum.Load(), SumSq: x.tally.sumSq.Load(), Min: max(x.tally.minPlus1.Load()-1, 0)}
		if s.Count > 0 {
			out = append(out, s)
		}
	}
	return out
}

// clear begins anew, as `lctl set_param PATH=clear` asks. A sample that is added meanwhile may be counted in part.
func (r *Rows) clear(string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range r.rows {
		x.tally.clear()
	}
	r.began = time.Now()
	return nil
}

// text is the whole file, without a line feed at its end.
func (r *Rows) text() string {
	r.mu.Lock()
	began := r.began
	r.mu.Unlock()
	return rowsText(began, r.Read(), nil)
}

// rowsText is a stats file in Lustre's form: when it was read, since when it counts, rows, other lines.
func rowsText(began time.Time, rows []Row, lines []string) string {
	now := time.Now()
	out := []string{
		secsNsecs("snapshot_time", now.Unix(), now.Nanosecond()),
		secsNsecs("start_time", began.Unix(), began.Nanosecond()),
	}
	elapsed := now.Sub(began)
	out = append(out, secsNsecs("elapsed_time", int64(elapsed/time.Second), int(elapsed%time.Second)))
	for i := range rows {
		out = append(out, rows[i].String())
	}
	return strings.Join(append(out, lines...), "\n")
}

func secsNsecs(name string, secs int64, nsecs int) string {
	return fmt.Sprintf("%-25s %d.%09d secs.nsecs", name, secs, nsecs)
}

// Figure is one number of a text, for /metrics.
type Figure struct {
	// Name is put behind the metric's name of the text, joined by an underscore; a counter's ends in "_total".
	Name string
	// Labels tell apart the figures of one name; they are added to the text's own.
	Labels []Label
	Value  float64
	// Counter says that the figure only grows.
	Counter bool
}

// figures are the rows as numbers: samples and their sum.
func (r *Rows) figures() []Figure {
	rows := r.Read()
	out := make([]Figure, 0, 2*len(rows))
	for _, x := range rows {
		op := []Label{{"op", x.Name}}
		out = append(out, Figure{Name: "samples_total", Labels: op, Value: float64(x.Count), Counter: true})
		if x.Unit != Requests {
			out = append(out, Figure{Name: "sum_total", Labels: append(op, Label{"unit", string(x.Unit)}), Value: float64(x.Sum), Counter: true})
		}
	}
	return out
}

// Rows returns the stats file at path, made at the first call: what Lustre prints as "name  N samples [usecs] min max sum
// sumsq". Rows without a sample are not shown; setting the path to anything clears it. For /metrics each row is
// <metric>_samples_total{op="name"} and <metric>_sum_total{op="name",unit="usecs"}. It panics as Counter does.
func (r *Registry) Rows(path, help string, labels ...Label) *Rows {
	rows := &Rows{began: time.Now()}
	e := r.register(&Entry{Path: path, Help: help, Kind: KindRows, rows: rows, figures: rows.figures, set: rows.clear}, labels)
	if e.rows == nil {
		panic(fmt.Sprintf("stats: %s is a text with figures, registered again as rows", path))
	}
	return e.rows
}

// TextFigures registers a text of several lines whose numbers /metrics shows too, such as rpc_stats. text and figures
// follow the rules of Func's; a second call replaces them. It panics as Counter does.
func (r *Registry) TextFigures(path, help string, text func() string, figures func() []Figure, labels ...Label) {
	r.register(&Entry{Path: path, Help: help, Kind: KindRows, text: text, figures: figures}, labels)
}

// Figures returns the numbers of a text that has them, nil for all other kinds. It runs in the caller's goroutine.
func (e *Entry) Figures() []Figure {
	if e.figures == nil {
		return nil
	}
	return e.figures()
}
