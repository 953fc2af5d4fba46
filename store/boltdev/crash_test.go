package boltdev_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/boltdev"
	"github.com/strakefs/strake/store/storetest"
)

// childEnv names the data folder to a child that the crash test starts and kills.
const childEnv = "BOLTDEV_CRASH_CHILD"

func openCrash(dir string) (*boltdev.Device, error) {
	return boltdev.Open(boltdev.Options{
		Dir: dir, Specs: storetest.Specs(), CommitInterval: 2 * time.Millisecond, TxgMaxOps: 200, Reserve: 1 << 20,
		LockTimeout: 10 * time.Second,
	})
}

// childRuns is the killed process: workers publish for ever, each committed transno goes to the standard output.
func childRuns() bool {
	dir := os.Getenv(childEnv)
	if dir == "" {
		return false
	}
	d, err := openCrash(dir)
	if err != nil {
		fmt.Println("E", err)
		return true
	}
	d.OnCommitted(func(n store.Transno) { fmt.Println("C", uint64(n)) })
	start := uint64(d.Last())
	fmt.Println("C", start)
	for w := range 4 {
		go childWorker(d, fmt.Sprintf("%d-%d", time.Now().UnixNano(), w))
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent, if nobody kills us before
	return true
}

func childWorker(d *boltdev.Device, name string) {
	e, stamp := env.New(), make([]byte, 8)
	for i := 0; ; i++ {
		e.Reset()
		if d.Throttle(context.Background(), false) != nil {
			return
		}
		tx := d.Begin(e)
		tx.Put(storetest.Plain, fmt.Appendf(nil, "%s-%d", name, i), stamp, 0)
		tx.Delta(storetest.Sums, []byte("all"), storetest.Number(1))
		if i%7 == 3 {
			// A name that was made goes again, and its count with it.
			tx.Delete(storetest.Plain, fmt.Appendf(nil, "%s-%d", name, i-2))
			tx.Put(storetest.Tails, fmt.Appendf(nil, "%s-%d", name, i-2), stamp, 0)
		}
		if _, err := d.Publish(tx); err != nil {
			return
		}
	}
}

// TestKilledProcessLeavesAPrefix kills a process at random points. On disk must be exactly the transactions up to some
// transno: the stamps of a start are all the numbers up to it, and it is not below what was reported committed.
func TestKilledProcessLeavesAPrefix(t *testing.T) {
	dir := tempDir(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	total, counted := int64(0), store.Transno(0)
	for round := range rounds {
		reported := killChild(t, dir, time.Duration(rnd.IntN(120))*time.Millisecond)
		d, err := openCrash(dir)
		if err != nil {
			t.Fatal(err)
		}
		last := d.Committed()
		if uint64(last) < reported {
			t.Fatalf("round %d: %#x was reported committed, %#x is", round, reported, uint64(last))
		}
		n := checkStart(t, d, last)
		if start := last >> store.CountBits; start != counted { // else this child was killed before its first commit
			total, counted = total+n, start
		}
		if got, err := d.Get(env.New(), storetest.Sums, []byte("all")); total > 0 && (err != nil || int64(binary.BigEndian.Uint64(got)) != total) {
			t.Fatalf("round %d: %d transactions, the sum is %x: %v", round, total, got, err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d transactions in %d rounds", total, rounds)
}

// checkStart checks the stamps of the start that last belongs to, and returns how many transactions it has.
func checkStart(t *testing.T, d store.Device, last store.Transno) int64 {
	t.Helper()
	const counter = 1<<store.CountBits - 1
	seen := map[uint64]bool{}
	for _, table := range []store.Table{storetest.Plain, storetest.Tails} {
		err := d.Scan(env.New(), table, nil, nil, func(k, v []byte) bool {
			n := binary.BigEndian.Uint64(v)
			if n > uint64(last) {
				t.Fatalf("%s has stamp %#x, committed is %#x", k, n, uint64(last))
			}
			if n>>store.CountBits == uint64(last)>>store.CountBits {
				seen[n&counter] = true
			}
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	// A deletion is made two transactions of its worker later, so each number has its own record or the record of the
	// transaction that deleted it says so: what was deleted is counted by its deleter.
	n := uint64(last) & counter
	missing := 0
	for i := uint64(1); i <= n; i++ {
		if !seen[i] {
			missing++
		}
	}
	deleted := 0
	err := d.Scan(env.New(), storetest.Tails, nil, nil, func(_, v []byte) bool {
		if binary.BigEndian.Uint64(v)>>store.CountBits == uint64(last)>>store.CountBits {
			deleted++
		}
		return true
	})
	if err != nil || missing != deleted {
		t.Fatalf("%d of the transnos up to %#x have no record, %d were deleted: %v", missing, uint64(last), deleted, err)
	}
	return int64(n)
}

// killChild runs a child for a while and kills it. It returns the last transno that the child reported committed.
func killChild(t *testing.T, dir string, after time.Duration) uint64 {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var reported uint64
	var once sync.Once
	var timer *time.Timer
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "E ") {
			t.Fatalf("child: %s", line)
		}
		if _, err := fmt.Sscanf(line, "C %d", &reported); err != nil {
			continue
		}
		once.Do(func() { timer = time.AfterFunc(after, func() { _ = cmd.Process.Kill() }) })
	}
	if timer == nil {
		_ = cmd.Process.Kill()
		t.Fatal("the child did not start")
	}
	_ = cmd.Wait() // it was killed
	return reported
}
