package suite

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The torture test: applications on four clients work while targets are killed, stopped, cut off and lose their power. At
// the end every acknowledged operation must be there; and, after everything has lost its power, every one that was
// flushed.
//
// Environment:
//
//	STRAKE_TORTURE        kinds of faults to run, such as kill-oss,power-mds; all for all (default: in a soak run), none for none
//	STRAKE_TORTURE_TIME   how long, such as 90s (default: two minutes, in a soak run until 100 faults and 1,000,000 operations)

// tortureWorkers is how many applications work on each client.
const tortureWorkers = 2

// tortureStall is how long no application may get an answer.
const tortureStall = 150 * time.Second

// torture is one run.
type torture struct {
	*cluster
	t       *testing.T
	at      []string
	rnd     *rand.Rand
	workers []*torturer
	kinds   []string
	faults  map[string]int
	stop    chan struct{}
	failed  atomic.Bool
	wait    sync.WaitGroup
	mu      sync.Mutex
	errs    []error // guarded by mu
}

// tortureKinds are the kinds of faults to run. It skips the test where it is not asked for. Once in 40 to 80 faults an old
// handle read zeros behind the end of a file that another mount had cut; the READs behind the end that caused it are mended
// (fs/fusefs/shorten.go), but the long form has not shown yet that this was all.
func tortureKinds(t *testing.T) []string {
	t.Helper()
	known := tortureFaults()
	env := os.Getenv("STRAKE_TORTURE")
	switch env {
	case "":
		if soak() {
			return slices.Sorted(maps.Keys(known))
		}
		t.Skip("STRAKE_TORTURE names no kind of fault (all: every kind); make soak runs it")
	case "all":
		return slices.Sorted(maps.Keys(known))
	case "none":
		return nil
	}
	kinds := strings.Split(env, ",")
	for _, k := range kinds {
		if _, ok := known[k]; !ok {
			t.Fatalf("STRAKE_TORTURE: no kind %q: %v", k, slices.Sorted(maps.Keys(known)))
		}
	}
	return kinds
}

func TestTorture(t *testing.T) {
	kinds := tortureKinds(t)
	s := seed(t)
	needCluster(t)
	layout := layoutNetworks
	if n, err := newNetwork(1); err == nil {
		n.remove()
	} else {
		t.Logf("no network namespaces here, so nothing is cut off: %v", err)
		layout = layoutProcesses
		kinds = slices.DeleteFunc(kinds, func(k string) bool { return tortureFaults()[k].how == "cut" })
	}
	c := newCluster(t, layout, clusterOptions{osts: 2, clients: 4, disks: true})
	r := &torture{
		cluster: c, t: t, at: c.dirs(), rnd: rand.New(rand.NewPCG(s, 1000)), kinds: kinds, faults: map[string]int{},
		stop: make(chan struct{}),
	}
	r.prepare(s)
	began := time.Now()
	for _, w := range r.workers {
		r.wait.Go(func() {
			if err := w.run(r.stop); err != nil {
				r.fail(err)
			}
		})
	}
	r.inflictAll(began)
	close(r.stop)
	r.join()
	ops, syncs := r.operations()
	t.Logf("%d faults and %d operations, of them %d fsyncs, in %v: %v", r.count(), ops, syncs, time.Since(began).Round(time.Second), r.faults)
	if t.Failed() {
		return
	}
	r.verifyEverywhere("at the end")
	for _, w := range r.workers {
		must(t, w.release())
	}
	must(t, r.cluster.stop())
	if out, err := r.inspect(); err != nil { // no stale size is excused: every client has lived
		t.Errorf("strake check: %v\n%s", err, out)
	}
	r.restart(t)
	r.verifyEverywhere("after a restart")
	r.loseEverything() // the cluster is checked when it is stopped
}

// prepare makes the folders of the workers, striped over the OSTs that are up when a file is made.
func (r *torture) prepare(s uint64) {
	must(r.t, os.Mkdir(filepath.Join(r.at[0], sharedName), 0o755))
	for i := range len(r.at) * tortureWorkers {
		w := newTorturer(i, i%len(r.at), r.at, s)
		r.workers = append(r.workers, w)
		for _, dir := range slices.Sorted(maps.Keys(w.dirs)) {
			must(r.t, os.MkdirAll(filepath.Join(r.at[0], dir), 0o755))
		}
		r.lfs(r.t, "setstripe", "-c", "-1", "-S", "64K", filepath.Join(r.at[0], fmt.Sprintf("w%d/a", i)))
	}
}

func (r *torture) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
	r.failed.Store(true)
}

func (r *torture) operations() (ops, syncs int64) {
	for _, w := range r.workers {
		ops += w.ops.Load()
		syncs += w.syncs.Load()
	}
	return ops, syncs
}

func (r *torture) count() (n int) {
	for _, k := range r.faults {
		n += k
	}
	return n
}

// enough says whether the run has lasted.
func (r *torture) enough(began time.Time) bool {
	if r.failed.Load() {
		return true
	}
	if env := os.Getenv("STRAKE_TORTURE_TIME"); env != "" {
		limit, err := time.ParseDuration(env)
		must(r.t, err)
		return time.Since(began) > limit
	}
	if soak() {
		ops, _ := r.operations()
		return r.count() >= 100 && ops >= 1_000_000
	}
	return time.Since(began) > 2*time.Minute
}

// inflictAll makes fault after fault happen until it is enough. After each every worker must get on.
func (r *torture) inflictAll(began time.Time) {
	for n := 0; ; n++ {
		r.progress(50)
		if r.enough(began) {
			return
		}
		if len(r.kinds) == 0 {
			<-time.After(time.Second)
			continue
		}
		<-time.After(time.Duration(r.rnd.IntN(1500)) * time.Millisecond)
		kind := r.kinds[n%len(r.kinds)]
		if n%len(r.kinds) == 0 {
			r.rnd.Shuffle(len(r.kinds), func(i, j int) { r.kinds[i], r.kinds[j] = r.kinds[j], r.kinds[i] })
			kind = r.kinds[0]
		}
		for _, w := range r.workers {
			w.slowest.Store(0)
		}
		what := r.inflict(r.t, tortureFaults()[kind], r.rnd)
		r.faults[kind]++
		ended := time.Now()
		r.progress(5)
		ops, _ := r.operations()
		r.t.Logf("%s fault %d: %s; all went on %v later, the slowest call took %v; %d operations so far", ended.Format("15:04:05.000"), n+1, what,
			time.Since(ended).Round(time.Millisecond), r.slowest().Round(time.Millisecond), ops)
		if r.failed.Load() {
			return
		}
	}
}

func (r *torture) slowest() (most time.Duration) {
	for _, w := range r.workers {
		most = max(most, time.Duration(w.slowest.Load()))
	}
	return most
}

// progress waits until every worker has done some more operations, or one has failed.
func (r *torture) progress(more int64) {
	r.t.Helper()
	var from []int64
	for _, w := range r.workers {
		from = append(from, w.ops.Load())
	}
	err := poll(tortureStall, func() error {
		for i, w := range r.workers {
			if n := w.ops.Load() - from[i]; n < more && !r.failed.Load() {
				return retry("worker %d has done %d operations", i, n)
			}
		}
		return r.alive()
	})
	if err != nil {
		r.stalled(err)
	}
}

// stalled says what every worker waits for, and takes the clients away so that the calls end.
func (r *torture) stalled(why error) {
	r.t.Helper()
	var b strings.Builder
	for _, w := range r.workers {
		if began := w.began.Load(); began != 0 {
			fmt.Fprintf(&b, "  worker %d has waited for %v:\n%s\n", w.index, time.Since(time.Unix(0, began)).Round(time.Millisecond), w.history())
		}
	}
	for _, n := range r.nodes {
		if n.mnt != "" && n.cmd != nil {
			_ = n.cmd.Process.Signal(unix.SIGQUIT) // its stacks are in its log
		}
	}
	r.fail(why)
	r.t.Fatalf("stalled: %v\n%s", why, b.String())
}

// join waits for the workers and tells what they met.
func (r *torture) join() {
	r.t.Helper()
	done := make(chan struct{})
	go func() { r.wait.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(tortureStall):
		r.stalled(errors.New("a worker does not end"))
	}
	for _, err := range r.errs {
		r.t.Error(err)
	}
}

// verifyEverywhere compares every worker's model with what two mounts show: its own and another one.
func (r *torture) verifyEverywhere(when string) {
	r.t.Helper()
	for i, w := range r.workers {
		for _, m := range []int{w.home, (w.home + 1 + i%(len(r.at)-1)) % len(r.at)} {
			if err := w.verifyAll(r.at[m]); err != nil {
				r.t.Errorf("%s: worker %d on mount %d: %v\n%s", when, i, m, err, w.history())
			}
		}
	}
}

// loseEverything goes on for a while, then takes the power away from all servers and ends all clients. What was flushed
// must be there.
func (r *torture) loseEverything() {
	if r.t.Failed() {
		return
	}
	r.stop = make(chan struct{})
	for _, w := range r.workers {
		r.wait.Go(func() {
			if err := w.run(r.stop); err != nil {
				r.fail(err)
			}
		})
	}
	r.progress(100)
	close(r.stop)
	r.join()
	what := r.powerCut(r.t, r.rnd, "mds", "oss0", "oss1")
	m := &mounts{cluster: r.cluster, at: r.at}
	for i := range r.at {
		m.killClient(r.t, i)
	}
	for _, w := range r.workers {
		_ = w.release() // of mounts that are gone
	}
	must(r.t, r.startServers("mds", "oss0", "oss1"))
	m.startClient(r.t, 0)
	checked := 0
	for i, w := range r.workers {
		n, err := w.verifySynced(r.at[0])
		checked += n
		if err != nil {
			r.t.Errorf("after everything had lost its power (%s): worker %d: %v\n%s", what, i, err, w.history())
		}
	}
	r.t.Logf("everything has lost its power: %s; %d flushed files are there", what, checked)
}
