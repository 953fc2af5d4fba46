package dash

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/strakefs/strake/fs/stats"
)

// Limits of the live feed.
const (
	// maxSubscribers is how many pages may listen at once; one more is answered with 503.
	maxSubscribers = 64
	// subscriberTicks is how many ticks may wait for a slow page. At the bound it is
	// dropped; a page that lives connects again.
	subscriberTicks = 4
)

// errBusy is returned to a page that is one too many.
var errBusy = errors.New("too many pages are listening")

// feed takes a point each interval and gives ticks to subscribers.
type feed struct {
	registry   *stats.Registry
	poller     *poller
	host       func() hostView
	wanted     *wanted
	paths      *resolver
	recoveries *recoveries
	interval   time.Duration

	last sums // used by run only

	mu          sync.Mutex
	points      []point                       // ring, oldest at head once full; guarded by mu
	head        int                           // guarded by mu
	rates       map[string][2]float64         // target -> read, written per second; guarded by mu
	lockRates   map[string]map[string]float64 // namespace -> counter -> growth per second; guarded by mu
	lastEvicted map[string]time.Time          // namespace -> when it last lost a client, as seen here; guarded by mu
	subscribers map[*subscriber]struct{}      // guarded by mu
	dropped     *stats.Counter                // pages dropped for being slow
}

// subscriber is one listening page. ticks is closed when it is dropped.
type subscriber struct {
	ticks chan []byte
	topic topic
}

// topic is what a page wants to hear of beside what all pages do. It is read from the registry only while a page listens.
type topic string

const (
	topicNone     topic = ""
	topicLocks    topic = "locks"
	topicTables   topic = "hashtables"
	topicRecovery topic = "recovery"
)

// tick is one message of the feed.
type tick struct {
	Point    point    `json:"point"`
	Overview overview `json:"overview"`
	Host     hostView `json:"host"`
	about
}

// about is what belongs to a topic.
type about struct {
	Locks    *locksView    `json:"locks,omitempty"`
	Tables   *tablesView   `json:"hashtables,omitempty"`
	Recovery *recoveryView `json:"recovery,omitempty"`
}

// about reads what belongs to a topic.
func (f *feed) about(t topic, now time.Time) about {
	var a about
	switch t {
	case topicLocks:
		v := f.locks(now)
		a.Locks = &v
	case topicTables:
		v := readTables(f.registry, now)
		a.Tables = &v
	case topicRecovery:
		v := f.recoveries.view(f.registry, now)
		a.Recovery = &v
	}
	return a
}

// past is the ring as columns: what a page gets when it connects.
type past struct {
	Keys       []string    `json:"keys"`
	IntervalMs int64       `json:"intervalMs"`
	T          []int64     `json:"t"` // Unix milliseconds, ascending
	V          []rawColumn `json:"v"` // one column per key, null where not measured
}

// rawColumn is a column of values.
type rawColumn []float64

// MarshalJSON writes the column with null for NaN.
func (c rawColumn) MarshalJSON() ([]byte, error) {
	b := make([]byte, 0, 8*len(c)+2)
	b = append(b, '[')
	for i, v := range c {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendValue(b, v)
	}
	return append(b, ']'), nil
}

// run takes points until ctx ends. Three goroutines, so that a cluster that does not answer
// never delays the host's figures; it returns when all have ended.
func (f *feed) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { f.pollWhileWatched(ctx) })
	wg.Go(func() { f.paths.run(ctx) })
	defer wg.Wait()
	f.last = readSums(f.registry, time.Now())
	t := time.NewTicker(f.interval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			f.step(time.Now())
		}
	}
}

// pollWhileWatched refreshes the view each interval while a page listens.
func (f *feed) pollWhileWatched(ctx context.Context) {
	t := time.NewTicker(f.interval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if f.watched() {
				f.poller.refresh(ctx)
			}
		}
	}
}

func (f *feed) watched() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.subscribers) > 0
}

// step takes one point and sends it on.
func (f *feed) step(now time.Time) {
	s := readSums(f.registry, now)
	p := pointBetween(&f.last, &s)
	rates := make(map[string][2]float64, len(s.targets))
	for name, t := range s.targets {
		if before, ok := f.last.targets[name]; ok {
			passed := s.at.Sub(f.last.at)
			rates[name] = [2]float64{perSec(before.read, t.read, passed), perSec(before.written, t.written, passed)}
		}
	}
	f.mu.Lock()
	evictions := f.lastEvicted // replaced, never changed
	f.mu.Unlock()
	lockRates, evictions := lockRatesBetween(&f.last, &s, evictions)
	f.last = s
	f.mu.Lock()
	if len(f.points) < historyPoints {
		f.points = append(f.points, p)
	} else {
		f.points[f.head] = p
		f.head = (f.head + 1) % historyPoints
	}
	f.rates, f.lockRates, f.lastEvicted = rates, lockRates, evictions
	topics := map[topic]bool{}
	for s := range f.subscribers {
		topics[s.topic] = true
	}
	f.mu.Unlock()
	if len(topics) == 0 {
		return
	}
	t := tick{Point: p, Overview: f.overview(now), Host: f.host()}
	for topic := range topics {
		t.about = f.about(topic, now)
		message, err := json.Marshal(t)
		if err != nil {
			panic(err) // our own types, and NaN never gets to the encoder
		}
		f.send(topic, message)
	}
}

// send queues a message for the subscribers of a topic and drops those whose queue is full.
func (f *feed) send(t topic, message []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.subscribers {
		if s.topic != t {
			continue
		}
		select {
		case s.ticks <- message:
		default:
			delete(f.subscribers, s)
			close(s.ticks)
			f.dropped.Inc()
		}
	}
}

// overview is the poller's, with the traffic of this process's targets.
func (f *feed) overview(now time.Time) overview {
	o := f.poller.overview(now)
	f.mu.Lock()
	rates := f.rates // replaced, never changed
	f.mu.Unlock()
	for i := range o.Targets {
		t := &o.Targets[i]
		if r, ok := rates[t.Name]; ok && r[0] == r[0] && r[1] == r[1] { // NaN: not measured
			t.ReadPerSec, t.WritePerSec = &r[0], &r[1]
		}
	}
	return o
}

// subscribe adds a page. It returns errBusy at the bound.
func (f *feed) subscribe(t topic) (*subscriber, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.subscribers) >= maxSubscribers {
		return nil, errBusy
	}
	s := &subscriber{ticks: make(chan []byte, subscriberTicks), topic: t}
	f.subscribers[s] = struct{}{}
	return s, nil
}

// unsubscribe removes a page; it may have been dropped already.
func (f *feed) unsubscribe(s *subscriber) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.subscribers[s]; ok {
		delete(f.subscribers, s)
		close(s.ticks)
	}
}

// past returns the ring's points, oldest first.
func (f *feed) past() past {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.points)
	h := past{Keys: seriesKeys[:], IntervalMs: f.interval.Milliseconds(), T: make([]int64, n), V: make([]rawColumn, serCount)}
	for k := range h.V {
		h.V[k] = make(rawColumn, n)
	}
	for i := range n {
		p := &f.points[(f.head+i)%n]
		h.T[i] = p.at.UnixMilli()
		for k, v := range p.values {
			h.V[k][i] = v
		}
	}
	return h
}
