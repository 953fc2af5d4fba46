package dash

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// viewTimeout bounds one call of Options.Cluster.
const viewTimeout = 3 * time.Second

// poller asks for the view, at most once per interval whoever asks, and keeps the last one.
type poller struct {
	ask      func(context.Context) (ClusterView, error)
	interval time.Duration
	turn     chan struct{} // holds one token: who has it may ask

	mu      sync.Mutex
	view    ClusterView // guarded by mu
	taken   time.Time   // when view was taken; guarded by mu
	asked   time.Time   // when ask last returned; guarded by mu
	problem error       // of the last ask; guarded by mu
}

func newPoller(ask func(context.Context) (ClusterView, error), interval time.Duration) *poller {
	p := &poller{ask: ask, interval: interval, turn: make(chan struct{}, 1)}
	p.turn <- struct{}{}
	return p
}

// refresh asks again unless that was done within the interval. It blocks for viewTimeout at
// most, or until ctx ends.
func (p *poller) refresh(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-p.turn:
	}
	defer func() { p.turn <- struct{}{} }()
	p.mu.Lock()
	fresh := time.Since(p.asked) < p.interval/2
	p.mu.Unlock()
	if fresh || p.ask == nil {
		return
	}
	askCtx, cancel := context.WithTimeout(ctx, viewTimeout)
	defer cancel()
	view, err := p.ask(askCtx)
	if ctx.Err() != nil {
		return // the asker left; that says nothing about the cluster
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked, p.problem = time.Now(), err
	if err == nil {
		p.view, p.taken = view, p.asked
	}
}

// overview makes the overview of the last view, with ages as of now.
func (p *poller) overview(now time.Time) overview {
	p.mu.Lock()
	view, taken, problem := p.view, p.taken, p.problem
	p.mu.Unlock()
	o := makeOverview(view, taken, now)
	switch {
	case p.ask == nil:
		o.Health = health{Tone: toneIdle, Title: "This process serves no target; its host is shown.", Findings: []finding{}}
	case problem != nil:
		o.Problem = problem.Error()
		o.Health.Findings = append([]finding{{toneWarn, "This process", "cannot read the state of the file system: " + o.Problem,
			"Check that the management server (MGS) runs and can be reached from here."}}, o.Health.Findings...)
		o.Health.Tone, o.Health.Title = toneWarn, "The state of the file system is not known."
		if !taken.IsZero() {
			o.Health.Title = fmt.Sprintf("The state of the file system is %s old.", words(now.Sub(taken).Milliseconds()))
		}
	case taken.IsZero():
		o.Health = health{Tone: toneBusy, Title: "The state of the file system is being read.", Findings: []finding{}}
	}
	if taken.IsZero() {
		o.AtMs = 0
	}
	return o
}
