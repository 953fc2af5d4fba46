package storetest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/store"
	"pgregory.net/rapid"
)

func testReopenKeepsAll(t *testing.T, maker Maker) {
	disk, e := maker(t), env.New()
	for round := range 3 {
		d := disk.Open(t, Specs(), Never)
		for i := range round * 100 {
			if got := get(t, d, e, Plain, fmt.Sprintf("%04d", i)); got != "v" {
				t.Fatalf("round %d: key %d: %q", round, i, got)
			}
		}
		for i := range 100 {
			put(t, d, e, fmt.Sprintf("%04d", round*100+i), "v")
		}
		closeDevice(t, d)
	}
}

func testCrashKeepsAPrefix(t *testing.T, maker Maker) {
	disk, e := maker(t), env.New()
	for round := range 5 {
		d := disk.Open(t, Specs(), Never)
		for i := range 20 {
			put(t, d, e, fmt.Sprintf("%d-%02d", round, i), "v")
			if i == round*4 {
				commit(t, d)
			}
		}
		disk.Crash(t)
		d = disk.Open(t, Specs(), Never)
		got := scanAll(t, d, e, span{Plain, fmt.Appendf(nil, "%d-", round), nil})
		for i := range got {
			if got[i] != fmt.Sprintf("%d-%02d=v", round, i) {
				t.Fatalf("no prefix: %q", got)
			}
		}
		if len(got) < round*4+1 {
			t.Fatalf("%d were committed, %d are there", round*4+1, len(got))
		}
		closeDevice(t, d)
	}
}

func testStartCount(t *testing.T, maker Maker) {
	disk, e := maker(t), env.New()
	var last store.Transno
	for round := range 4 {
		d := disk.Open(t, Specs(), Never)
		n := put(t, d, e, "k", "v")
		if n <= last {
			t.Fatalf("round %d: transno %#x after %#x", round, n, last)
		}
		// What a crash takes along is not given again.
		for range 10 {
			last = put(t, d, e, "k", "v")
		}
		disk.Crash(t)
	}
}

func testStopped(t *testing.T, maker Maker) {
	d, e := maker(t).Open(t, Specs(), Never), env.New()
	n := put(t, d, e, "k", "v")
	wait := make(chan error)
	go func() { wait <- d.WaitCommitted(context.Background(), n+1) }()
	id := fid.ObjectID{ID: 1}
	if err := d.Objects().Create([]fid.ObjectID{id}); err != nil {
		t.Fatal(err)
	}
	closeDevice(t, d)
	closeDevice(t, d)
	_, getErr := d.Get(e, Plain, []byte("k"))
	_, publishErr := d.Publish(d.Begin(e))
	_, openErr := d.Objects().Open(id)
	_, statErr := d.Statfs()
	for i, err := range []error{
		<-wait, d.Err(), getErr, publishErr, openErr, statErr, d.Throttle(context.Background(), true),
		d.Scan(e, Plain, nil, nil, func(_, _ []byte) bool { return true }), d.Objects().Create([]fid.ObjectID{id}),
		d.Objects().Remove(id), d.Objects().Flush(context.Background()), d.WaitCommitted(context.Background(), n+1),
	} {
		if !errors.Is(err, store.ErrStopped) {
			t.Errorf("call %d after Close: %v", i, err)
		}
	}
	if err := d.WaitCommitted(context.Background(), n); err != nil {
		t.Errorf("it was committed: %v", err)
	}
}

// model is the plain maps that a device must equal.
type model []map[string]string

func newModel() model { return model{{}, {}, {}} }

func (m model) clone() model {
	c := model{}
	for _, t := range m {
		c = append(c, maps.Clone(t))
	}
	return c
}

func (m model) apply(steps []store.Step) {
	specs := Specs()
	for _, s := range steps {
		t := m[s.Table]
		switch s.Kind {
		case store.Put:
			t[string(s.Key)] = string(s.Value)
		case store.Delete:
			delete(t, string(s.Key))
		case store.Delta:
			var base []byte
			if v, ok := t[string(s.Key)]; ok {
				base = []byte(v)
			}
			if v := specs[s.Table].Merger.Apply(nil, base, s.Value); len(v) > 0 {
				t[string(s.Key)] = string(v)
			} else {
				delete(t, string(s.Key))
			}
		}
	}
}

// list is what a scan of the range gives.
func (m model) list(t store.Table, from, to string) []string {
	var l []string
	for _, k := range slices.Sorted(maps.Keys(m[t])) {
		if k >= from && (to == "" || k < to) {
			l = append(l, k+"="+m[t][k])
		}
	}
	return l
}

// drawTx draws a transaction over few keys, so that they meet.
func drawTx(r *rapid.T, tx *store.Tx) {
	for range rapid.IntRange(1, 6).Draw(r, "steps") {
		table := store.Table(rapid.IntRange(0, 2).Draw(r, "table"))
		key := []byte(rapid.StringMatching(`[a-c]{1,3}`).Draw(r, "key"))
		kind := rapid.SampledFrom([]string{"put", "delete", "delta", "delta"}).Draw(r, "kind")
		value := []byte(rapid.StringMatching(`[x-z0-9]{0,9}`).Draw(r, "value"))
		if table == Sums {
			value = Number(rapid.Int64Range(-2, 2).Draw(r, "number"))
		}
		switch {
		case kind == "delete":
			tx.Delete(table, key)
		case kind == "delta" && table != Plain && len(value) > 0:
			tx.Delta(table, key, value)
		default:
			tx.Put(table, key, value)
		}
	}
}

// testModel does random transactions, commits, crashes and restarts, and compares with a model after each. After a
// crash the device equals the model at some transno, not below the last that was waited for.
func testModel(t *testing.T, maker Maker) {
	rapid.Check(t, func(r *rapid.T) {
		disk, e := maker(t), env.New()
		d := disk.Open(t, Specs(), Never)
		now, states, sure := newModel(), []model{newModel()}, 0
		check := func() {
			for table := range Specs() {
				from := rapid.StringMatching(`[a-c]{0,2}`).Draw(r, "from")
				to := rapid.StringMatching(`[a-c]{0,2}`).Draw(r, "to")
				var end []byte
				if to != "" {
					end = []byte(to)
				}
				got, want := scanAll(t, d, e, span{store.Table(table), []byte(from), end}), now.list(store.Table(table), from, to)
				if !slices.Equal(got, want) {
					r.Fatalf("table %d [%q,%q):\n got %q\nwant %q", table, from, to, got, want)
				}
				key := rapid.StringMatching(`[a-c]{1,3}`).Draw(r, "probe")
				value, ok := now[table][key]
				if !ok {
					value = "<none>"
				}
				if got := get(t, d, e, store.Table(table), key); got != value {
					r.Fatalf("table %d %q: got %q, want %q", table, key, got, value)
				}
			}
		}
		for range rapid.IntRange(1, 25).Draw(r, "rounds") {
			e.Reset()
			switch rapid.SampledFrom([]string{"tx", "tx", "tx", "tx", "tx", "commit", "hasten", "close", "crash"}).Draw(r, "do") {
			case "tx":
				tx := d.Begin(e)
				drawTx(r, tx)
				now.apply(tx.Steps)
				if _, err := d.Publish(tx); err != nil {
					r.Fatal(err)
				}
				states = append(states, now.clone())
			case "commit":
				commit(t, d)
				sure = len(states) - 1
			case "hasten":
				d.Hasten(d.Last())
			case "close":
				closeDevice(t, d)
				d = disk.Open(t, Specs(), Never)
				sure = len(states) - 1
			case "crash":
				disk.Crash(t)
				d = disk.Open(t, Specs(), Never)
				at := matching(t, d, e, states[sure:])
				if at < 0 {
					r.Fatalf("after a crash: none of %d states from the committed one on", len(states)-sure)
				}
				states = states[:sure+at+1]
				now, sure = states[len(states)-1].clone(), len(states)-1
			}
			check()
		}
		closeDevice(t, d)
	})
}

// matching returns the last of the states that the device is in, -1 if none.
func matching(t testing.TB, d store.Device, e *env.Env, states []model) int {
	for i := len(states) - 1; i >= 0; i-- {
		same := true
		for table := range Specs() {
			same = same && slices.Equal(scanAll(t, d, e, span{table: store.Table(table)}), states[i].list(store.Table(table), "", ""))
		}
		if same {
			return i
		}
	}
	return -1
}

// testParallelPublish lets many operations create names in one folder at once while txgs come and go, and crashes: what
// is there must be every transaction up to one transno. So no transno of a txg was above one of the next.
func testParallelPublish(t *testing.T, maker Maker) {
	disk := maker(t)
	for round := range 4 {
		d := disk.Open(t, Specs(), time.Millisecond)
		var mu sync.Mutex
		var sure store.Transno
		given := map[store.Transno]string{}
		d.OnCommitted(func(n store.Transno) { mu.Lock(); sure = n; mu.Unlock() })
		ctx, cancel := context.WithTimeout(context.Background(), 150*time.Millisecond)
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				e := env.New()
				for i := 0; ctx.Err() == nil; i++ {
					e.Reset()
					if d.Throttle(ctx, false) != nil {
						return
					}
					tx := d.Begin(e)
					name := fmt.Appendf(nil, "%d/%d/%d", round, w, i)
					stamp := make([]byte, 8)
					tx.Put(Plain, name, stamp, 0)
					tx.Delta(Sums, fmt.Appendf(nil, "folder%d", round), Number(1))
					n, err := d.Publish(tx)
					if err != nil {
						return
					}
					mu.Lock()
					given[n] = string(name)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		cancel()
		disk.Crash(t)
		mu.Lock() // the last callback may be running still
		told := sure
		mu.Unlock()
		d = disk.Open(t, Specs(), Never)
		checkPrefix(t, d, round, given, told)
		closeDevice(t, d)
	}
}

func checkPrefix(t *testing.T, d store.Device, round int, given map[store.Transno]string, sure store.Transno) {
	t.Helper()
	e, last := env.New(), d.Committed()
	if last < sure {
		t.Fatalf("%#x was told to be committed, %#x is", sure, last)
	}
	n := int64(0)
	for transno, name := range given {
		want := "<none>"
		if transno <= last {
			want = string(Number(int64(transno)))
			n++
		}
		if got := get(t, d, e, Plain, name); got != want {
			t.Fatalf("committed %#x: %s of %#x is %x", last, name, transno, got)
		}
		e.Reset()
	}
	if got := get(t, d, e, Sums, fmt.Sprintf("folder%d", round)); n > 0 && got != string(Number(n)) {
		t.Fatalf("%d entries, the folder says %x", n, got)
	}
	t.Logf("%d of %d transactions committed", n, len(given))
}

// testParallelDeltas adds to few sums from many goroutines over many commits while others read them: sums never go
// back, and end right.
func testParallelDeltas(t *testing.T, maker Maker) {
	disk := maker(t)
	d := disk.Open(t, Specs(), time.Millisecond)
	const workers, each = 6, 1500
	var wg, readers sync.WaitGroup
	done := make(chan struct{})
	for w := range workers {
		wg.Go(func() {
			e := env.New()
			for i := range each {
				e.Reset()
				publish(t, d, e, func(tx *store.Tx) { tx.Delta(Sums, []byte{'k', byte((w + i) % 3)}, Number(1)) })
			}
		})
	}
	for k := range byte(3) {
		readers.Go(func() {
			e, last := env.New(), ""
			for {
				select {
				case <-done:
					return
				default:
					runtime.Gosched() // a device with one lock would be kept busy by us alone
				}
				e.Reset()
				v, err := d.Get(e, Sums, []byte{'k', k})
				if err != nil && !errors.Is(err, store.ErrNotFound) || string(v) < last {
					t.Errorf("%x after %x: %v", v, last, err)
					return
				}
				last = string(v)
				err = d.Scan(e, Sums, []byte{'k', k}, []byte{'k', k + 1}, func(_, v []byte) bool {
					if string(v) < last {
						t.Errorf("scan: %x after %x", v, last)
					}
					last = string(v)
					return true
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	close(done)
	readers.Wait()
	for range 2 {
		e := env.New()
		for k := range byte(3) {
			if got := get(t, d, e, Sums, string([]byte{'k', k})); got != string(Number(workers*each/3)) {
				t.Fatalf("sum %d: %x, want %d", k, got, workers*each/3)
			}
		}
		closeDevice(t, d)
		d = disk.Open(t, Specs(), Never)
	}
	closeDevice(t, d)
}
