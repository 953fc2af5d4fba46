package ldlm_test

import (
	"testing"
	"time"

	"github.com/strakefs/strake/fs/ldlm"
)

// TestServerPool drives a pool through idle, rush and relief.
func TestServerPool(t *testing.T) {
	p := ldlm.ServerPool{Limit: 1000}
	var c ldlm.Counts
	now := time.Duration(0)
	if p.Recalc(now, 0, &c); p.SLV != 36_000_000 {
		t.Fatalf("idle SLV %d", p.SLV)
	}
	step := func(held int64) bool {
		now += time.Second
		return p.Recalc(now, held, &c)
	}
	for range 20 {
		step(10)
	}
	if p.SLV != 36_000_000 || p.Plan <= 10 {
		t.Fatalf("few locks: SLV %d, plan %d", p.SLV, p.Plan)
	}
	c.Granted = 3000
	fell := false
	last := p.SLV
	for range 40 {
		fell = step(2000) || fell
		if p.SLV > last {
			t.Fatalf("rises with twice the limit held: %d, %d", last, p.SLV)
		}
		last = p.SLV
	}
	if !fell || p.SLV > 100 || p.SLV < 1 {
		t.Fatalf("twice the limit held: SLV %d", p.SLV)
	}
	if p.GrantRate != 0 || p.CancelRate != 0 {
		t.Fatalf("rates %d %d", p.GrantRate, p.CancelRate)
	}
	c.Cancelled = 1900
	step(100)
	if p.CancelRate != 1900 || p.GrantSpeed != -1900 {
		t.Fatalf("rates %d %d", p.CancelRate, p.GrantSpeed)
	}
	for range 400 {
		step(100)
	}
	if p.SLV != 36_000_000 {
		t.Fatalf("does not come back: SLV %d", p.SLV)
	}
	if p.Recalc(now, 100000, &c); p.SLV != 36_000_000 {
		t.Fatal("recalculated within a period")
	}
	if n := ldlm.DefaultPoolLimit(2 << 30); n != 102400 {
		t.Fatalf("limit %d for 2 GiB", n)
	}
}

func TestClientPool(t *testing.T) {
	var p ldlm.ClientPool
	if p.Exceeds(time.Hour, 1<<40) {
		t.Fatal("no SLV, and still too much")
	}
	if p.Observe(1000, 10) || p.Observe(950, 10) || !p.Observe(800, 10) {
		t.Fatal("Observe")
	}
	for _, c := range []struct {
		age    time.Duration
		unused int64
		want   bool
	}{{time.Second, 799, false}, {time.Second, 800, true}, {8 * time.Second, 100, true}, {8 * time.Second, 99, false},
		{500 * time.Millisecond, 1 << 40, false}, {1 << 62, 1 << 62, true}} {
		if got := p.Exceeds(c.age, c.unused); got != c.want {
			t.Errorf("age %v, %d unused: %v", c.age, c.unused, got)
		}
	}
}
