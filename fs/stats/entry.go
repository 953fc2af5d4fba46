package stats

import (
	"errors"
	"fmt"
)

// ErrReadOnly is returned by [Entry.Set] for what has no setter.
var ErrReadOnly = errors.New("parameter is read-only")

// Kind says what a path holds.
type Kind uint8

// The kinds. KindFunc is a figure measured when it is read; whether it only grows is not
// known to the registry. KindRows is several lines whose numbers are exported one by one.
const (
	KindCounter Kind = iota + 1
	KindGauge
	KindFunc
	KindHistogram
	KindText
	KindParam
	KindRows
)

// String returns the kind in one lower-case word.
func (k Kind) String() string {
	switch k {
	case KindCounter:
		return "counter"
	case KindGauge:
		return "gauge"
	case KindFunc:
		return "func"
	case KindHistogram:
		return "histogram"
	case KindText:
		return "text"
	case KindParam:
		return "param"
	case KindRows:
		return "rows"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Label is one name and value of a metric. The name "__name__" carries the metric's own
// name; see [Metric].
type Label struct {
	Name, Value string
}

// nameLabel is the label that carries the metric's name (Prometheus' data model).
const nameLabel = "__name__"

// Metric returns the label that names the metric, as in
// r.Counter(path, help, stats.Metric("lustre_read_bytes_total")).
func Metric(name string) Label { return Label{Name: nameLabel, Value: name} }

// Entry is one registered path. Its figures are read when its methods are called, not when
// Walk found it; an entry that was unregistered meanwhile still answers with its last ones.
type Entry struct {
	Path string
	Help string // one sentence
	Kind Kind
	// Metric is the Prometheus name; empty for texts and parameters, which have none.
	Metric string
	// Labels of the metric, sorted by name, without "__name__". Shared: do not change.
	Labels []Label

	slashed   string // Path with slashes, for path.Match
	counter   *Counter
	gauge     *Gauge
	histogram *Histogram
	value     func() int64
	text      func() string
	set       func(string) error
	rows      *Rows
	figures   func() []Figure
	table     *table // of a hash_stats that Table registered
}

// Value returns the figure of a counter, a gauge or a func, and false for other kinds. A
// func runs in the caller's goroutine.
func (e *Entry) Value() (int64, bool) {
	switch e.Kind {
	case KindCounter:
		return e.counter.Load(), true
	case KindGauge:
		return e.gauge.Load(), true
	case KindFunc:
		return e.value(), true
	}
	return 0, false
}

// Histogram returns the distribution of a histogram, and false for other kinds.
func (e *Entry) Histogram() (HistogramSnapshot, bool) {
	if e.Kind != KindHistogram {
		return HistogramSnapshot{}, false
	}
	return e.histogram.Snapshot(), true
}

// Text returns what `lctl get_param` prints behind the path: the number, the text, or for a
// histogram one line in the form of Lustre's stats files with times in nanoseconds.
func (e *Entry) Text() string {
	switch e.Kind {
	case KindText, KindParam:
		return e.text()
	case KindRows:
		if e.rows != nil {
			return e.rows.text()
		}
		return e.text()
	case KindHistogram:
		s := e.histogram.Snapshot()
		return fmt.Sprintf("%d samples [nsec] %d %d %d p50 %d p99 %d",
			s.Count, s.MinNs, s.MaxNs, s.SumNs, int64(s.Quantile(0.5)), int64(s.Quantile(0.99)))
	}
	v, _ := e.Value()
	return fmt.Sprintf("%d", v)
}

// Writable reports whether Set can succeed.
func (e *Entry) Writable() bool { return e.set != nil }

// Set changes a parameter. It returns an error that wraps [ErrReadOnly] for what cannot be
// set, and the setter's own error, wrapped with the path, when it refuses the value.
func (e *Entry) Set(value string) error {
	if e.set == nil {
		return fmt.Errorf("stats: %s: %w", e.Path, ErrReadOnly)
	}
	if err := e.set(value); err != nil {
		return fmt.Errorf("stats: %s: %w", e.Path, err)
	}
	return nil
}
