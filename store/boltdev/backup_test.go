package boltdev_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/boltdev"
	"github.com/strakefs/strake/store/storetest"
)

// logged is what a writer has published, in order.
type logged struct {
	n    store.Transno
	step store.Step
}

// storm publishes random steps until stop is closed and notes them. Keys are few enough to be met again by deltas, deletes
// and other puts.
func storm(t *testing.T, d *boltdev.Device, stop <-chan struct{}) []logged {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	e := env.New()
	var all []logged
	for i := 0; ; i++ {
		select {
		case <-stop:
			return all
		default:
		}
		if i >= 5000 && i%50 == 0 { // the first ones fill the tables, then the pace is the disk's
			if err := d.WaitCommitted(t.Context(), d.Last()); err != nil {
				t.Error(err)
				return all
			}
		}
		if err := d.Throttle(t.Context(), false); err != nil {
			t.Error(err)
			return all
		}
		e.Reset()
		tx := d.Begin(e)
		for range 1 + r.IntN(4) {
			key := fmt.Appendf(nil, "key%05d", r.IntN(20000))
			switch r.IntN(4) {
			case 0:
				tx.Delete(storetest.Plain, key)
			case 1:
				tx.Delta(storetest.Sums, key, binary.BigEndian.AppendUint64(nil, uint64(r.IntN(3))))
			default:
				value := make([]byte, 8+r.IntN(400))
				binary.BigEndian.PutUint64(value, r.Uint64())
				tx.Put(storetest.Plain, key, value)
			}
		}
		steps := slices.Clone(tx.Steps)
		n, err := d.Publish(tx)
		if err != nil {
			t.Error(err)
			return all
		}
		for _, s := range steps {
			all = append(all, logged{n, s})
		}
	}
}

// stateAt is what the tables hold after transno n.
func stateAt(all []logged, n store.Transno) map[string]string {
	state := map[string]string{}
	for _, l := range all {
		if l.n > n {
			break
		}
		key := fmt.Sprintf("%d/%s", l.step.Table, l.step.Key)
		switch l.step.Kind {
		case store.Put:
			state[key] = string(l.step.Value)
		case store.Delete:
			delete(state, key)
		default:
			var base []byte
			if v, ok := state[key]; ok {
				base = []byte(v)
			}
			if v := storetest.Specs()[l.step.Table].Merger.Apply(nil, base, l.step.Value); len(v) > 0 {
				state[key] = string(v)
			} else {
				delete(state, key)
			}
		}
	}
	return state
}

func contents(t *testing.T, d *boltdev.Device) map[string]string {
	t.Helper()
	got := map[string]string{}
	for i := range storetest.Specs() {
		err := d.Scan(env.New(), store.Table(i), nil, nil, func(k, v []byte) bool {
			got[fmt.Sprintf("%d/%s", i, k)] = string(v)
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return got
}

// TestBackupIsOneState: a backup made while a writer goes on is, restored, exactly the state that the device had with the
// transno in its header.
func TestBackupIsOneState(t *testing.T) {
	o := options(filepath.Join(tempDir(t), "d"))
	o.CommitInterval = 3 * time.Millisecond
	d := mustOpen(t, o)
	stop := make(chan struct{})
	var all []logged
	var wg sync.WaitGroup
	wg.Go(func() { all = storm(t, d, stop) })
	var backups []boltdev.Backup
	dir := tempDir(t)
	// Between any two slices there is a commit.
	between := func(int64) {
		n := d.Last()
		for d.Last() < n+50 && !t.Failed() {
			if err := d.WaitCommitted(t.Context(), d.Last()); err != nil {
				t.Error(err)
			}
		}
	}
	for uint64(d.Last())&(1<<store.CountBits-1) < 6000 && !t.Failed() {
		between(0)
	}
	for i := range 4 {
		b, err := d.Backup(t.Context(), boltdev.BackupOptions{
			Path: filepath.Join(dir, fmt.Sprint(i)), Target: "strake-MDT0000", Instance: 7, Version: "v1", Progress: between,
		})
		if err != nil {
			t.Fatal(err)
		}
		backups = append(backups, b)
	}
	close(stop)
	wg.Wait()
	last := d.Last()
	mustClose(t, d)
	for i, b := range backups {
		path := filepath.Join(dir, fmt.Sprint(i))
		if got, err := boltdev.CheckBackup(path); err != nil || got.Transno != b.Transno || got.Target != "strake-MDT0000" ||
			got.Instance != 7 || got.Label.FSName != "strake" || got.Bytes != b.Bytes || got.Bytes == 0 {
			t.Fatalf("%+v %v", got, err)
		}
		to := options(filepath.Join(tempDir(t), "restored"))
		if _, err := boltdev.Restore(path, to.Dir); err != nil {
			t.Fatal(err)
		}
		r := mustOpen(t, to)
		want, got := stateAt(all, b.Transno), contents(t, r)
		if len(want) == 0 || len(got) != len(want) {
			t.Fatalf("backup %d of transno %#x: %d keys, want %d", i, uint64(b.Transno), len(got), len(want))
		}
		for k, v := range want {
			if got[k] != v {
				t.Fatalf("backup %d: %s is %x, want %x", i, k, got[k], v)
			}
		}
		if note, ok := r.RestoredFrom(); !ok || note.Transno != b.Transno || note.Instance != 7 || !note.Made.Equal(b.Made) {
			t.Fatal(note, ok)
		}
		if l := r.Label(); l.UUID != label.UUID || string(l.FSKey) != string(label.FSKey) {
			t.Fatal(l)
		}
		// No transno of the first life is given again.
		tx := r.Begin(env.New())
		tx.Put(storetest.Plain, []byte("k"), []byte("v"))
		if n, err := r.Publish(tx); err != nil || n <= last || uint64(n)>>store.CountBits < 1024 {
			t.Fatalf("%#x after %#x: %v", uint64(n), uint64(last), err)
		}
		if err := r.TakenNote(); err != nil {
			t.Fatal(err)
		}
		mustClose(t, r)
		r = mustOpen(t, to)
		if _, ok := r.RestoredFrom(); ok {
			t.Error("the note of the restore has come back")
		}
		mustClose(t, r)
	}
}

// makeBackup makes a small backup and returns its path.
func makeBackup(t *testing.T) string {
	t.Helper()
	d := mustOpen(t, options(filepath.Join(tempDir(t), "d")))
	tx := d.Begin(env.New())
	for i := range 100 {
		tx.Put(storetest.Plain, fmt.Appendf(nil, "key%d", i), make([]byte, 100))
	}
	if _, err := d.Publish(tx); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(tempDir(t), "b")
	if _, err := d.Backup(t.Context(), boltdev.BackupOptions{Path: path, Target: "x"}); err != nil {
		t.Fatal(err)
	}
	mustClose(t, d)
	return path
}

// TestRestoreRefusesDamage: a backup with any byte of header or body changed, or cut short, is refused, and the folder stays as it
// was.
func TestRestoreRefusesDamage(t *testing.T) {
	path := makeBackup(t)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	parent := tempDir(t)
	dir := filepath.Join(parent, "a", "b")
	bad := filepath.Join(tempDir(t), "bad")
	try := func(what string, b []byte) {
		t.Helper()
		if err := os.WriteFile(bad, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := boltdev.Restore(bad, dir); !errors.Is(err, boltdev.ErrBackup) {
			t.Fatalf("%s: %v", what, err)
		}
		if _, err := os.Lstat(filepath.Join(parent, "a")); err == nil {
			t.Fatalf("%s: the folder was made", what)
		}
	}
	for at := 0; at < len(whole); at += 37 {
		if at > 300 && at < 4096 {
			continue // padding
		}
		b := slices.Clone(whole)
		b[at] ^= 0x40
		try(fmt.Sprintf("byte %d", at), b)
	}
	for _, n := range []int{0, 7, 4095, 4096, len(whole) - 1} {
		try(fmt.Sprintf("%d bytes", n), whole[:n])
	}
	try("longer", append(slices.Clone(whole), 0))
}

func TestRestoreWantsAnEmptyFolder(t *testing.T) {
	path := makeBackup(t)
	dir := tempDir(t)
	if err := os.WriteFile(filepath.Join(dir, "letter.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	before := tree(t, dir)
	if _, err := boltdev.Restore(path, dir); !errors.Is(err, boltdev.ErrForeign) || tree(t, dir) != before {
		t.Fatal(err)
	}
	o := options(filepath.Join(tempDir(t), "d"))
	mustClose(t, mustOpen(t, o))
	before = tree(t, o.Dir)
	if _, err := boltdev.Restore(path, o.Dir); !errors.Is(err, boltdev.ErrNotEmpty) || tree(t, o.Dir) != before {
		t.Fatal(err)
	}
	// What a restore that was cut short has left does not count.
	dir = tempDir(t)
	if err := os.WriteFile(filepath.Join(dir, "meta.db.new"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := boltdev.Restore(path, dir); err != nil {
		t.Fatal(err)
	}
	o = options(dir)
	mustClose(t, mustOpen(t, o))
}

func TestBackupLeavesOthersAlone(t *testing.T) {
	path := makeBackup(t)
	d := mustOpen(t, options(filepath.Join(tempDir(t), "d")))
	defer mustClose(t, d)
	// An older backup is replaced, another file is not, and what fails leaves nothing.
	if _, err := d.Backup(t.Context(), boltdev.BackupOptions{Path: path}); err != nil {
		t.Fatal(err)
	}
	dir := tempDir(t)
	letter := filepath.Join(dir, "letter.txt")
	if err := os.WriteFile(letter, []byte("dear"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := tree(t, dir)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		ctx  context.Context
		path string
	}{{t.Context(), letter}, {t.Context(), "relative"}, {t.Context(), filepath.Join(dir, "no/such")}, {gone, filepath.Join(dir, "b")}} {
		if _, err := d.Backup(c.ctx, boltdev.BackupOptions{Path: c.path}); err == nil {
			t.Errorf("%s: no error", c.path)
		}
	}
	if after := tree(t, dir); after != before {
		t.Errorf("%s\nhas become\n%s", before, after)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Error(info.Mode(), err)
	}
}

// TestBackupDoesNotHoldUpOperations: while a large database is backed up, transactions are published and committed as
// ever, and the database does not grow by what the backup keeps from being used again.
func TestBackupDoesNotHoldUpOperations(t *testing.T) {
	size := 24 << 20
	if os.Getenv("STRAKE_SOAK") != "" {
		size = 100 << 20
	}
	o := options(filepath.Join(tempDir(t), "d"))
	d := mustOpen(t, o)
	defer mustClose(t, d)
	e := env.New()
	value := make([]byte, 250)
	put := func(i int) error {
		if err := d.Throttle(t.Context(), false); err != nil {
			return err
		}
		e.Reset()
		tx := d.Begin(e)
		tx.Put(storetest.Plain, binary.BigEndian.AppendUint64(e.Alloc(8)[:0], uint64(i)*0x9e3779b97f4a7c15), value)
		_, err := d.Publish(tx)
		return err
	}
	for i := range size / 250 {
		if err := put(i); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.WaitCommitted(t.Context(), d.Last()); err != nil {
		t.Fatal(err)
	}
	dbSize := func() int64 {
		info, err := os.Stat(filepath.Join(o.Dir, "meta.db"))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	// A second of syncing operations without a backup, then one with one after another.
	durations := func(during func(stop <-chan struct{})) (all []time.Duration) {
		stop, done := make(chan struct{}), make(chan struct{})
		go func() { during(stop); close(done) }()
		for i, end := 0, time.Now().Add(time.Second); time.Now().Before(end); i++ {
			began := time.Now()
			if err := put(i % (size / 250)); err != nil {
				t.Fatal(err)
			}
			if err := d.WaitCommitted(t.Context(), d.Last()); err != nil {
				t.Fatal(err)
			}
			all = append(all, time.Since(began))
		}
		close(stop)
		<-done
		slices.Sort(all)
		return all
	}
	without := durations(func(<-chan struct{}) {})
	before, backups, took := dbSize(), 0, time.Duration(0)
	path := filepath.Join(tempDir(t), "b")
	var bytes int64
	with := durations(func(stop <-chan struct{}) {
		for {
			began := time.Now()
			b, err := d.Backup(t.Context(), boltdev.BackupOptions{Path: path})
			if err != nil {
				t.Error(err)
				return
			}
			backups, bytes, took = backups+1, b.Bytes, time.Since(began)
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	at := func(d []time.Duration, q float64) time.Duration { return d[int(q*float64(len(d)-1))] }
	t.Logf("without: %d durable operations, p50 %v p99 %v max %v; with %d backups of %d MB (the last took %v): %d, p50 %v p99 %v max %v; database %d MB, grown by %d",
		len(without), at(without, 0.5), at(without, 0.99), at(without, 1), backups, bytes>>20, took,
		len(with), at(with, 0.5), at(with, 0.99), at(with, 1), before>>20, dbSize()-before)
	if grown := dbSize() - before; grown > 64<<20 { // one step of growth
		t.Errorf("the database has grown by %d bytes", grown)
	}
	if worst := at(with, 1); worst > max(took/2, 300*time.Millisecond) {
		t.Errorf("an operation took %v while backups of %v ran", worst, took)
	}
}
