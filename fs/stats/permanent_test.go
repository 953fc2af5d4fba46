package stats_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/strakefs/strake/fs/stats"
)

// param is a parameter that remembers all that it was set to.
type param struct {
	mu  sync.Mutex
	was []string // guarded by mu
}

func (p *param) set(s string) error {
	if s == "bad" {
		return errors.New("a number from 1 to 9 is wanted")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.was = append(p.was, s)
	return nil
}

func (p *param) get() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.was, " ")
}

func (p *param) enter(r *stats.Registry, path string) *param {
	r.Param(path, "", p.get, p.set)
	return p
}

func TestPermanent(t *testing.T) {
	r := stats.NewRegistry()
	var refused []string
	report := func(path string, err error) { refused = append(refused, fmt.Sprint(path, ": ", err)) }
	early := new(param).enter(r, "osc.a.max")
	expect := func(p *param, want string) {
		t.Helper()
		if got := p.get(); got != want {
			t.Errorf("set to %q, want %q", got, want)
		}
	}
	r.SetPermanent([]stats.Setting{{"osc.*.max", "1"}, {"osc.b.max", "2"}}, report)
	late := new(param).enter(r, "osc.b.max")
	expect(early, "1")
	expect(late, "2")
	// What was set by hand stays when other settings change.
	e := entry(t, r, "osc.a.max")
	if err := e.Set("7"); err != nil {
		t.Fatal(err)
	}
	r.SetPermanent([]stats.Setting{{"osc.*.max", "1"}, {"osc.b.max", "3"}}, report)
	expect(early, "1 7")
	expect(late, "2 3")
	// A setting that is gone uncovers the one below it, or leaves the value.
	r.SetPermanent([]stats.Setting{{"osc.*.max", "1"}}, report)
	expect(late, "2 3 1")
	r.SetPermanent(nil, report)
	expect(early, "1 7")
	expect(late, "2 3 1")
	if len(refused) != 0 {
		t.Fatal(refused)
	}
	r.SetPermanent([]stats.Setting{{"osc.[", "1"}, {"osc.a.max", "bad"}}, report)
	if len(refused) != 2 || !strings.Contains(refused[0], "pattern") || !strings.Contains(refused[1], "a number from 1 to 9") {
		t.Error(refused)
	}
	if got := r.Permanent(); len(got) != 1 || got[0].Value != "bad" {
		t.Error(got)
	}
}

// TestPermanentAfterRename: a device that learns its name later gets what is meant for that name.
func TestPermanentAfterRename(t *testing.T) {
	r := stats.NewRegistry()
	r.SetPermanent([]stats.Setting{{"osd.strake-OST0000.x", "5"}}, func(_ string, err error) { t.Error(err) })
	p := new(param).enter(r, "osd.0123.x")
	r.Rename("osd.0123", "osd.strake-OST0000")
	if p.get() != "5" {
		t.Errorf("%q", p.get())
	}
}

// TestPermanentRaces: settings that change while parameters are registered all end at the newest value.
func TestPermanentRaces(t *testing.T) {
	r := stats.NewRegistry()
	const n = 200
	values := make([]atomic.Pointer[string], n)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range n {
			r.Param(fmt.Sprintf("a.b%d.c", i), "", func() string { return "" }, func(s string) error { values[i].Store(&s); return nil })
		}
	})
	for g := range 2 {
		wg.Go(func() {
			for i := range n {
				r.SetPermanent([]stats.Setting{{"a.*.c", fmt.Sprint(g, "-", i)}}, func(_ string, err error) { t.Error(err) })
			}
		})
	}
	wg.Wait()
	last := r.Permanent()[0].Value
	for i := range values {
		if got := values[i].Load(); got == nil || *got != last {
			t.Fatalf("parameter %d is not at %q", i, last)
		}
	}
}

func TestCheckPattern(t *testing.T) {
	for pattern, good := range map[string]bool{"a.*.b": true, "a/b": true, "a.{b,c}": true, "a.[": false, "a.{b": false} {
		if err := stats.CheckPattern(pattern); (err == nil) != good {
			t.Errorf("%q: %v", pattern, err)
		}
	}
}
