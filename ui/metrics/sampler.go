package metrics

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/strakefs/strake/fs/stats"
)

// maxDevices bounds the disks and the network interfaces that are shown each: a machine
// with thousands of container interfaces must not fill the registry.
const maxDevices = 64

// SamplerOptions configure [StartSampler].
type SamplerOptions struct {
	Registry *stats.Registry
	Log      *slog.Logger
	// DataDirs are the data folders whose file systems are measured. A folder on a file
	// system that this process itself serves must not be among them: it would wait for
	// itself.
	DataDirs []string
	// Interval between two samples; 0 means one second.
	Interval time.Duration
}

// Sampler measures the host in one goroutine. Make it with [StartSampler].
type Sampler struct {
	opts   SamplerOptions
	cancel context.CancelFunc
	done   chan struct{}

	mu sync.Mutex // held for one sample; guards all below
	// gauges and counters by path; missing until first measured.
	gauges   map[string]*stats.Gauge
	counters map[string]*stats.Counter
	seen     map[string]bool   // paths measured in the running sample
	failing  map[string]string // source -> its last error, so that one is logged once
	cpu      cpuTimes          // the previous sample
}

// StartSampler measures once before it returns, then again at every interval until Close.
// It needs no privilege. What cannot be measured on this host is left out and logged once.
func StartSampler(opts SamplerOptions) (*Sampler, error) {
	if opts.Registry == nil || opts.Log == nil {
		return nil, errors.New("metrics: sampler needs a registry and a logger")
	}
	if opts.Interval == 0 {
		opts.Interval = time.Second
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Sampler{
		opts: opts, cancel: cancel, done: make(chan struct{}),
		gauges: map[string]*stats.Gauge{}, counters: map[string]*stats.Counter{}, failing: map[string]string{},
	}
	registerNames(ctx, opts.Registry)
	s.Sample(ctx)
	go s.run(ctx)
	return s, nil
}

// Close stops the sampler, waits for its goroutine and takes the host's figures out of the
// registry. It may be called more than once.
func (s *Sampler) Close() {
	s.cancel()
	<-s.done
	s.opts.Registry.Unregister("host")
}

func (s *Sampler) run(ctx context.Context) {
	defer close(s.done)
	tick := time.NewTicker(s.opts.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.Sample(ctx)
		}
	}
}

// Sample measures everything now. It reads /proc and asks the data folders' file systems,
// so it blocks where they do.
func (s *Sampler) Sample(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = map[string]bool{}
	for _, source := range []struct {
		name    string
		measure func(context.Context) error
	}{
		{"cpu", s.sampleCPU}, {"memory", s.sampleMemory}, {"load", s.sampleLoad}, {"disk", s.sampleDisks},
		{"data folders", s.sampleDataDirs}, {"network", s.sampleNetwork}, {"uptime", s.sampleUptime},
	} {
		s.noteLocked(source.name, source.measure(ctx))
	}
	if ctx.Err() == nil {
		s.dropUnseenLocked()
	}
}

// noteLocked logs a source's error when it changes.
func (s *Sampler) noteLocked(source string, err error) {
	if err == nil || errors.Is(err, context.Canceled) {
		delete(s.failing, source)
		return
	}
	if text := err.Error(); s.failing[source] != text {
		s.failing[source] = text
		s.opts.Log.Warn("host figures not measured", "source", source, "err", err)
	}
}

// dropUnseenLocked takes out what this sample did not measure.
func (s *Sampler) dropUnseenLocked() {
	for path := range s.gauges {
		if !s.seen[path] {
			s.opts.Registry.Unregister(path)
			delete(s.gauges, path)
		}
	}
	for path := range s.counters {
		if !s.seen[path] {
			s.opts.Registry.Unregister(path)
			delete(s.counters, path)
		}
	}
}

// figure is one measured value and how it is named.
type figure struct {
	path, help string
	value      uint64
	labels     []stats.Label
}

// metricName is the name for a figure whose labels stand for elements of its path.
func (f *figure) metricName() stats.Label {
	elements := strings.Split(f.path, ".")
	if len(f.labels) > 0 {
		elements = append(elements[:2:2], elements[len(elements)-1])
	}
	return stats.Metric("strake_" + strings.Join(elements, "_"))
}

// gauge sets a gauge, registered at its first value.
func (s *Sampler) gauge(f figure) {
	s.seen[f.path] = true
	g := s.gauges[f.path]
	if g == nil {
		g = s.opts.Registry.Gauge(f.path, f.help, append([]stats.Label{f.metricName()}, f.labels...)...)
		s.gauges[f.path] = g
	}
	g.Set(int64(f.value))
}

// counter brings a counter up to the host's own count. A host count that went back (a
// device that came again) leaves it where it was until it is passed.
func (s *Sampler) counter(f figure) {
	s.seen[f.path] = true
	c := s.counters[f.path]
	if c == nil {
		name := f.metricName()
		name.Value += "_total"
		c = s.opts.Registry.Counter(f.path, f.help, append([]stats.Label{name}, f.labels...)...)
		s.counters[f.path] = c
	}
	if more := int64(f.value) - c.Load(); more > 0 {
		c.Add(more)
	}
}
