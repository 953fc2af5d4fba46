package forgetfs_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/server/forgetfs"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/boltdev"
	"github.com/strakefs/strake/store/storetest"
	"golang.org/x/sys/unix"
)

// storeEnv names the data folder to a child that keeps a device busy until it is killed.
const storeEnv = "FORGETFS_STORE_CHILD"

func openStore(dir string, interval time.Duration) (*boltdev.Device, error) {
	return boltdev.Open(boltdev.Options{
		Dir: dir, Specs: storetest.Specs(), CommitInterval: interval, TxgMaxOps: 200, Reserve: 1 << 20,
		Label: store.Label{FSName: "strake", Kind: store.KindOST}, LockTimeout: 10 * time.Second,
	})
}

// objectOf is the object that worker w writes: records of 8 bytes, the i-th holds i+1.
func objectOf(w int) fid.ObjectID { return fid.ObjectID{Group: 7, ID: uint64(w) + 1} }

const storeWorkers = 8 // more than the device flushes one by one where syncfs works

// storeChild publishes and writes until it is killed, and tells what is on disk: "C transno" after a commit, "F worker
// records" after a flush.
func storeChild() bool {
	dir := os.Getenv(storeEnv)
	if dir == "" {
		return false
	}
	d, err := openStore(dir, 2*time.Millisecond)
	if err != nil {
		fmt.Println("E", err)
		return true
	}
	d.OnCommitted(func(n store.Transno) { fmt.Println("C", uint64(n)) })
	fmt.Println("C", uint64(d.Last()))
	for w := range storeWorkers {
		go childPublishes(d, w)
		go childWrites(d, w)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return true
}

// childPublishes puts one record a transaction, with its transno as the value, and counts it.
func childPublishes(d *boltdev.Device, w int) {
	e, stamp := env.New(), make([]byte, 8)
	for i := uint64(d.Last()) << 8; ; i++ {
		e.Reset()
		if d.Throttle(context.Background(), false) != nil {
			return
		}
		tx := d.Begin(e)
		tx.Put(storetest.Plain, fmt.Appendf(nil, "%d-%d", w, i), stamp, 0)
		tx.Delta(storetest.Sums, []byte("all"), storetest.Number(1))
		if _, err := d.Publish(tx); err != nil {
			return
		}
	}
}

// childWrites goes on behind the records that the worker's object has, with a flush now and then.
func childWrites(d *boltdev.Device, w int) {
	if err := d.Objects().Create([]fid.ObjectID{objectOf(w)}); err != nil {
		return
	}
	o, err := d.Objects().Open(objectOf(w))
	if err != nil {
		return
	}
	size, _, err := o.Stat()
	for n := size / 8; err == nil; n++ {
		if err = o.WriteAt(binary.BigEndian.AppendUint64(nil, uint64(n)+1), n*8); err != nil {
			return
		}
		switch n % 64 {
		case 31:
			err = d.Objects().Flush(context.Background())
		case 63:
			err = o.Sync()
		default:
			continue
		}
		if err == nil {
			fmt.Println("F", w, n+1)
		}
	}
}

// told is what a child has told before it died.
type told struct {
	committed uint64
	flushed   [storeWorkers]int64
}

// runChild runs a child for a while, then takes its disk's power away and kills it.
func runChild(t *testing.T, d *forgetfs.Disk, after time.Duration) (got told) {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), storeEnv+"="+filepath.Join(d.Dir, "store"))
	stdin, err := cmd.StdinPipe()
	must(t, err)
	defer stdin.Close()
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	var once sync.Once
	cut := make(chan error, 1)
	began := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(line, "E ") {
			t.Fatalf("child: %s", line)
		}
		var w int
		var n int64
		if _, err := fmt.Sscanf(line, "F %d %d", &w, &n); err == nil {
			got.flushed[w] = max(got.flushed[w], n)
		} else if _, err := fmt.Sscanf(line, "C %d", &got.committed); err != nil {
			t.Fatalf("child: %s", line)
		}
		once.Do(func() {
			began = true
			time.AfterFunc(after, func() { cut <- errors.Join(d.Off(), cmd.Process.Kill()) })
		})
	}
	if !began {
		_ = cmd.Process.Kill()
		t.Fatal("the child did not start")
	}
	must(t, <-cut)
	_ = cmd.Wait() // it was killed
	return got
}

// TestStorePowerCuts runs a busy device again and again, takes the power away at a random moment, and keeps a random part
// of what was not flushed. What the device had told to be on disk is there, and its tables hold all transactions up to
// one of them and no other.
func TestStorePowerCuts(t *testing.T) {
	d := newDisk(t)
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(uint64(seed), 0))
	rounds := 15
	if os.Getenv("STRAKE_SOAK") == "1" {
		rounds = 2000
	}
	var whole told // over all rounds
	total, counted := int64(0), store.Transno(0)
	for round := range rounds {
		got := runChild(t, d, time.Duration(rnd.IntN(100))*time.Millisecond)
		for w, n := range got.flushed {
			whole.flushed[w] = max(whole.flushed[w], n)
		}
		if grain := []int{0, 8, 64, 512, 4096}[round%5]; grain == 0 {
			must(t, d.Forget())
		} else {
			must(t, d.Tear(rnd.Int64(), grain))
		}
		dev, err := openStore(filepath.Join(d.Dir, "store"), time.Hour)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		last := dev.Committed()
		if uint64(last) < got.committed {
			t.Fatalf("round %d: %#x was told to be committed, %#x is", round, got.committed, uint64(last))
		}
		if last>>store.CountBits != counted { // else this child died before its first commit
			counted = last >> store.CountBits
			total += int64(last & (1<<store.CountBits - 1))
		}
		checkTables(t, dev, total)
		checkObjects(t, dev, &whole)
		must(t, dev.Close())
	}
	t.Logf("%d transactions, %v records", total, whole.flushed)
}

// checkTables checks that there are as many records and as high a sum as transactions.
func checkTables(t *testing.T, d store.Device, total int64) {
	t.Helper()
	records := int64(0)
	must(t, d.Scan(env.New(), storetest.Plain, nil, nil, func(_, _ []byte) bool { records++; return true }))
	sum := int64(0)
	if b, err := d.Get(env.New(), storetest.Sums, []byte("all")); err == nil {
		sum = int64(binary.BigEndian.Uint64(b))
	} else if !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	if records != total || sum != total {
		t.Fatalf("%d transactions are committed, there are %d records, and the sum is %d", total, records, sum)
	}
}

// checkObjects checks the records that a flush has kept, and cuts what lies behind them off: it may be torn.
func checkObjects(t *testing.T, d store.Device, whole *told) {
	t.Helper()
	for w, n := range whole.flushed {
		o, err := d.Objects().Open(objectOf(w))
		if errors.Is(err, store.ErrNotFound) && n == 0 {
			continue
		}
		must(t, err)
		b := make([]byte, n*8)
		k, err := o.ReadAt(b, 0)
		if err != nil || k != len(b) {
			t.Fatalf("object of worker %d: %d of %d flushed bytes: %v", w, k, len(b), err)
		}
		for i := range n {
			if got := binary.BigEndian.Uint64(b[i*8:]); got != uint64(i)+1 {
				t.Fatalf("object of worker %d: record %d of %d flushed ones holds %d", w, i, n, got)
			}
		}
		must(t, o.Truncate(n*8))
		must(t, o.Sync())
		must(t, o.Close())
	}
}

// mark commits a value and returns the commit's error.
func mark(d *boltdev.Device, value string) error {
	e := env.New()
	if err := d.Throttle(context.Background(), false); err != nil {
		return err
	}
	tx := d.Begin(e)
	tx.Put(storetest.Plain, []byte("mark"), []byte(value))
	// Some more pages, so that a commit writes several.
	for i := range 50 {
		tx.Put(storetest.Plain, fmt.Appendf(nil, "%s-%d", value, i), bytes.Repeat([]byte("v"), 300))
	}
	n, err := d.Publish(tx)
	if err != nil {
		return err
	}
	return d.WaitCommitted(context.Background(), n)
}

// marked reads the value, and checks that all else of its transaction is there.
func marked(t *testing.T, d *boltdev.Device) string {
	t.Helper()
	b, err := d.Get(env.New(), storetest.Plain, []byte("mark"))
	must(t, err)
	value := string(b)
	for i := range 50 {
		if _, err := d.Get(env.New(), storetest.Plain, fmt.Appendf(nil, "%s-%d", value, i)); err != nil {
			t.Fatalf("record %d of %s: %v", i, value, err)
		}
	}
	return value
}

// stopped checks that a device answers nothing any more.
func stopped(t *testing.T, d *boltdev.Device) {
	t.Helper()
	if !errors.Is(d.Err(), store.ErrStopped) {
		t.Fatalf("the device has not stopped: %v", d.Err())
	}
	_, err := d.Get(env.New(), storetest.Plain, []byte("mark"))
	tx := d.Begin(env.New())
	tx.Put(storetest.Plain, []byte("more"), nil)
	_, err2 := d.Publish(tx)
	_, err3 := d.Objects().Open(objectOf(0))
	for what, err := range map[string]error{"get": err, "publish": err2, "open": err3} {
		if !errors.Is(err, store.ErrStopped) {
			t.Errorf("%s of a stopped device: %v", what, err)
		}
	}
}

// tornMetas counts the meta pages of a database (its first two pages) that have no valid checksum: bytes 16 to 72 are
// summed with FNV-1a, the sum is in the 8 bytes behind.
func tornMetas(t *testing.T, path string) (torn int) {
	t.Helper()
	b := make([]byte, 8192)
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	_, err = io.ReadFull(f, b)
	must(t, err)
	for _, page := range [][]byte{b[:4096], b[4096:]} {
		h := uint64(14695981039346656037)
		for _, c := range page[16:72] {
			h = (h ^ uint64(c)) * 1099511628211
		}
		if h != binary.LittleEndian.Uint64(page[72:80]) {
			torn++
		}
	}
	return torn
}

// TestTornLastPageOfTheDatabase: the power goes while the page that ends a commit is on its way, and pieces of 8 bytes of it
// reach the disk. The device opens with the commit or without it.
func TestTornLastPageOfTheDatabase(t *testing.T) {
	d := newDisk(t)
	dir := filepath.Join(d.Dir, "store")
	torn, kept, last := 0, 0, "start"
	for round := range 40 {
		dev, err := openStore(dir, time.Hour)
		must(t, err)
		if round > 0 {
			got := marked(t, dev)
			if next := fmt.Sprint("lost ", round-1); got == next {
				kept++
			} else if got != last {
				t.Fatalf("round %d: %q is there, %q was committed", round, got, last)
			}
		}
		last = fmt.Sprint("kept ", round)
		must(t, mark(dev, last))
		must(t, d.OffAt("meta.db", 2)) // the first flush is that of the pages, the second that of the meta page
		if err := mark(dev, fmt.Sprint("lost ", round)); !errors.Is(err, store.ErrStopped) {
			t.Fatalf("round %d: a commit without power: %v", round, err)
		}
		stopped(t, dev)
		if err := dev.Close(); !errors.Is(err, unix.EIO) {
			t.Fatalf("round %d: close: %v", round, err)
		}
		must(t, d.Tear(int64(round), 8))
		torn += tornMetas(t, filepath.Join(dir, "meta.db"))
	}
	t.Logf("%d meta pages were torn, %d commits that nobody was told of are there", torn, kept)
	if torn == 0 || kept == 0 {
		t.Error("no meta page was torn, or none was whole")
	}
}

// TestErrorOfTheDiskAtCommit: a flush that fails with EIO stops the device. When the target is started again, without a loss
// of power, what the failed commit wrote is not built upon: the next loss of power leaves a sound database.
func TestErrorOfTheDiskAtCommit(t *testing.T) {
	for flush := 1; flush <= 2; flush++ {
		t.Run(fmt.Sprint("flush ", flush), func(t *testing.T) {
			d := newDisk(t)
			dir := filepath.Join(d.Dir, "store")
			dev, err := openStore(dir, time.Hour)
			must(t, err)
			must(t, mark(dev, "first"))
			must(t, d.Fail("fsync", "meta.db", flush-1, 1))
			if err := mark(dev, "second"); !errors.Is(err, store.ErrStopped) || !errors.Is(err, unix.EIO) {
				t.Fatalf("commit: %v", err)
			}
			stopped(t, dev)
			if err := dev.Close(); !errors.Is(err, unix.EIO) {
				t.Fatalf("close: %v", err)
			}
			must(t, d.Heal())
			dev, err = openStore(dir, time.Hour)
			must(t, err)
			if got := marked(t, dev); got != "first" {
				t.Fatalf("%q is there", got)
			}
			must(t, mark(dev, "third"))
			must(t, d.Forget())
			_ = dev.Close() // its disk is gone
			dev, err = openStore(dir, time.Hour)
			must(t, err)
			if got := marked(t, dev); got != "third" {
				t.Errorf("%q is there", got)
			}
			must(t, dev.Close())
		})
	}
}

// TestErrorOfTheDiskAtFlush: the same for objects.
func TestErrorOfTheDiskAtFlush(t *testing.T) {
	d := newDisk(t)
	dir := filepath.Join(d.Dir, "store")
	dev, err := openStore(dir, time.Hour)
	must(t, err)
	must(t, dev.Objects().Create([]fid.ObjectID{objectOf(0), objectOf(1)}))
	must(t, dev.Objects().Flush(context.Background()))
	o, err := dev.Objects().Open(objectOf(0))
	must(t, err)
	must(t, o.WriteAt([]byte("data"), 0))
	must(t, d.Fail("fsync", "1", 0, 1))
	if err := dev.Objects().Flush(context.Background()); !errors.Is(err, store.ErrStopped) || !errors.Is(err, unix.EIO) {
		t.Fatalf("flush: %v", err)
	}
	if err := o.WriteAt([]byte("more"), 4); !errors.Is(err, store.ErrStopped) {
		t.Errorf("write to a stopped device: %v", err)
	}
	if err := dev.Close(); !errors.Is(err, unix.EIO) {
		t.Errorf("close: %v", err)
	}
	must(t, d.Forget())
	dev, err = openStore(dir, time.Hour)
	must(t, err)
	must(t, dev.Close())
}

// TestDiskFullDuringCommit: the disk has no room although the device thought so. It stops, and has the commits of before
// when there is room again.
func TestDiskFullDuringCommit(t *testing.T) {
	d := newDisk(t)
	dir := filepath.Join(d.Dir, "store")
	dev, err := openStore(dir, time.Hour)
	must(t, err)
	last := ""
	for i := range 20 {
		last = fmt.Sprint("mark ", i)
		must(t, mark(dev, last))
	}
	must(t, d.Room(8192))
	for i := 0; err == nil; i++ {
		err = mark(dev, fmt.Sprint("full ", i))
		if err == nil {
			last = fmt.Sprint("full ", i)
		}
	}
	if errors.Is(err, store.ErrNoSpace) {
		t.Fatalf("the device saw it coming: %v", err)
	}
	if !errors.Is(err, store.ErrStopped) || !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("commit: %v", err)
	}
	stopped(t, dev)
	_ = dev.Close() // tells the same again
	must(t, d.Heal())
	must(t, d.Tear(1, 512))
	dev, err = openStore(dir, time.Hour)
	must(t, err)
	if got := marked(t, dev); got != last {
		t.Errorf("%q is there, %q was committed", got, last)
	}
	must(t, dev.Close())
}

// TestFullDiskIsSeenBefore: with the room told, operations are refused before a commit finds none.
func TestFullDiskIsSeenBefore(t *testing.T) {
	d := newDisk(t)
	dev, err := openStore(filepath.Join(d.Dir, "store"), time.Hour)
	must(t, err)
	must(t, d.Room(8<<20))
	for i := 0; err == nil && i < 10_000; i++ {
		err = mark(dev, fmt.Sprint("mark ", i))
	}
	if !errors.Is(err, store.ErrNoSpace) || dev.Err() != nil {
		t.Fatalf("a full disk: %v, the device: %v", err, dev.Err())
	}
	must(t, dev.Close())
}
