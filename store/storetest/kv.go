package storetest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/store"
)

func testPutGetDelete(t *testing.T, maker Maker) {
	d, e := maker(t).Open(t, Specs(), Never), env.New()
	defer closeDevice(t, d)
	for _, committed := range []bool{false, true} {
		key := fmt.Sprint("k", committed)
		check := func(want string) {
			t.Helper()
			if committed {
				commit(t, d)
			}
			if got := get(t, d, e, Plain, key); got != want {
				t.Fatalf("committed %v: %q, want %q", committed, got, want)
			}
			if got := get(t, d, e, Tails, key); got != "<none>" {
				t.Fatalf("other table: %q", got)
			}
		}
		check("<none>")
		put(t, d, e, key, "one")
		check("one")
		put(t, d, e, key, "")
		check("")
		put(t, d, e, key, strings.Repeat("x", 100_000))
		check(strings.Repeat("x", 100_000))
		publish(t, d, e, func(tx *store.Tx) { tx.Delete(Plain, []byte(key)) })
		check("<none>")
		publish(t, d, e, func(tx *store.Tx) { tx.Delete(Plain, []byte(key)) })
		check("<none>")
		publish(t, d, e, func(tx *store.Tx) {
			tx.Put(Plain, []byte(key), []byte("a"))
			tx.Delete(Plain, []byte(key))
			tx.Put(Plain, []byte(key), []byte("b"))
		})
		check("b")
	}
}

// span is the keys [from, to) of a table; a nil to is its end.
type span struct {
	table    store.Table
	from, to []byte
}

// scanAll returns "key=value" of a span.
func scanAll(t testing.TB, d store.Device, e *env.Env, s span) []string {
	t.Helper()
	var got []string
	err := d.Scan(e, s.table, s.from, s.to, func(k, v []byte) bool {
		got = append(got, string(k)+"="+string(v))
		return true
	})
	if err != nil {
		t.Fatalf("scan: %v", err)
	}
	return got
}

func testScanBounds(t *testing.T, maker Maker) {
	d, e := maker(t).Open(t, Specs(), Never), env.New()
	defer closeDevice(t, d)
	if got := scanAll(t, d, e, span{table: Plain}); got != nil {
		t.Fatalf("empty table: %q", got)
	}
	// Every second key is on disk, every third is deleted above it.
	var want []string
	for i := 0; i < 400; i += 2 {
		put(t, d, e, fmt.Sprintf("%04d", i), "disk")
	}
	commit(t, d)
	for i := range 400 {
		key := fmt.Sprintf("%04d", i)
		switch {
		case i%3 == 0:
			publish(t, d, e, func(tx *store.Tx) { tx.Delete(Plain, []byte(key)) })
			continue
		case i%2 == 1:
			put(t, d, e, key, "new")
			want = append(want, key+"=new")
		default:
			want = append(want, key+"=disk")
		}
	}
	b := func(s string) []byte {
		if s == "" {
			return nil
		}
		return []byte(s)
	}
	for _, c := range [][2]string{{"", ""}, {"0100", ""}, {"", "0100"}, {"0100", "0200"}, {"01005", "0199"}, {"9", ""}, {"0200", "0100"}, {"0398", "0399"}} {
		var part []string
		for _, w := range want {
			if w[:4] >= c[0] && (c[1] == "" || w[:4] < c[1]) {
				part = append(part, w)
			}
		}
		if got := scanAll(t, d, e, span{Plain, b(c[0]), b(c[1])}); !slices.Equal(got, part) {
			t.Fatalf("range %q: %d keys, want %d\n%q\n%q", c, len(got), len(part), got, part)
		}
	}
	n := 0
	if err := d.Scan(e, Plain, nil, nil, func(_, _ []byte) bool { n++; return n < 7 }); err != nil || n != 7 {
		t.Fatalf("stopped scan: %d %v", n, err)
	}
}

func testScanInScan(t *testing.T, maker Maker) {
	d, e := maker(t).Open(t, Specs(), Never), env.New()
	defer closeDevice(t, d)
	for i := range 20 {
		publish(t, d, e, func(tx *store.Tx) { tx.Delta(Sums, fmt.Appendf(nil, "%02d", i), Number(int64(i+1))) })
		if i == 10 {
			commit(t, d)
		}
		publish(t, d, e, func(tx *store.Tx) { tx.Delta(Sums, fmt.Appendf(nil, "%02d", i), Number(100)) })
	}
	i, inner := 0, 0
	err := d.Scan(e, Sums, nil, nil, func(k, v []byte) bool {
		_ = d.Scan(e, Sums, nil, nil, func(_, _ []byte) bool { inner++; return true })
		other := get(t, d, e, Sums, fmt.Sprintf("%02d", (i+7)%20))
		if string(k) != fmt.Sprintf("%02d", i) || binary.BigEndian.Uint64(v) != uint64(101+i) || len(other) != 8 {
			t.Fatalf("%q %x at %d", k, v, i)
		}
		i++
		return true
	})
	if err != nil || i != 20 || inner != 400 {
		t.Fatalf("%v: %d, %d", err, i, inner)
	}
}

func testDeltas(t *testing.T, maker Maker) {
	for mask := range 1 << 5 { // where commits come between
		d, e := maker(t).Open(t, Specs(), Never), env.New()
		step := 0
		check := func(key string, table store.Table, want string) {
			t.Helper()
			if mask>>step&1 == 1 {
				commit(t, d)
			}
			step++
			if got := get(t, d, e, table, key); got != want {
				t.Fatalf("commits %05b, step %d: %q, want %q", mask, step, got, want)
			}
		}
		delta := func(s string) {
			publish(t, d, e, func(tx *store.Tx) { tx.Delta(Tails, []byte("k"), []byte(s)) })
		}
		delta("ab")
		check("k", Tails, "ab")
		delta("cd")
		check("k", Tails, "abcd")
		publish(t, d, e, func(tx *store.Tx) {
			tx.Put(Tails, []byte("k"), []byte("0123456789"))
			tx.Delta(Tails, []byte("k"), []byte("ef"))
			tx.Delta(Sums, []byte("s"), Number(5))
		})
		check("k", Tails, "0123456789ef")
		delta("ghijkl")
		check("k", Tails, "23456789efghijkl")
		publish(t, d, e, func(tx *store.Tx) { tx.Delta(Sums, []byte("s"), Number(-5)) })
		check("s", Sums, "<none>")
		if got := scanAll(t, d, e, span{table: Sums}); got != nil {
			t.Fatalf("removed by a delta, and scanned: %q", got)
		}
		closeDevice(t, d)
	}
}

func testStamps(t *testing.T, maker Maker) {
	d, e := maker(t).Open(t, Specs(), Never), env.New()
	defer closeDevice(t, d)
	value := make([]byte, 30)
	n := publish(t, d, e, func(tx *store.Tx) { tx.Put(Plain, []byte("k"), value, 2, 20) })
	clear(value)
	got := []byte(get(t, d, e, Plain, "k"))
	if binary.BigEndian.Uint64(got[2:]) != uint64(n) || binary.BigEndian.Uint64(got[20:]) != uint64(n) || got[10] != 0 {
		t.Fatalf("%x without %x", got, n)
	}
	delta := make([]byte, 8)
	n = publish(t, d, e, func(tx *store.Tx) { tx.Delta(Tails, []byte("k"), delta, 0) })
	if got := []byte(get(t, d, e, Tails, "k")); binary.BigEndian.Uint64(got) != uint64(n) {
		t.Fatalf("%x without %x", got, n)
	}
}

func testReplayOrder(t *testing.T, maker Maker) {
	disk := maker(t)
	d, e := disk.Open(t, Specs(), Never), env.New()
	first := put(t, d, e, "k", "before")
	closeDevice(t, d)
	d = disk.Open(t, Specs(), Never)
	defer closeDevice(t, d)
	replay := func(n store.Transno) (store.Transno, error) {
		e.Reset()
		tx := d.Begin(e)
		tx.Put(Plain, fmt.Append(nil, n), make([]byte, 8), 0)
		tx.Replay = n
		return d.Publish(tx)
	}
	last := first
	for _, n := range []store.Transno{first + 5, first + 9, first + 10} {
		got, err := replay(n)
		if err != nil || got <= last || got>>store.CountBits == first>>store.CountBits || got != d.Last() {
			t.Fatalf("replay %#x: %#x after %#x, last is %#x: %v", n, got, last, d.Last(), err)
		}
		if v := get(t, d, e, Plain, fmt.Sprint(n)); binary.BigEndian.Uint64([]byte(v)) != uint64(n) {
			t.Fatalf("replay %#x: stamp %x", n, v)
		}
		// A new transaction between two replays keeps none out.
		if last = put(t, d, e, "k", "v"); last != got+1 {
			t.Fatalf("%#x after %#x", last, got)
		}
	}
	for _, n := range []store.Transno{first + 7, first + 10} {
		if _, err := replay(n); !errors.Is(err, store.ErrOrder) {
			t.Fatalf("replay %#x after %#x: %v", n, first+10, err)
		}
	}
	if got := get(t, d, e, Plain, fmt.Sprint(first+7)); got != "<none>" {
		t.Fatalf("refused, and there: %q", got)
	}
	commit(t, d)
	if c := d.Committed(); c != last {
		t.Fatalf("committed %#x, last %#x", c, last)
	}
}

func testTransactionAppearsWhole(t *testing.T, maker Maker) {
	d := maker(t).Open(t, Specs(), 2*time.Millisecond)
	defer closeDevice(t, d)
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	wg.Go(func() {
		e := env.New()
		for i := 1; ctx.Err() == nil; i++ {
			publish(t, d, e, func(tx *store.Tx) {
				tx.Put(Plain, []byte("a"), Number(int64(i)))
				tx.Delta(Sums, []byte("b"), Number(1))
				tx.Put(Plain, []byte("c"), Number(int64(i)))
			})
		}
	})
	for range 2 {
		wg.Go(func() {
			e := env.New()
			number := func(table store.Table, key string) uint64 {
				e.Reset()
				v, err := d.Get(e, table, []byte(key))
				if err != nil {
					return 0
				}
				return binary.BigEndian.Uint64(v)
			}
			for ctx.Err() == nil {
				// What is read later is not older.
				a := number(Plain, "a")
				b := number(Sums, "b")
				c := number(Plain, "c")
				a2 := number(Plain, "a")
				if a > b || b > c || c > a2 {
					t.Errorf("torn: %d %d %d %d", a, b, c, a2)
					return
				}
			}
		})
	}
	wg.Wait()
}

func testCommitCallbacks(t *testing.T, maker Maker) {
	d, e := maker(t).Open(t, Specs(), Never), env.New()
	var mu sync.Mutex
	var told []store.Transno
	d.OnCommitted(func(n store.Transno) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, n)
		d.Hasten(n)
	})
	var last store.Transno
	for i := range 50 {
		last = put(t, d, e, fmt.Sprint(i), "v")
		if i%5 == 0 {
			commit(t, d)
			if c := d.Committed(); c < last {
				t.Fatalf("committed %#x after waiting for %#x", c, last)
			}
		}
	}
	closeDevice(t, d)
	if !slices.IsSorted(told) || told[len(told)-1] != last || len(slices.Compact(told)) != len(told) {
		t.Fatalf("told %#x, last %#x", told, last)
	}
}

func testWaitEndsWithContext(t *testing.T, maker Maker) {
	d, e := maker(t).Open(t, Specs(), Never), env.New()
	defer closeDevice(t, d)
	n := put(t, d, e, "k", "v")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := d.WaitCommitted(ctx, n+1000); !errors.Is(err, context.Canceled) {
		t.Fatalf("waited for a transno that nobody has: %v", err)
	}
	if err := d.Throttle(ctx, false); !errors.Is(err, context.Canceled) {
		t.Fatalf("throttle: %v", err)
	}
	if err := d.Throttle(context.Background(), false); err != nil {
		t.Fatalf("throttle: %v", err)
	}
}

func testTimerCommits(t *testing.T, maker Maker) {
	d, e := maker(t).Open(t, Specs(), 5*time.Millisecond), env.New()
	defer closeDevice(t, d)
	told := make(chan store.Transno, 10)
	d.OnCommitted(func(n store.Transno) { told <- n })
	n := put(t, d, e, "k", "v")
	select {
	case got := <-told:
		if got != n {
			t.Fatalf("committed %#x, want %#x", got, n)
		}
	case <-time.After(time.Minute):
		t.Fatal("no commit by the timer")
	}
}
