package suite

import (
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// localHistory records a run over bind mounts of one local folder.
func localHistory(t *testing.T, perMount, count int) *world {
	t.Helper()
	dir := "/dev/shm"
	if _, err := os.Stat(dir); err != nil {
		dir = os.TempDir()
	}
	base, err := os.MkdirTemp(dir, "strake-checker-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(base) })
	m := localMounts(t, base, 2)
	w := newWorld(t, m, perMount == 1)
	s := seed(t)
	var group sync.WaitGroup
	for i, root := range w.roots {
		for j := range perMount {
			id := i*perMount + j
			k := &worker{world: w, id: id, mount: i, root: root, rng: rand.New(rand.NewPCG(s, uint64(id))), held: -1}
			group.Go(func() { k.run(count) })
		}
	}
	group.Wait()
	w.lastLook()
	w.relax()
	for _, e := range w.errs {
		t.Error(e)
	}
	return w
}

// TestCheckerAcceptsOneFolderAndFindsEveryKindOfStaleness gives the checker the history of a local folder, which is
// right, and then the same with one change forgotten, or one answer given late, of every kind.
func TestCheckerAcceptsOneFolderAndFindsEveryKindOfStaleness(t *testing.T) {
	needMount(t)
	w := localHistory(t, 2, 1000)
	for _, v := range w.h.check(20 * time.Second) {
		t.Errorf("a local folder is no violation: %s", v.text)
	}
	if t.Failed() {
		return
	}
	right := w.h.steps
	kinds := map[string]func(s step) bool{
		"a name":           func(s step) bool { return s.kind == partNames },
		"a register":       func(s step) bool { return s.kind == partRegister },
		"an ACL":           func(s step) bool { return s.kind == partACL },
		"a range":          func(s step) bool { return s.kind == partCell && !strings.HasPrefix(s.part, "map") },
		"a mapped page":    func(s step) bool { return strings.HasPrefix(s.part, "map") && s.worker >= 0 && s.call > 0 },
		"a size":           func(s step) bool { return s.kind == partLength },
		"a record of logs": func(s step) bool { return s.kind == partLog },
	}
	rng := rand.New(rand.NewPCG(1, 1))
	// tamper finds a step of the kind for which the changed history is refused.
	tamper := func(t *testing.T, is func(step) bool, change func(steps []step, i int) []step) {
		var picks []int
		for i, s := range right {
			if is(s) {
				picks = append(picks, i)
			}
		}
		rng.Shuffle(len(picks), func(i, j int) { picks[i], picks[j] = picks[j], picks[i] })
		tried := 0
		for until := time.Now().Add(20 * time.Second); tried < len(picks) && time.Now().Before(until); tried++ {
			i := picks[tried]
			part := right[i].part
			h := &history{steps: slices.DeleteFunc(change(slices.Clone(right), i), func(s step) bool { return s.part != part })}
			if bad := h.check(5 * time.Second); len(bad) > 0 {
				if !strings.Contains(bad[0].text, "no order explains") || strings.Count(bad[0].text, "\n") > 45 {
					t.Errorf("the report is not short: %.2000s", bad[0].text)
				}
				return
			}
		}
		t.Errorf("%d of %d histories pass, and none is right", tried, len(picks))
	}
	for name, is := range kinds {
		t.Run("a change forgotten: "+name, func(t *testing.T) {
			tamper(t, func(s step) bool { return is(s) && !s.look }, func(steps []step, i int) []step {
				return slices.Delete(steps, i, i+1)
			})
		})
		t.Run("an old answer: "+name, func(t *testing.T) {
			tamper(t, func(s step) bool { return is(s) && s.look && s.ret < right[len(right)-1].ret/2 }, func(steps []step, i int) []step {
				late := right[len(right)-1].ret / 3
				steps[i].call += late
				steps[i].ret += late
				return steps
			})
		})
	}
	t.Run("listings", func(t *testing.T) {
		for what, change := range map[string]func(l *reading){
			"a file that stays is missing":  func(l *reading) { delete(l.found, "stays3") },
			"a file that stays comes twice": func(l *reading) { l.found["stays3"] = 2 },
			"a name that never was":         func(l *reading) { l.found["ghost"] = 1 },
			"a removed name, or a new one missing": func(l *reading) {
				for i := range int8(nameCount / 2) { // all there becomes absent, all absent there
					name := nameText(i)[2:]
					l.found[name] = 1 - min(1, l.found[name])
				}
			},
		} {
			h := &history{steps: right}
			l := w.h.listings[len(w.h.listings)-1]
			l.found = maps.Clone(l.found)
			change(&l)
			h.listings = []reading{l}
			if len(h.checkListings()) == 0 {
				t.Errorf("%s passes", what)
			}
		}
	})
}
