package mdt

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/strakefs/strake/fs/fid"
)

// losing is a cluster of two clients that keep what was answered, of which a is going to be lost together with the MDT.
type losing struct {
	t      *testing.T
	c      *cluster
	a, b   *client
	shared fid.FID
	dirs   []fid.FID
}

func newLosing(t *testing.T, level string) *losing {
	c := newCluster(t, windowed)
	if err := c.h.setSharing(level); err != nil {
		t.Fatal(err)
	}
	l := &losing{t: t, c: c, a: c.keeper(), b: c.keeper()}
	l.shared = l.a.must(fid.Root, "shared", dir|0o777)
	l.dirs = []fid.FID{l.shared, l.a.must(l.shared, "x", dir|0o777), l.b.must(l.shared, "y", dir|0o777)}
	c.commit()
	return l
}

// lose loses a and all that is not on disk, lets b recover, and returns how many of its replays were refused.
func (l *losing) lose() int {
	l.t.Helper()
	l.a.keeps.p.Close()
	l.c.restart(true)
	l.c.h.Target().Evict(exportOf(l.c, l.a), "lost")
	if _, err := l.b.keeps.recover(); err != nil {
		l.t.Fatal(err)
	}
	checkDevice(l.t, l.c.dev)
	for _, e := range l.b.keeps.log {
		if e.refused != nil {
			l.t.Logf("refused: op %#x, transno %#x: %v", e.Op, e.Transno, e.refused)
		}
	}
	return l.b.keeps.refused()
}

// TestLostClientTakesNoOneAlong cites DESIGN §8: "A lost client then can never take another one's work along." Two clients share a
// folder, and one of them is lost together with the MDS.
func TestLostClientTakesNoOneAlong(t *testing.T) {
	for level, want := range map[string]int{"0": 1, "1": 0, "2": 0} {
		t.Run("commit_on_sharing="+level, func(t *testing.T) {
			l := newLosing(t, level)
			f := l.a.must(l.shared, "f", reg|0o644)
			l.b.must(l.shared, "own", reg|0o644)
			if _, err := l.b.rename(root, l.shared, "f", l.shared, "g", 0); err != nil {
				t.Fatal(err)
			}
			if got := l.lose(); got != want {
				t.Errorf("%d replays are refused, want %d", got, want)
			}
			if _, err := l.b.lookup(root, l.shared, "own"); err != nil {
				t.Errorf("what rests on nobody's: %v", err)
			}
			r, err := l.b.lookup(root, l.shared, "g")
			if want == 0 && (err != nil || fidOf(r.Attr) != f) || want > 0 && err == nil {
				t.Errorf("what rests on the lost client's: %v", err)
			}
		})
	}
}

// TestLostClientAfterAStorm: the same after random operations of both clients in the same few folders.
func TestLostClientAfterAStorm(t *testing.T) {
	refused := map[string]int{}
	for seed := range uint64(30) {
		for _, level := range []string{"0", "1"} {
			t.Run(fmt.Sprintf("seed %d, commit_on_sharing=%s", seed, level), func(t *testing.T) {
				l := newLosing(t, level)
				mine, others := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2))
				for range 15 {
					changes(l.a, others, 8, l.dirs)
					changes(l.b, mine, 8, l.dirs)
				}
				n := l.lose()
				refused[level] += n
				if level == "1" && n > 0 {
					t.Errorf("%d replays are refused", n)
				}
			})
		}
	}
	if refused["0"] == 0 {
		t.Error("nothing was refused with commit on share off: the test shows nothing")
	}
}
