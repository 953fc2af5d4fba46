package boltdev

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/strakefs/strake/store"
	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

// Open opens the device in o.Dir and formats it first if the folder is absent or empty. It fails without a change to
// anything on disk, and takes back what it made. It waits for the disk, and up to o.LockTimeout for the folder.
func Open(o Options) (*Device, error) {
	o = o.withDefaults()
	d, err := open(o)
	if err != nil {
		return nil, fmt.Errorf("data folder %s: %w", o.Dir, explain(err))
	}
	return d, nil
}

// explain adds what an operator can do.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EROFS), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (make it writable for this process)", err)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("%w (make room on that disk)", err)
	case errors.Is(err, ErrForeign):
		return fmt.Errorf("%w (give an empty folder)", err)
	case errors.Is(err, ErrCorrupt):
		return fmt.Errorf("%w (restore it from a backup; nothing was changed)", err)
	}
	return err
}

func open(o Options) (d *Device, err error) {
	if o.ReadOnly {
		return openToRead(o)
	}
	made, err := makeDir(o.Dir)
	undo := func() {
		for _, dir := range made {
			_ = os.Remove(dir) // only if it is empty still
		}
	}
	defer func() {
		if err != nil {
			undo()
		}
	}()
	if err != nil {
		return nil, err
	}
	lock, err := lockDir(o.Dir, o.LockTimeout)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		}
	}()
	fresh, err := isFresh(o.Dir)
	if err != nil {
		return nil, err
	}
	if fresh {
		if err := format(o); err != nil {
			return nil, fmt.Errorf("format: %w", err)
		}
	}
	if err := readFromDisk(filepath.Join(o.Dir, dbName)); err != nil {
		return nil, err
	}
	if err := checkFile(filepath.Join(o.Dir, dbName)); err != nil {
		return nil, err
	}
	d, err = start(o, lock)
	if err != nil && fresh {
		err = errors.Join(err, os.Remove(filepath.Join(o.Dir, dbName)))
	}
	return d, err
}

// openToRead is open for ReadOnly.
func openToRead(o Options) (d *Device, err error) {
	lock, err := lockDir(o.Dir, o.LockTimeout)
	if err != nil {
		return nil, err
	}
	err = checkFile(filepath.Join(o.Dir, dbName))
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w: there is no %s", ErrForeign, dbName)
	}
	if err == nil {
		d, err = start(o, lock)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return d, nil
}

// readFromDisk makes the next read of a file one of the disk. After a flush that failed the host's page cache holds pages
// that are not on the disk and that no later flush writes: a commit on top of them would be lost with the power.
func readFromDisk(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	err = f.Sync() // only pages that are on the disk are dropped
	if err == nil {
		err = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		err = nil // a file system without a cache
	}
	return errors.Join(err, f.Close())
}

// makeDir makes a folder and those above it that are missing, and returns what it made, innermost first.
func makeDir(dir string) (made []string, err error) {
	for p := filepath.Clean(dir); ; p = filepath.Dir(p) {
		info, err := os.Stat(p)
		if err == nil && !info.IsDir() {
			return nil, fmt.Errorf("%s: %w", p, unix.ENOTDIR)
		}
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		made = append(made, p)
	}
	for i := len(made) - 1; i >= 0; i-- {
		if err := os.Mkdir(made[i], 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return made, err
		}
		if err := syncPath(filepath.Dir(made[i])); err != nil {
			return made, err
		}
	}
	return made, nil
}

// lockDir locks the folder for this process. The lock is on the folder, so that one that is about to be formatted is
// locked too.
func lockDir(dir string, timeout time.Duration) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock: %w", err), f.Close())
		}
		if time.Now().After(end) {
			return nil, errors.Join(ErrInUse, f.Close())
		}
	}
}

// isFresh reports whether a folder is to be formatted: it holds nothing, or what a format that was cut short left.
func isFresh(dir string) (bool, error) {
	names, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	foreign := ""
	for _, n := range names {
		switch n.Name() {
		case dbName:
			return false, nil
		case newName, "lost+found":
		default:
			foreign = n.Name()
		}
	}
	if foreign != "" {
		return false, fmt.Errorf("%w: it holds %q and no %s", ErrForeign, foreign, dbName)
	}
	return true, nil
}

// format makes the database under a name of its own and then gives it its name, so that it is whole or not there.
func format(o Options) (err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(o.Dir, &s); err != nil {
		return err
	}
	if free := int64(s.Bavail) * s.Bsize; free < o.Reserve {
		return fmt.Errorf("%d bytes free, the reserve alone is %d: %w", free, o.Reserve, unix.ENOSPC)
	}
	path := filepath.Join(o.Dir, newName)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(path)
		}
	}()
	options := boltOptions()
	options.InitialMmapSize = 0
	db, err := bolt.Open(path, 0o600, options)
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		b, err := tx.CreateBucket(bucketDevice)
		if err != nil {
			return err
		}
		return errors.Join(putUint(b, keyFormat, formatVersion), putUint(b, keyStarts, 0), putUint(b, keyCommitted, 0),
			putLabel(tx, o.Label))
	})
	if err = errors.Join(err, db.Close()); err != nil {
		return err
	}
	if err := os.Rename(path, filepath.Join(o.Dir, dbName)); err != nil {
		return err
	}
	return syncPath(o.Dir)
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func putUint(b *bolt.Bucket, key []byte, v uint64) error {
	return b.Put(key, binary.BigEndian.AppendUint64(nil, v))
}

func getUint(b *bolt.Bucket, key []byte) (uint64, error) {
	v := b.Get(key)
	if len(v) != 8 {
		return 0, fmt.Errorf("%w: record %q has %d bytes", ErrCorrupt, key, len(v))
	}
	return binary.BigEndian.Uint64(v), nil
}

func putLabel(tx *bolt.Tx, l Label) error {
	b, err := tx.CreateBucketIfNotExists(bucketLabel)
	if err != nil {
		return err
	}
	v, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return b.Put(keyRecord, v)
}

// opened is what start found in the database.
type opened struct {
	label             Label
	starts, committed uint64
	restored          *Restored
	bytes             int64
	mapBytes          int // of the map that there was address space for
	file              *os.File
}

// openDB opens and reads a database that checkFile found good. Damage that shows makes bbolt panic: it becomes
// ErrCorrupt. The file is not changed.
func openDB(o Options) (db *bolt.DB, got opened, err error) {
	var file *os.File
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrCorrupt, r)
			db = nil
			_ = file.Close() // bbolt's own, with its lock; the map stays until the process ends
		}
	}()
	options := boltOptions()
	options.ReadOnly = o.ReadOnly
	options.OpenFile = func(name string, flag int, mode os.FileMode) (*os.File, error) {
		f, err := os.OpenFile(name, flag&^os.O_CREATE, mode)
		file = f
		return f, err
	}
	for options.InitialMmapSize = mapBytes; ; options.InitialMmapSize /= 4 {
		options.MaxSize = options.InitialMmapSize
		db, err = bolt.Open(filepath.Join(o.Dir, dbName), 0o600, options)
		// Where address space is limited, a smaller map does; the file stays below it.
		if !errors.Is(err, unix.ENOMEM) || options.InitialMmapSize < 1<<30 {
			break
		}
	}
	if errors.Is(err, berrors.ErrTimeout) {
		return nil, got, ErrInUse
	}
	if err != nil {
		return nil, got, err
	}
	got.mapBytes, got.file = options.MaxSize, file
	db.AllocSize = growBytes
	if err := db.View(func(tx *bolt.Tx) error { return got.read(tx, o) }); err != nil {
		return nil, got, errors.Join(err, db.Close())
	}
	return db, got, nil
}

// read reads the records of the device and compares them with the options.
func (g *opened) read(tx *bolt.Tx, o Options) error {
	b, lb := tx.Bucket(bucketDevice), tx.Bucket(bucketLabel)
	if b == nil || lb == nil {
		return fmt.Errorf("%w: %s is no database of strake", ErrForeign, dbName)
	}
	version, err := getUint(b, keyFormat)
	if err != nil {
		return err
	}
	if version != formatVersion {
		return fmt.Errorf("format %d, this program knows %d: use the program that wrote it", version, formatVersion)
	}
	var err2, err3 error
	g.bytes = tx.Size()
	g.starts, err = getUint(b, keyStarts)
	g.committed, err2 = getUint(b, keyCommitted)
	g.restored, err3 = readRestored(b)
	if err := errors.Join(err, err2, err3); err != nil {
		return err
	}
	if err := json.Unmarshal(lb.Get(keyRecord), &g.label); err != nil {
		return fmt.Errorf("%w: label: %w", ErrCorrupt, err)
	}
	if want := o.Label.FSName; want != "" && want != g.label.FSName {
		return fmt.Errorf("%w: it belongs to file system %q, not %q", ErrMismatch, g.label.FSName, want)
	}
	if want := o.Label.Kind; want != "" && want != g.label.Kind {
		return fmt.Errorf("%w: it belongs to an %s, not an %s", ErrMismatch, g.label.Kind, want)
	}
	if g.starts+1 >= 1<<(64-store.CountBits) {
		return fmt.Errorf("started %d times: transnos are used up", g.starts)
	}
	return nil
}

// start opens the database, counts this start on disk and begins to work.
func start(o Options, lock *os.File) (*Device, error) {
	path := filepath.Join(o.Dir, dbName)
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	db, got, err := openDB(o)
	if err != nil {
		return nil, err
	}
	d := &Device{
		o: o, lock: lock, db: db, file: got.file, seed: maphash.MakeSeed(), label: got.label, restored: got.restored, maxBytes: int64(got.mapBytes),
		firstOfStart: store.Transno((got.starts+1)<<store.CountBits | 1),
		moved:        make(chan struct{}), wake: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	d.dbBytes.Store(got.bytes)
	d.last.Store(got.committed)
	d.done.Store(got.committed)
	d.readers.d = d
	d.open = newLayer(len(o.Specs))
	d.setViewLocked()
	if err := d.begin(got.starts + 1); err != nil {
		err = errors.Join(err, d.closeDB())
		// A start that found no room may have made the file longer; what is behind the pages is nobody's.
		return nil, errors.Join(err, shrink(path, info.Size()))
	}
	d.register()
	go d.committer()
	return d, nil
}

// shrink gives a file the size it had, unless its pages need more by now.
func shrink(path string, size int64) error {
	info, err := os.Stat(path)
	if err != nil || info.Size() <= size {
		return err
	}
	m, err := readMeta(path)
	if err != nil || int64(m.pages*m.pageSize) > size {
		return err
	}
	return os.Truncate(path, size)
}

// begin does what can fail of a start.
func (d *Device) begin(starts uint64) error {
	if err := d.space.init(d.o); err != nil {
		return err
	}
	if err := d.objects.init(d); err != nil {
		return err
	}
	if d.o.ReadOnly {
		return nil
	}
	d.objects.inherited = true
	err := d.update(func(tx *bolt.Tx) error {
		for _, s := range d.o.Specs {
			if _, err := tx.CreateBucketIfNotExists(bucketOf(s.Name)); err != nil {
				return err
			}
		}
		return putUint(tx.Bucket(bucketDevice), keyStarts, starts)
	})
	if err != nil {
		d.objects.close()
	}
	return err
}

// readCommitted reads the last transno that a snapshot holds. Open has proven that it is there.
func readCommitted(tx *bolt.Tx) store.Transno {
	return store.Transno(binary.BigEndian.Uint64(tx.Bucket(bucketDevice).Get(keyCommitted)))
}

// Label implements store.Labeled.
func (d *Device) Label() Label {
	d.labelMu.Lock()
	defer d.labelMu.Unlock()
	return d.label
}

// SetLabel implements store.Labeled. It waits for a commit that is under way.
func (d *Device) SetLabel(l Label) error {
	d.labelMu.Lock()
	defer d.labelMu.Unlock()
	if err := d.Err(); err != nil {
		return err
	}
	err := d.fault("label")
	if err == nil {
		err = d.update(func(tx *bolt.Tx) error { return putLabel(tx, l) })
	}
	if err != nil {
		d.stop(fmt.Errorf("label: %w", err))
		return d.Err()
	}
	d.label = l
	return nil
}

// fault asks the test's fault script.
func (d *Device) fault(point string) error {
	if d.o.Fault == nil {
		return nil
	}
	return d.o.Fault(point)
}
