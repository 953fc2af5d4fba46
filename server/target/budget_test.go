package target_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/server/target"
)

// hoard is a cache of which a part is in use.
type hoard struct {
	b *target.Budget

	mu          sync.Mutex
	used, inUse int64 // guarded by mu
	uses        int64 // guarded by mu
}

func (h *hoard) Used() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.used
}

func (h *hoard) Uses() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.uses
}

func (h *hoard) Purge(bytes int64) int64 {
	h.mu.Lock()
	n := min(bytes, h.used-h.inUse)
	h.used -= n
	h.mu.Unlock()
	h.b.Charge(-n)
	return n
}

// take uses n more bytes.
func (h *hoard) take(n int64) {
	h.mu.Lock()
	h.used += n
	h.uses++
	h.mu.Unlock()
	if h.b.Charge(n) {
		h.b.Trim()
	}
}

func join(b *target.Budget) *hoard {
	h := &hoard{b: b}
	b.Join(h)
	return h
}

// TestBudgetIsShared: what one cache needs the largest gives; what is in use stays, and nothing is refused.
func TestBudgetIsShared(t *testing.T) {
	b := target.NewBudget(1 << 30)
	if err := b.SetPercent(1); err != nil {
		t.Fatal(err)
	}
	limit := b.Limit()
	if want := int64(1<<30) / 100; limit != want {
		t.Fatalf("limit %d, want %d", limit, want)
	}
	idle, busy := join(b), join(b)
	for range limit / 1000 {
		idle.take(1000)
	}
	for range limit / 1000 / 2 {
		busy.take(1000)
		if b.Used() > limit {
			t.Fatalf("%d bytes of %d", b.Used(), limit)
		}
	}
	if i, n := idle.Used(), busy.Used(); n < limit/1000/2*1000 || i > limit-n {
		t.Errorf("the idle cache has %d, the busy one %d of %d", i, n, limit)
	}
	b.Look(1 << 30)
	busy.take(1)
	b.Look(1 << 30)
	before := idle.Used()
	busy.take(1000)
	if got := idle.Used(); got > before-500 {
		t.Errorf("the idle cache keeps %d of %d bytes", got, before)
	}
	busy.inUse = busy.Used()
	busy.take(2 * limit)
	busy.inUse = busy.Used()
	for range 2 * limit / (64 << 10) {
		busy.take(1)
		busy.inUse++
	}
	if got := idle.Used(); got != 0 {
		t.Errorf("the idle cache keeps %d bytes while all of the other is in use", got)
	}
	if got := busy.Used(); got < 2*limit {
		t.Errorf("what is in use shrank to %d", got)
	}
	b.Leave(busy)
	if got := b.Used(); got != 0 {
		t.Errorf("%d bytes are charged by nobody", got)
	}
}

// TestBudgetUnderPressure: while memory is short the caches shrink at every look; when there is enough the rule holds again.
func TestBudgetUnderPressure(t *testing.T) {
	const memory = 1 << 30
	b := target.NewBudget(memory)
	h := join(b)
	h.take(100 << 20)
	b.Look(memory / 15) // between the two thresholds: as it was
	if got := h.Used(); got != 100<<20 {
		t.Fatalf("%d bytes without pressure", got)
	}
	for i, want := range []int64{75 << 20, 75 << 20 / 4 * 3} {
		b.Look(memory / 25)
		if got := h.Used(); got != want || b.Limit() != want {
			t.Fatalf("look %d: %d bytes, limit %d, want %d", i, got, b.Limit(), want)
		}
	}
	if rule := b.Rule(); !strings.Contains(rule, "memory is short") {
		t.Errorf("rule %q", rule)
	}
	for range 100 {
		b.Look(0)
	}
	if got := h.Used(); got < 1<<19 || got > 1<<20 {
		t.Errorf("%d bytes after long pressure", got)
	}
	b.Look(memory / 2)
	if want := int64(memory) / 100 * 20; b.Limit() != want {
		t.Errorf("limit %d, want %d", b.Limit(), want)
	}
}

// TestCachePercent: the parameter works at once, and says what it does not take.
func TestCachePercent(t *testing.T) {
	b := target.NewBudget(1 << 30)
	r := stats.NewRegistry()
	b.Register(r)
	h := join(b)
	h.take(200 << 20)
	set := func(text string) (err error) {
		bad := r.Walk("lu_cache_percent", func(e stats.Entry) error { err = e.Set(text); return nil })
		return errors.Join(bad, err)
	}
	for _, bad := range []string{"0", "51", "-1", "x", ""} {
		if err := set(bad); err == nil || !strings.Contains(err.Error(), "1 to 50") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if err := set(" 2\n"); err != nil {
		t.Fatal(err)
	}
	if got, want := h.Used(), int64(1<<30)/100*2; got != want {
		t.Errorf("%d bytes at 2 %%, want %d", got, want)
	}
	unknown := target.NewBudget(0)
	unknown.Look(0)
	if got := unknown.Limit(); got < 255<<20 || got > 256<<20 {
		t.Errorf("limit without knowing the memory: %d", got)
	}
}
