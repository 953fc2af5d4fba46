package boltdev_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/boltdev"
	"github.com/strakefs/strake/store/storetest"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

var label = store.Label{FSName: "strake", Kind: store.KindMDT, Index: -1, UUID: "u", FSKey: []byte("0123456789abcdef")}

func options(dir string) boltdev.Options {
	return boltdev.Options{Dir: dir, Specs: storetest.Specs(), Label: label, Reserve: 1 << 20, LockTimeout: 1}
}

// mustOpen opens a device that the test closes.
func mustOpen(t *testing.T, o boltdev.Options) *boltdev.Device {
	t.Helper()
	d, err := boltdev.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func mustClose(t *testing.T, d store.Device) {
	t.Helper()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// tree is what is on disk below a folder: names, modes, and hashes of contents.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %v", path, info.Mode())
		if e.Type().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %d %x", len(data), sha256.Sum256(data))
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// refused opens a folder that must be refused with want, and nothing on disk changed.
func refused(t *testing.T, o boltdev.Options, want error) {
	t.Helper()
	parent := filepath.Dir(o.Dir)
	for _, err := os.Stat(parent); err != nil; _, err = os.Stat(parent) {
		parent = filepath.Dir(parent)
	}
	before := tree(t, parent)
	d, err := boltdev.Open(o)
	if err == nil {
		mustClose(t, d)
		t.Fatal("it was opened")
	}
	t.Log(err)
	if !errors.Is(err, want) || !strings.Contains(err.Error(), o.Dir) || strings.Contains(err.Error(), "\n") {
		t.Fatalf("%v, want %v", err, want)
	}
	if after := tree(t, parent); after != before {
		t.Fatalf("changed:\n%s\nto:\n%s", before, after)
	}
}

func TestOpenFormatsAnAbsentOrEmptyFolder(t *testing.T) {
	for _, sub := range []string{".", "a/b/c"} {
		dir := filepath.Join(tempDir(t), sub)
		d := mustOpen(t, options(dir))
		if got := d.Label(); got.FSName != "strake" || got.Kind != store.KindMDT || got.Index != -1 || len(got.FSKey) != 16 {
			t.Fatalf("%+v", got)
		}
		l := d.Label()
		l.Index = 3
		if err := d.SetLabel(l); err != nil {
			t.Fatal(err)
		}
		mustClose(t, d)
		for path, mode := range map[string]os.FileMode{"": 0o700 | os.ModeDir, "meta.db": 0o600, "O": 0o700 | os.ModeDir} {
			info, err := os.Stat(filepath.Join(dir, path))
			if err != nil || info.Mode() != mode {
				t.Fatalf("%q: %v %v", path, info.Mode(), err)
			}
		}
		d = mustOpen(t, options(dir))
		if got := d.Label().Index; got != 3 {
			t.Fatalf("index %d", got)
		}
		mustClose(t, d)
	}
}

func TestOpenFinishesAFormatThatWasCutShort(t *testing.T) {
	dir := tempDir(t)
	if err := os.WriteFile(filepath.Join(dir, "meta.db.new"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	mustClose(t, mustOpen(t, options(dir)))
}

func TestOpenRefusesForeignFolders(t *testing.T) {
	dir := filepath.Join(tempDir(t), "d")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "letter.txt"), []byte("dear"), 0o644)); err != nil {
		t.Fatal(err)
	}
	refused(t, options(dir), boltdev.ErrForeign)
	file := filepath.Join(tempDir(t), "f")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	refused(t, options(file), unix.ENOTDIR)
	// A database of bbolt that is not ours.
	dir = filepath.Join(tempDir(t), "d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	db, err := bolt.Open(filepath.Join(dir, "meta.db"), 0o600, &bolt.Options{PageSize: 4096})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	refused(t, options(dir), boltdev.ErrForeign)
}

func TestOpenRefusesOtherTargets(t *testing.T) {
	dir := filepath.Join(tempDir(t), "d")
	mustClose(t, mustOpen(t, options(dir)))
	o := options(dir)
	o.Label.FSName = "other"
	refused(t, o, boltdev.ErrMismatch)
	o = options(dir)
	o.Label.Kind = store.KindOST
	refused(t, o, boltdev.ErrMismatch)
}

func TestOpenRefusesAFolderInUse(t *testing.T) {
	dir := filepath.Join(tempDir(t), "d")
	d := mustOpen(t, options(dir))
	refused(t, options(dir), boltdev.ErrInUse)
	mustClose(t, d)
	mustClose(t, mustOpen(t, options(dir)))
}

func TestOpenOnAFullDisk(t *testing.T) {
	o := options(filepath.Join(tempDir(t), "a/b"))
	o.Reserve = 1 << 60
	refused(t, o, unix.ENOSPC)
}

func TestOpenOnReadOnlyDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	mount := filepath.Join(tempDir(t), "m")
	if err := os.Mkdir(mount, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", mount, "tmpfs", 0, "size=64m"); err != nil {
		t.Skipf("no tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mount, unix.MNT_DETACH) })
	dir := filepath.Join(mount, "d")
	mustClose(t, mustOpen(t, options(dir)))
	remount := func(flags uintptr) {
		t.Helper()
		if err := unix.Mount("tmpfs", mount, "tmpfs", unix.MS_REMOUNT|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	remount(unix.MS_RDONLY)
	refused(t, options(dir), unix.EROFS)
	refused(t, options(filepath.Join(mount, "new")), unix.EROFS)
	remount(0)
	// A disk without one free byte: the start cannot be counted, or it can in pages that are free; nothing breaks.
	fill, err := os.Create(filepath.Join(mount, "fill"))
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := fill.Write(make([]byte, 4096)); err != nil {
			break
		}
	}
	_ = fill.Close()
	d, err := boltdev.Open(options(dir))
	if err == nil {
		mustClose(t, d)
	} else if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if _, err := boltdev.Open(options(filepath.Join(mount, "new"))); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if err := os.Remove(fill.Name()); err != nil {
		t.Fatal(err)
	}
	mustClose(t, mustOpen(t, options(dir)))
}

// fill writes enough for a database of several levels.
func fill(t *testing.T, dir string) {
	t.Helper()
	d := mustOpen(t, options(dir))
	e := env.New()
	for i := range 3000 {
		e.Reset()
		tx := d.Begin(e)
		tx.Put(storetest.Plain, fmt.Appendf(nil, "key%05d", i), make([]byte, 100))
		if _, err := d.Publish(tx); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, d)
}

// database is the content of a database without the room that it has grown by.
func database(t *testing.T, dir string) []byte {
	t.Helper()
	whole, err := os.ReadFile(filepath.Join(dir, "meta.db"))
	if err != nil {
		t.Fatal(err)
	}
	return whole[:250*4096]
}

func TestOpenRefusesTruncatedDatabases(t *testing.T) {
	dir := filepath.Join(tempDir(t), "d")
	fill(t, dir)
	path := filepath.Join(dir, "meta.db")
	whole := database(t, dir)
	for _, n := range []int{0, 1, 4096, 8191, 8192, 4 * 4096, 100 * 4096} {
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		refused(t, options(dir), boltdev.ErrCorrupt)
	}
	for _, garbage := range [][]byte{make([]byte, len(whole)), []byte(strings.Repeat("garbage!", len(whole)/8))} {
		if err := os.WriteFile(path, garbage, 0o600); err != nil {
			t.Fatal(err)
		}
		refused(t, options(dir), boltdev.ErrCorrupt)
	}
}

// TestDamagedPagesAreErrors overwrites pages at random: open, reads and commits may find it or not, and if they do it is
// an error and a stopped device, never a panic.
func TestDamagedPagesAreErrors(t *testing.T) {
	base := filepath.Join(tempDir(t), "d")
	fill(t, base)
	whole := database(t, base)
	found := 0
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		damaged := append([]byte(nil), whole...)
		for range 1 + rnd.IntN(5) {
			page := damaged[4096*(2+rnd.IntN(140)):][:4096]
			for i := range page {
				page[i] = byte(rnd.Uint32())
			}
		}
		dir := filepath.Join(tempDir(t), "d")
		if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "meta.db"), damaged, 0o600)); err != nil {
			t.Fatal(err)
		}
		d, err := boltdev.Open(options(dir))
		if err != nil {
			found++
			continue
		}
		e := env.New()
		n := 0
		scanErr := d.Scan(e, storetest.Plain, nil, nil, func(_, _ []byte) bool { n++; return n < 100_000 })
		for i := range 3000 {
			e.Reset()
			if _, err := d.Get(e, storetest.Plain, fmt.Appendf(nil, "key%05d", i)); errors.Is(err, boltdev.ErrCorrupt) {
				scanErr = err
			}
		}
		for i := range 50 {
			tx := d.Begin(e)
			tx.Put(storetest.Plain, fmt.Appendf(nil, "key%05d", i*61), make([]byte, 300))
			if _, err := d.Publish(tx); err != nil {
				break
			}
		}
		if err := d.WaitCommitted(t.Context(), d.Last()); err != nil {
			scanErr = err
		}
		if scanErr != nil {
			found++
			if !errors.Is(scanErr, store.ErrStopped) && !errors.Is(scanErr, boltdev.ErrCorrupt) {
				t.Fatalf("seed %d: %v", seed, scanErr)
			}
		}
		_ = d.Close() // fails if the device did
	}
	t.Logf("%d of 100 damages found", found)
}

func TestStatsCountPutsByTable(t *testing.T) {
	r := stats.NewRegistry()
	o := options(tempDir(t))
	o.Stats, o.StatsClass, o.StatsName = r, "osd-strake", "strake-MDT0000"
	d := mustOpen(t, o)
	e := env.New()
	for i := range 10 {
		tx := d.Begin(e)
		tx.Put(storetest.Plain, []byte{byte(i)}, []byte("v"))
		tx.Delta(storetest.Sums, []byte("parent"), storetest.Number(1))
		if _, err := d.Publish(tx); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.WaitCommitted(t.Context(), d.Last()); err != nil {
		t.Fatal(err)
	}
	want := map[string]int64{
		"table_plain.published": 10, "table_plain.merged": 0, "table_plain.puts": 10,
		"table_sums.published": 10, "table_sums.merged": 9, "table_sums.puts": 1, "txg_commits": 1, "txg_transactions": 10,
	}
	seen := 0
	for _, en := range walk(t, r, "osd-strake.strake-MDT0000.**") {
		name := strings.TrimPrefix(en.Path, "osd-strake.strake-MDT0000.")
		v, _ := en.Value()
		if w, ok := want[name]; ok {
			seen++
			if v != w {
				t.Errorf("%s: %d, want %d", name, v, w)
			}
		}
		t.Log(en.Path, en.Text())
	}
	if seen != len(want) {
		t.Fatalf("%d of %d figures", seen, len(want))
	}
	mustClose(t, d)
	if left := walk(t, r, "**"); len(left) != 0 {
		t.Fatalf("%d figures left", len(left))
	}
}

func walk(t *testing.T, r *stats.Registry, pattern string) []stats.Entry {
	t.Helper()
	var all []stats.Entry
	if err := r.Walk(pattern, func(e stats.Entry) error { all = append(all, e); return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestCheckSaysWhatOpenWouldAndChangesNothing(t *testing.T) {
	dir := tempDir(t)
	o := options(dir + "/d")
	if err := boltdev.Check(o); err != nil {
		t.Fatalf("an absent folder: %v", err)
	}
	if _, err := os.Stat(dir + "/d"); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the folder was made: %v", err)
	}
	mustClose(t, mustOpen(t, o))
	before, err := os.ReadFile(dir + "/d/meta.db")
	if err != nil {
		t.Fatal(err)
	}
	if err := boltdev.Check(o); err != nil {
		t.Fatalf("a good folder: %v", err)
	}
	other := o
	other.Label.FSName = "other"
	if err := boltdev.Check(other); !errors.Is(err, boltdev.ErrMismatch) {
		t.Fatalf("another file system's: %v", err)
	}
	if err := os.WriteFile(dir+"/d/meta.db", before[:4096], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := boltdev.Check(o); !errors.Is(err, boltdev.ErrCorrupt) {
		t.Fatalf("a truncated database: %v", err)
	}
	if after, err := os.ReadFile(dir + "/d/meta.db"); err != nil || len(after) != 4096 {
		t.Fatalf("the file was changed: %d bytes, %v", len(after), err)
	}
	if err := os.Mkdir(dir+"/foreign", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/foreign/holiday.jpg", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := boltdev.Check(options(dir + "/foreign")); !errors.Is(err, boltdev.ErrForeign) {
		t.Fatalf("a foreign folder: %v", err)
	}
}

// TestReadOnlyChangesNothing: a device opened to be looked at shows everything, and leaves the folder as it was.
func TestReadOnlyChangesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	d := mustOpen(t, options(dir))
	e := env.New()
	tx := d.Begin(e)
	tx.Put(0, []byte("k"), []byte("v"))
	if _, err := d.Publish(tx); err != nil {
		t.Fatal(err)
	}
	id := fid.ObjectID{Group: 1, ID: 7}
	if err := d.Objects().Create([]fid.ObjectID{id}); err != nil {
		t.Fatal(err)
	}
	mustClose(t, d)
	before := tree(t, dir)
	o := options(dir)
	o.ReadOnly = true
	o.Specs = append(o.Specs, store.Spec{Name: "not there"})
	d = mustOpen(t, o)
	if v, err := d.Get(e, 0, []byte("k")); err != nil || string(v) != "v" {
		t.Errorf("%q, %v", v, err)
	}
	n := 0
	for table := range o.Specs {
		if err := d.Scan(e, store.Table(table), nil, nil, func(_, _ []byte) bool { n++; return true }); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.Get(e, store.Table(len(o.Specs)-1), []byte("k")); !errors.Is(err, store.ErrNotFound) || n != 1 {
		t.Errorf("%d records in all, of a table that is not there: %v", n, err)
	}
	tx = d.Begin(e)
	tx.Put(0, []byte("k"), []byte("w"))
	if _, err := d.Publish(tx); !errors.Is(err, boltdev.ErrReadOnly) {
		t.Errorf("a publish: %v", err)
	}
	if err := errors.Join(d.Objects().Remove(id)); !errors.Is(err, boltdev.ErrReadOnly) {
		t.Errorf("a removal: %v", err)
	}
	if _, err := boltdev.Open(o); !errors.Is(err, boltdev.ErrInUse) {
		t.Errorf("while another one looks: %v", err)
	}
	mustClose(t, d)
	if after := tree(t, dir); after != before {
		t.Errorf("the folder was\n%s\nand is\n%s", before, after)
	}
	empty := filepath.Join(t.TempDir(), "e")
	if err := os.Mkdir(empty, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := boltdev.Open(boltdev.Options{Dir: empty, ReadOnly: true}); !errors.Is(err, boltdev.ErrForeign) || tree(t, empty) == "" {
		t.Errorf("an empty folder: %v", err)
	}
}
