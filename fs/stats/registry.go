package stats

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

var (
	metricNameRE = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)
	labelNameRE  = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
	notMetricRE  = regexp.MustCompile(`[^a-zA-Z0-9_]+`)
)

// Registry is the tree of one process or one node. Make it with [NewRegistry]; all methods
// are safe for concurrent use.
type Registry struct {
	mu       sync.RWMutex
	entries  map[string]*Entry  // by path; guarded by mu
	families map[string]*family // by metric name; guarded by mu
	sorted   []*Entry           // by path; nil when it must be made again; guarded by mu

	permanent permanent // its slices are never changed once they are here; guarded by mu

	began time.Time
}

// family is what the paths of one metric have in common.
type family struct {
	kind   Kind              // as metricKind gives it
	series map[string]string // label names and values, joined -> path
}

// NewRegistry returns an empty registry.
func NewRegistry() *Registry {
	return &Registry{entries: map[string]*Entry{}, families: map[string]*family{}, began: time.Now()}
}

// Counter returns the counter at path, made at the first call. help is one sentence with
// the unit in it; labels are the metric's, see the package's documentation. It panics when
// path is malformed or holds another kind, or when the metric breaks an invariant of the
// package: those are mistakes of the program, not of its input.
func (r *Registry) Counter(path, help string, labels ...Label) *Counter {
	return r.register(&Entry{Path: path, Help: help, Kind: KindCounter, counter: &Counter{}}, labels).counter
}

// Gauge returns the gauge at path, made at the first call; it panics as Counter does.
func (r *Registry) Gauge(path, help string, labels ...Label) *Gauge {
	return r.register(&Entry{Path: path, Help: help, Kind: KindGauge, gauge: &Gauge{}}, labels).gauge
}

// Histogram returns the histogram at path, made at the first call; it panics as Counter
// does. Its metric is exported in seconds.
func (r *Registry) Histogram(path, help string, labels ...Label) *Histogram {
	return r.register(&Entry{Path: path, Help: help, Kind: KindHistogram, histogram: &Histogram{}}, labels).histogram
}

// Func registers a figure that f measures when it is read; f must be quick, must not block
// and may run in several goroutines at once. A second call for the path replaces f. It
// panics as Counter does.
func (r *Registry) Func(path, help string, f func() int64, labels ...Label) {
	r.register(&Entry{Path: path, Help: help, Kind: KindFunc, value: f}, labels)
}

// Text registers a parameter of one or more lines, without a line feed at its end, such as
// recovery_status. f follows the rules of Func's; a second call replaces it.
func (r *Registry) Text(path, help string, f func() string) {
	r.register(&Entry{Path: path, Help: help, Kind: KindText, text: f}, nil)
}

// Param registers a parameter that `lctl set_param` can change. get follows the rules of
// Func's. set gets the text after '=', as it was typed, checks it and returns an error that
// says which values are allowed; nil makes the parameter read-only. A second call replaces
// both. When there is a permanent value for path, set gets it before Param returns.
// Precondition: what get and set touch is ready, and no lock that they take is held.
func (r *Registry) Param(path, help string, get func() string, set func(string) error) {
	r.register(&Entry{Path: path, Help: help, Kind: KindParam, text: get, set: set}, nil)
}

// register enters e, or returns what holds its path already. A parameter gets its permanent value.
func (r *Registry) register(e *Entry, labels []Label) *Entry {
	e = r.enter(e, labels)
	if e.Kind == KindParam && e.set != nil {
		r.settle(e, "", false)
	}
	return e
}

func (r *Registry) enter(e *Entry, labels []Label) *Entry {
	if !validPath(e.Path) {
		panic(fmt.Sprintf("stats: malformed path %q", e.Path))
	}
	e.slashed = strings.ReplaceAll(e.Path, ".", "/")
	e.Metric, e.Labels = metricOf(e, labels)
	r.mu.Lock()
	defer r.mu.Unlock()
	if old := r.entries[e.Path]; old != nil {
		if old.Kind != e.Kind {
			panic(fmt.Sprintf("stats: %s is a %v, registered again as a %v", e.Path, old.Kind, e.Kind))
		}
		if e.value == nil && e.text == nil {
			return old
		}
		r.leaveFamilyLocked(old)
	}
	r.joinFamilyLocked(e)
	r.entries[e.Path] = e
	r.sorted = nil
	return e
}

// metricOf returns the metric's name and its sorted labels.
func metricOf(e *Entry, given []Label) (string, []Label) {
	if e.Kind == KindText || e.Kind == KindParam {
		return "", nil
	}
	name, labels := "", make([]Label, 0, len(given))
	for _, l := range given {
		if l.Name == nameLabel {
			name = l.Value
			continue
		}
		labels = append(labels, Label{l.Name, strings.ToValidUTF8(l.Value, "_")})
	}
	elements := strings.Split(e.Path, ".")
	if len(elements) >= 4 && elements[1] == "namespaces" { // ldlm.namespaces.<ns>.lock_count: the only names two deep
		elements = slices.Delete(elements, 1, 2)
	}
	if len(labels) == 0 && len(elements) >= 3 {
		labels = append(labels, Label{"target", elements[1]})
	}
	if name == "" {
		name = derivedName(e.Kind, elements)
	}
	if !metricNameRE.MatchString(name) {
		panic(fmt.Sprintf("stats: %s: malformed metric name %q", e.Path, name))
	}
	slices.SortFunc(labels, func(a, b Label) int { return strings.Compare(a.Name, b.Name) })
	for i, l := range labels {
		if !labelNameRE.MatchString(l.Name) || strings.HasPrefix(l.Name, "__") || i > 0 && labels[i-1].Name == l.Name {
			panic(fmt.Sprintf("stats: %s: malformed or repeated label %q", e.Path, l.Name))
		}
	}
	return name, labels
}

// derivedName is the metric's name when none was given.
func derivedName(kind Kind, elements []string) string {
	parts := slices.Clone(elements)
	if len(parts) >= 3 {
		parts = slices.Delete(parts, 1, 2)
	}
	name := "strake_" + notMetricRE.ReplaceAllString(strings.Join(parts, "_"), "_")
	suffix := map[Kind]string{KindCounter: "_total", KindHistogram: "_seconds"}[kind]
	return strings.TrimSuffix(name, suffix) + suffix
}

// metricKind returns the kind under which Prometheus sees k: a func is a gauge.
func metricKind(k Kind) Kind {
	if k == KindFunc {
		return KindGauge
	}
	return k
}

// seriesOf joins the labels of an entry. 0xff is in no label: they are valid UTF-8.
func seriesOf(e *Entry) string {
	var b strings.Builder
	for _, l := range e.Labels {
		b.WriteString(l.Name + "\xff" + l.Value + "\xff")
	}
	return b.String()
}

func (r *Registry) joinFamilyLocked(e *Entry) {
	if e.Metric == "" {
		return
	}
	f := r.families[e.Metric]
	if f == nil {
		f = &family{kind: metricKind(e.Kind), series: map[string]string{}}
		r.families[e.Metric] = f
	}
	if f.kind != metricKind(e.Kind) {
		panic(fmt.Sprintf("stats: %s: metric %s is a %v, registered again as a %v", e.Path, e.Metric, f.kind, e.Kind))
	}
	series := seriesOf(e)
	if other, taken := f.series[series]; taken {
		panic(fmt.Sprintf("stats: %s and %s are both metric %s%v", e.Path, other, e.Metric, e.Labels))
	}
	f.series[series] = e.Path
}

func (r *Registry) leaveFamilyLocked(e *Entry) {
	f := r.families[e.Metric]
	if f == nil {
		return
	}
	delete(f.series, seriesOf(e))
	if len(f.series) == 0 {
		delete(r.families, e.Metric)
	}
}

// Unregister removes the path prefix and all below it: "obdfilter.strake-OST0000" takes
// "obdfilter.strake-OST0000.read_bytes" along and leaves "obdfilter.strake-OST00001" alone.
// The empty prefix removes nothing. Counters handed out keep working, unseen.
func (r *Registry) Unregister(prefix string) {
	prefix = strings.TrimSuffix(prefix, ".")
	if prefix == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for path, e := range r.entries {
		if path == prefix || strings.HasPrefix(path, prefix+".") {
			r.leaveFamilyLocked(e)
			delete(r.entries, path)
			r.sorted = nil
		}
	}
}

// Rename moves all paths below a prefix below another one, and with them the value of every label that was the
// prefix's last element to the new one's: a device is measured before it knows which target it is. It panics when a path
// is taken.
func (r *Registry) Rename(prefix, to string) {
	prefix, to = strings.TrimSuffix(prefix, "."), strings.TrimSuffix(to, ".")
	if prefix == "" || prefix == to {
		return
	}
	var params []*Entry
	defer func() {
		for _, e := range params {
			r.settle(e, "", false)
		}
	}()
	was, is := prefix[strings.LastIndexByte(prefix, '.')+1:], to[strings.LastIndexByte(to, '.')+1:]
	r.mu.Lock()
	defer r.mu.Unlock()
	for path, e := range r.entries {
		rest, ok := strings.CutPrefix(path, prefix+".")
		if !ok {
			continue
		}
		moved := *e
		moved.Path = to + "." + rest
		moved.slashed = strings.ReplaceAll(moved.Path, ".", "/")
		moved.Labels = slices.Clone(e.Labels)
		for i := range moved.Labels {
			if moved.Labels[i].Value == was {
				moved.Labels[i].Value = is
			}
		}
		if r.entries[moved.Path] != nil {
			panic(fmt.Sprintf("stats: %s is taken, %s cannot move there", moved.Path, path))
		}
		r.leaveFamilyLocked(e)
		delete(r.entries, path)
		r.joinFamilyLocked(&moved)
		r.entries[moved.Path] = &moved
		if moved.Kind == KindParam && moved.set != nil {
			params = append(params, &moved)
		}
	}
	r.sorted = nil
}

// Walk calls fn for each path that matches, in the order of paths, until fn returns an
// error, which it returns. pattern is lctl's glob: '*', '?', [a-z] and {a,b} inside
// elements, such as "*.*.read_bytes"; a last element "**" matches all below; "" matches all.
// The error wraps [ErrPattern] for a malformed pattern; a pattern that matches nothing is no
// error. fn runs without any lock of the registry, so it may register and unregister; what
// it changes is seen by the next Walk.
func (r *Registry) Walk(pattern string, fn func(Entry) error) error {
	p, err := compile(pattern)
	if err != nil {
		return fmt.Errorf("stats: %w", err)
	}
	for _, e := range r.snapshot() {
		if !p.match(e.slashed) {
			continue
		}
		if err := fn(*e); err != nil {
			return err
		}
	}
	return nil
}

// snapshot returns all entries by path. The slice is never changed once it is made.
func (r *Registry) snapshot() []*Entry {
	r.mu.RLock()
	sorted := r.sorted
	r.mu.RUnlock()
	if sorted != nil {
		return sorted
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sorted != nil {
		return r.sorted
	}
	sorted = make([]*Entry, 0, len(r.entries))
	for _, e := range r.entries {
		sorted = append(sorted, e)
	}
	slices.SortFunc(sorted, func(a, b *Entry) int { return strings.Compare(a.Path, b.Path) })
	r.sorted = sorted
	return sorted
}
