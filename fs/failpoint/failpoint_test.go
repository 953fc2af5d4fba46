package failpoint_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/strakefs/strake/fs/failpoint"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
)

// TestWhich: which arrivals fail, by count, operation and target.
func TestWhich(t *testing.T) {
	for _, c := range []struct {
		when, op, target string
		want             string // x for each arrival that fails
	}{
		{"always", "create", "strake-MDT0000", "xxxxxxxx"},
		{"", "create", "strake-MDT0000", "xxxxxxxx"},
		{"once", "create", "strake-MDT0000", "x......."},
		{"times:3", "", "", "xxx....."},
		{"skip:2", "", "", "..xxxxxx"},
		{"every:3", "", "", "x..x..x."},
		{"skip:1+every:2+times:2", "", "", ".x.x...."},
		{"op:create|link", "link", "", "xxxxxxxx"},
		{"op:create|link", "unlink", "", "........"},
		{"target:*-MDT0000", "", "strake-MDT0000", "xxxxxxxx"},
		{"target:*-MDT0000+op:create+times:1", "create", "strake-MDT0000", "x......."},
		{"target:*-MDT0000", "", "strake-OST0001", "........"},
	} {
		s := failpoint.New()
		if err := s.Arm("drop_reply", "", c.when); err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		for range len(c.want) {
			if _, ok := s.Reach(failpoint.DropReply, c.op, c.target); ok {
				got.WriteByte('x')
			} else {
				got.WriteByte('.')
			}
			if _, ok := s.Reach(failpoint.DropRequest, c.op, c.target); ok {
				t.Errorf("%s: a point that is not armed fails", c.when)
			}
		}
		if got.String() != c.want {
			t.Errorf("%q by %q on %q: %s, want %s", c.when, c.op, c.target, got.String(), c.want)
		}
	}
}

// TestSeveralPoints: the items of the three parameters belong together by their place.
func TestSeveralPoints(t *testing.T) {
	s := failpoint.New()
	if err := s.Arm("delay_io, fail_commit,delay_io", "20,ENOSPC", "target:a,once,target:b"); err != nil {
		t.Fatal(err)
	}
	if h, ok := s.Reach(failpoint.DelayIO, "write", "a"); !ok || h.Val != 20 {
		t.Error(h, ok)
	}
	if h, ok := s.Reach(failpoint.DelayIO, "write", "b"); !ok || h.Val != 1000 {
		t.Error(h, ok)
	}
	h, ok := s.Reach(failpoint.FailCommit, "", "a")
	if !ok || !errors.Is(h.Err(), status.NoSpace) {
		t.Error(h.Err(), ok)
	}
	if _, ok := s.Reach(failpoint.FailCommit, "", "a"); ok || s.Count(1) != 1 {
		t.Error("twice")
	}
}

// TestPauseEnds: a pause ends with the next setting, with its time, with the Set.
func TestPauseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, end := range map[string]func(s *failpoint.Set){
			"set":    func(s *failpoint.Set) { _ = s.Arm("0", "", "") },
			"closed": func(s *failpoint.Set) { s.Close() },
		} {
			s := failpoint.New()
			if err := s.Arm("pause_commit", "", ""); err != nil {
				t.Fatal(name, err)
			}
			h, ok := s.Reach(failpoint.PauseCommit, "", "")
			if !ok {
				t.Fatal(name, "not armed")
			}
			done := make(chan struct{})
			go func() { h.Wait(nil); close(done) }()
			synctest.Wait()
			select {
			case <-done:
				t.Fatal(name, "no pause")
			default:
			}
			end(s)
			<-done
		}
		s := failpoint.New()
		if err := s.Arm("delay_request", "2500", ""); err != nil {
			t.Fatal(err)
		}
		h, _ := s.Reach(failpoint.DelayRequest, "create", "")
		began := time.Now()
		h.Wait(nil)
		if d := time.Since(began); d != 2500*time.Millisecond {
			t.Error(d)
		}
	})
}

// TestRefused: what cannot be read is refused with a sentence and changes nothing.
func TestRefused(t *testing.T) {
	s := failpoint.New()
	for _, c := range [][3]string{
		{"drop"}, {"drop_reply,"}, {"drop_reply", "2"}, {"delay_io", "EIO"}, {"delay_io", "3600001"}, {"fail_io", "EWHAT"},
		{"no_space", "1"}, {"drop_reply", "", "sometimes"}, {"drop_reply", "", "every:0"}, {"drop_reply", "", "times:x"},
		{"drop_reply", "", "op:"}, {"drop_reply", "", "target:["}, {strings.Repeat("no_space,", 16) + "no_space"},
	} {
		if err := s.Arm(c[0], c[1], c[2]); !errors.Is(err, status.Invalid) || s.Armed() {
			t.Errorf("%q: %v, armed %v", c, err, s.Armed())
		}
		_ = s.Arm("", "", "")
	}
}

func set(t *testing.T, r *stats.Registry, name, value string) error {
	t.Helper()
	nodes, err := r.List(name, false)
	if err != nil || len(nodes) != 1 {
		t.Fatal(nodes, err)
	}
	return nodes[0].Set(value)
}

func text(t *testing.T, r *stats.Registry, name string) string {
	t.Helper()
	nodes, err := r.List(name, false)
	if err != nil || len(nodes) != 1 {
		t.Fatal(nodes, err)
	}
	s, _ := nodes[0].Text()
	return strings.TrimSpace(s)
}

// TestParameters: the three parameters of a process that allows faults, and of one that does not.
func TestParameters(t *testing.T) {
	r, s := stats.NewRegistry(), failpoint.New()
	failpoint.Register(r, s)
	for _, p := range [][2]string{{"fail_val", "ENOSPC"}, {"fail_when", "skip:1"}, {"fail_loc", "fail_io"}} {
		if err := set(t, r, p[0], p[1]); err != nil {
			t.Fatal(err)
		}
		if got := text(t, r, p[0]); got != p[1] {
			t.Errorf("%s is %q", p[0], got)
		}
	}
	for range 3 {
		s.Reach(failpoint.FailIO, "read", "")
	}
	if got, want := text(t, r, "fail_hits"), "fail_io: { reached: 3, failed: 2 }"; got != want {
		t.Errorf("fail_hits is %q", got)
	}
	if err := set(t, r, "fail_val", "x"); !errors.Is(err, status.Invalid) || text(t, r, "fail_val") != "ENOSPC" || !s.Armed() {
		t.Error(err)
	}

	r = stats.NewRegistry()
	failpoint.Register(r, nil)
	for _, p := range []string{"fail_loc=0", "fail_val=0", "fail_when=always"} { // what they are may be set
		name, value, _ := strings.Cut(p, "=")
		if err := set(t, r, name, value); err != nil || text(t, r, name) != value {
			t.Error(p, err, text(t, r, name))
		}
	}
	if err := set(t, r, "fail_loc", "drop_reply"); !errors.Is(err, status.Perm) || !strings.Contains(err.Error(), "--fault-injection") {
		t.Error(err)
	}
	var none *failpoint.Set
	none.Close()
	if _, ok := none.Reach(failpoint.DropReply, "", ""); ok || none.Armed() {
		t.Error("nil is armed")
	}
}

// TestSetRaces: points are reached while they are set.
func TestSetRaces(t *testing.T) {
	s, stop := failpoint.New(), make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			if h, ok := s.Reach(failpoint.PauseCommit, "", fmt.Sprint(i)); ok {
				h.Wait(nil)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	for range 1000 {
		if err := s.Arm("pause_commit", "", "every:2"); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	close(stop)
	<-done
}

// TestOffCostsNoAllocation: neither a point that is off nor one that is armed and does not fail allocates.
func TestOffCostsNoAllocation(t *testing.T) {
	s := failpoint.New()
	ask := func() {
		if s.Armed() {
			s.Reach(failpoint.DropReply, "create", "strake-MDT0000")
		}
	}
	if n := testing.AllocsPerRun(1000, ask); n != 0 {
		t.Error(n)
	}
	if err := s.Arm("drop_reply", "", "op:unlink|link"); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(1000, ask); n != 0 {
		t.Error(n)
	}
}

// BenchmarkOff is what a request pays in a process that could fail and does not; BenchmarkNone in an ordinary one.
func BenchmarkOff(b *testing.B)  { benchmark(b, failpoint.New()) }
func BenchmarkNone(b *testing.B) { benchmark(b, nil) }

func benchmark(b *testing.B, s *failpoint.Set) {
	b.ReportAllocs()
	for b.Loop() {
		if s.Armed() {
			b.Fatal("armed")
		}
	}
}
