package metrics

import (
	"fmt"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/strakefs/strake/fs/stats"
)

// The buckets of a stats.Histogram that are exported, of its 64: 1.024 us to 68.7 s. What
// lies below is in the first one, what lies above only in +Inf. All 64 would make each
// histogram cost 67 series.
const (
	firstBucket = 10
	lastBucket  = 36
)

// maxScrapes is how many scrapes may run at once; one more is answered with status 503.
const maxScrapes = 4

// collector is an unchecked prometheus.Collector: what the registry holds changes as targets
// come and go.
type collector struct {
	registry *stats.Registry
}

// NewCollector returns a collector of all counters, gauges, funcs and histograms in the
// registry, and of the figures of its rows and of its hash tables (strake_hash_*, strake_cache_*). Texts and parameters
// have no metric and are left out. A func is exported as a gauge. Histograms are exported in seconds.
func NewCollector(r *stats.Registry) prometheus.Collector { return &collector{registry: r} }

// Describe sends nothing, which makes the collector an unchecked one.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends every figure of the registry, measured now.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	// The visitor returns no error and the empty pattern is valid.
	_ = c.registry.Walk("", func(e stats.Entry) error {
		switch {
		case e.Metric == "":
		case e.Kind == stats.KindRows:
			for _, f := range e.Figures() {
				ch <- figureOf(&e, &f)
			}
		default:
			ch <- metricOf(&e)
		}
		if s, ok := e.Table(); ok {
			sendTable(ch, e.TablePath(), &s)
		}
		return nil
	})
}

func metricOf(e *stats.Entry) prometheus.Metric {
	names, values := make([]string, len(e.Labels)), make([]string, len(e.Labels))
	for i, l := range e.Labels {
		names[i], values[i] = l.Name, l.Value
	}
	desc := prometheus.NewDesc(e.Metric, e.Help, names, nil)
	var m prometheus.Metric
	var err error
	if s, ok := e.Histogram(); ok {
		m, err = prometheus.NewConstHistogram(desc, s.Count, float64(s.SumNs)/1e9, cumulative(&s), values...)
	} else {
		kind := prometheus.GaugeValue
		if e.Kind == stats.KindCounter {
			kind = prometheus.CounterValue
		}
		v, _ := e.Value()
		m, err = prometheus.NewConstMetric(desc, kind, float64(v), values...)
	}
	if err != nil {
		return prometheus.NewInvalidMetric(desc, err)
	}
	return m
}

// figureOf is one number of a text.
func figureOf(e *stats.Entry, f *stats.Figure) prometheus.Metric {
	var names, values []string
	for _, labels := range [][]stats.Label{e.Labels, f.Labels} {
		for _, l := range labels {
			names, values = append(names, l.Name), append(values, l.Value)
		}
	}
	desc := prometheus.NewDesc(e.Metric+"_"+f.Name, e.Help, names, nil)
	kind := prometheus.GaugeValue
	if f.Counter {
		kind = prometheus.CounterValue
	}
	m, err := prometheus.NewConstMetric(desc, kind, f.Value, values...)
	if err != nil {
		return prometheus.NewInvalidMetric(desc, err)
	}
	return m
}

// cumulative returns the counts at and below each exported bucket's end, by that end in
// seconds.
func cumulative(s *stats.HistogramSnapshot) map[float64]uint64 {
	buckets := make(map[float64]uint64, lastBucket-firstBucket+1)
	var below uint64
	for i := 0; i <= lastBucket; i++ {
		below += s.Buckets[i]
		if i >= firstBucket {
			buckets[float64(stats.BucketEndNs(i))/1e9] = below
		}
	}
	return buckets
}

// Handler returns the handler of /metrics: the registry in Prometheus' text format. A
// figure that cannot be exported is logged and left out, the others are served.
func Handler(r *stats.Registry, log *slog.Logger) http.Handler {
	p := prometheus.NewRegistry()
	p.MustRegister(NewCollector(r))
	return promhttp.HandlerFor(p, promhttp.HandlerOpts{
		ErrorLog:            scrapeLog{log},
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: maxScrapes,
	})
}

// scrapeLog is promhttp's logger over slog.
type scrapeLog struct{ log *slog.Logger }

// Println logs one line about a scrape that went wrong.
func (l scrapeLog) Println(v ...any) { l.log.Warn("metrics: scrape", "problem", fmt.Sprint(v...)) }
