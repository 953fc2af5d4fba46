package dash

import (
	"encoding/json"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/strakefs/strake/fs/stats"
)

func newFeed(r *stats.Registry) *feed {
	return &feed{registry: r, poller: newPoller(nil, time.Second), interval: time.Second,
		host:   func() hostView { return readHost(r, time.Now()) },
		wanted: &wanted{}, paths: newResolver(nil), subscribers: map[*subscriber]struct{}{}, dropped: r.Counter("dash.pages_dropped", "")}
}

// A page that does not read is dropped at the bound; the others hear everything.
func TestSlowSubscriberIsDropped(t *testing.T) {
	f := newFeed(stats.NewRegistry())
	slow, err := f.subscribe(topicNone)
	if err != nil {
		t.Fatal(err)
	}
	quick, err := f.subscribe(topicNone)
	if err != nil {
		t.Fatal(err)
	}
	for range subscriberTicks + 2 {
		f.step(time.Now())
		<-quick.ticks
	}
	n := 0
	for range slow.ticks {
		n++
	}
	if n != subscriberTicks || f.dropped.Load() != 1 || len(f.subscribers) != 1 {
		t.Errorf("%d ticks queued, %d dropped, %d left", n, f.dropped.Load(), len(f.subscribers))
	}
	f.unsubscribe(slow)
	f.unsubscribe(quick)
	if len(f.subscribers) != 0 {
		t.Error("a subscriber is left")
	}
}

func TestRatesAndRing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := stats.NewRegistry()
		f := newFeed(r)
		f.last = readSums(r, time.Now())
		c := r.Counter("obdfilter.strake-OST0000.write_bytes", "")
		r.Gauge("host.memory_total_bytes", "").Set(100)
		r.Gauge("host.memory_available_bytes", "").Set(30)
		for i := range historyPoints + 10 {
			time.Sleep(time.Second) // fake time
			c.Add(500)
			f.step(time.Now())
			last := f.points[(f.head+len(f.points)-1)%len(f.points)].values
			if want := 500.0; i == 0 != math.IsNaN(last[serWrite]) || i > 0 && last[serWrite] != want {
				t.Fatalf("point %d: written %v", i, last[serWrite])
			}
			if last[serMemUsed] != 70 || !math.IsNaN(last[serCPU]) {
				t.Fatalf("point %d: %v", i, last)
			}
		}
		past := f.past()
		if len(past.T) != historyPoints {
			t.Fatalf("%d points", len(past.T))
		}
		for i := 1; i < len(past.T); i++ {
			if past.T[i]-past.T[i-1] != 1000 {
				t.Fatalf("points %d and %d are %d ms apart", i-1, i, past.T[i]-past.T[i-1])
			}
		}
		r.Unregister("obdfilter") // the target left: its rate is not measured, never negative
		r.Counter("obdfilter.strake-OST0001.write_bytes", "").Add(1)
		time.Sleep(time.Second)
		f.step(time.Now())
		b, err := json.Marshal(f.points[(f.head+historyPoints-1)%historyPoints])
		if err != nil || !json.Valid(b) || !math.IsNaN(f.points[(f.head+historyPoints-1)%historyPoints].values[serWrite]) {
			t.Fatalf("%v %s", err, b)
		}
	})
}

// Metadata operations are what the histograms of an MDT's operations have counted.
func TestMetadataOperations(t *testing.T) {
	r := stats.NewRegistry()
	label := func(op string) []stats.Label {
		return []stats.Label{stats.Metric("strake_mdt_op_seconds"), {Name: "op", Value: op}}
	}
	for _, op := range []string{"lookup", "create", "ping"} {
		r.Histogram("mdt.strake-MDT0000.stats."+op, "", label(op)...)
	}
	r.Counter("mdt.strake-MDT0000.stats.errors", "").Add(100)
	r.Func("mdt.strake-MDT0000.num_exports", "", func() int64 { return 3 })
	now := time.Now()
	last := readSums(r, now)
	r.Histogram("mdt.strake-MDT0000.stats.create", "").Observe(time.Millisecond)
	r.Histogram("mdt.strake-MDT0000.stats.lookup", "").Observe(time.Millisecond)
	r.Histogram("mdt.strake-MDT0000.stats.ping", "").Observe(time.Millisecond)
	next := readSums(r, now.Add(2*time.Second))
	if p := pointBetween(&last, &next); p.values[serOps] != 1 || p.values[serClients] != 3 {
		t.Errorf("%v operations per second, %v clients", p.values[serOps], p.values[serClients])
	}
}

func TestJudge(t *testing.T) {
	full := Target{Name: "strake-OST0001", Kind: "OST", Index: 1, State: StateActive, TotalBytes: 100, FreeBytes: 3, AvailBytes: 2}
	tests := map[string]struct {
		targets     []Target
		tone, title string
	}{
		"none":       {nil, toneIdle, "No target has registered yet."},
		"one":        {[]Target{{Name: "a", Kind: "MDT", State: StateActive}}, toneOK, "The only target is active."},
		"recovering": {[]Target{{Name: "a", Kind: "MDT", State: StateRecovering}}, toneBusy, "a is recovering."},
		"full":       {[]Target{full}, toneBad, "strake-OST0001 is 98 % full."},
		"inactive":   {[]Target{{Name: "a", Kind: "OST", State: StateInactive}, {Name: "b", Kind: "MDT", State: StateActive}}, toneOK, "1 of 2 targets are active, the others are taken out."},
		"two":        {[]Target{full, {Name: "a", Kind: "MDT", State: StateFailed}}, toneBad, "2 things need attention."},
		"unknown":    {[]Target{{Name: "a", Kind: "MDT", State: "odd"}}, toneWarn, "a is odd."},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			h := makeOverview(ClusterView{Targets: tt.targets}, now, now).Health
			if h.Tone != tt.tone || h.Title != tt.title {
				t.Errorf("%s %q, want %s %q", h.Tone, h.Title, tt.tone, tt.title)
			}
			for _, f := range h.Findings {
				if f.Remedy == "" {
					t.Errorf("no remedy for %q", f.Title)
				}
			}
		})
	}
}

// Ages grow with the age of the view.
func TestStaleness(t *testing.T) {
	now := time.Now()
	v := ClusterView{Targets: []Target{{Name: "a", Kind: "MDT", State: StateActive, Age: StaleAfter / 2}}, Nodes: []Node{{Host: "h"}}}
	if o := makeOverview(v, now, now); o.Targets[0].Stale || o.Nodes[0].Stale {
		t.Error("stale too early")
	}
	if o := makeOverview(v, now, now.Add(StaleAfter+time.Second)); !o.Targets[0].Stale || !o.Nodes[0].Stale {
		t.Error("not stale")
	}
}
