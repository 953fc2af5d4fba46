package boltdev

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/strakefs/strake/store"
	"golang.org/x/sys/unix"
)

// ErrBackupRuns: one backup of a device at a time.
var ErrBackupRuns = errors.New("a backup of this device is under way")

// BackupOptions say where a backup goes and what its header names beside the device's label.
type BackupOptions struct {
	// Path is the file. It gets its name when it is whole and on disk; an older backup of that name is replaced then, any
	// other file refused.
	Path string
	// Target is the target's name, Instance its present instance, Version the program's, for people.
	Target   string
	Instance uint64
	Version  string
	// Progress is called now and then with the bytes written; nil does nothing.
	Progress func(written int64)
}

// Bounds of a backup.
const (
	// sliceBytes and sliceTime bound what one read transaction reads: the pages that a commit frees meanwhile are kept for
	// no longer than that.
	sliceBytes = 1 << 20
	sliceTime  = 10 * time.Millisecond
	// tailMax bounds the memory for what commits change while the file is being written: four full txgs.
	tailMax = 128 << 20
	// backupSyncBytes is how much is written between two flushes: one flush of everything at the end would hold up the
	// commits of a device on the same disk.
	backupSyncBytes = 16 << 20
)

// Backup writes the device's tables to a file while operations go on: the state that the device had with one transno,
// which the header names. It waits for the file's disk and for commits; nobody waits for it.
//
// Tables are read slice by slice, each slice in a read transaction of its own, which may see a newer state than the one
// before it. What the commits since the first slice have written follows in the file, in their order, up to the transno of
// the header: who reads the file to its end has the state of that one.
//
// Errors: ErrBackupRuns; ctx's; what writing the file met; that the device changed faster than the file's disk takes it; the
// device's own. None leaves a file behind.
func (d *Device) Backup(ctx context.Context, o BackupOptions) (b Backup, err error) {
	t := &tail{}
	if !d.tail.CompareAndSwap(nil, t) {
		return b, ErrBackupRuns
	}
	defer d.tail.Store(nil)
	// A commit that has begun without the tail is on disk, and seen by the first slice, after this.
	if err := d.WaitCommitted(ctx, d.Last()); err != nil {
		return b, err
	}
	f, err := newBackupFile(o.Path, d.dbBytes.Load()+d.o.Reserve)
	if err != nil {
		return b, err
	}
	defer func() {
		if err != nil {
			f.remove()
		}
	}()
	w := backupWriter{d: d, f: f, t: t, o: o}
	last, err := w.body(ctx)
	if err != nil {
		return b, fmt.Errorf("backup to %s: %w", o.Path, err)
	}
	b = Backup{Label: d.Label(), Target: o.Target, Instance: o.Instance, Transno: last, Keys: w.keys,
		Starts: uint64(d.firstOfStart) >> store.CountBits, Version: o.Version, Made: time.Now().UTC().Truncate(time.Second)}
	if b.Bytes, err = f.finish(&b); err != nil {
		return b, fmt.Errorf("backup to %s: %w", o.Path, err)
	}
	return b, nil
}

// backupWriter writes one backup's body.
type backupWriter struct {
	d    *Device
	f    *backupFile
	t    *tail
	o    BackupOptions
	out  []byte
	next []byte // the key that the next slice begins with
	seen store.Transno
	keys uint64
}

// body writes tables, then what has changed meanwhile, and returns the transno of the state that this makes.
func (w *backupWriter) body(ctx context.Context) (store.Transno, error) {
	for i, s := range w.d.o.Specs {
		w.out = appendTable(w.out[:0], store.Table(i), s.Name)
		w.next = []byte{}
		for w.next != nil {
			if err := w.slice(store.Table(i)); err != nil {
				return 0, err
			}
			if err := w.flush(ctx); err != nil {
				return 0, err
			}
			// What waits in memory goes to the file between slices; it is not known yet where it belongs, so only its size counts.
			if w.t.lost() {
				return 0, errors.New("the device changes faster than the backup takes it: write it to a faster disk, or at a quieter time")
			}
		}
	}
	// The newest slice may have seen a commit that has not told the tail of its end.
	if err := w.d.WaitCommitted(ctx, w.seen); err != nil {
		return 0, err
	}
	changes, last, ok := w.t.take()
	if !ok {
		return 0, errors.New("the device changes faster than the backup takes it: write it to a faster disk, or at a quieter time")
	}
	last = max(last, w.seen)
	w.out = append(w.out[:0], recTail)
	if err := w.flush(ctx); err != nil {
		return 0, err
	}
	for len(changes) > 0 {
		n := min(len(changes), sliceBytes)
		w.out = append(w.out[:0], changes[:n]...)
		if err := w.flush(ctx); err != nil {
			return 0, err
		}
		changes = changes[n:]
	}
	w.out = binary.BigEndian.AppendUint64(append(w.out[:0], recEnd), uint64(last))
	return last, w.flush(ctx)
}

// slice appends a slice of a table to out. next is nil when it was the last.
func (w *backupWriter) slice(t store.Table) (err error) {
	r, err := w.d.readers.take()
	if err != nil {
		return err
	}
	defer w.d.readers.give(r)
	before := debug.SetPanicOnFault(true)
	defer w.d.guarded(before, &err)
	w.seen = max(w.seen, r.committed)
	c := r.cursor(w.d, t)
	began := time.Now()
	k, v := c.Seek(w.next)
	for n := 0; k != nil; k, v = c.Next() {
		if n++; len(w.out) >= sliceBytes || n%256 == 0 && time.Since(began) > sliceTime {
			break
		}
		checkSizes(k, v)
		w.out = appendPut(w.out, t, k, v)
		w.keys++
	}
	if w.next = nil; k != nil {
		w.next = bytes.Clone(k)
	}
	return nil
}

// flush writes out to the file.
func (w *backupWriter) flush(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := w.d.Err(); err != nil {
		return err
	}
	if err := w.f.write(w.out); err != nil {
		return err
	}
	w.out = w.out[:0]
	if w.o.Progress != nil {
		w.o.Progress(w.f.written)
	}
	return nil
}

// backupFile is a backup that is being written, under a name of its own.
type backupFile struct {
	f       *os.File
	path    string
	written int64 // of the body
	synced  int64
	sum     hasher
}

// newBackupFile makes the file. need is the room that must be there, so that a backup does not take what the device on the
// same disk lives on.
func newBackupFile(path string, need int64) (*backupFile, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("backup to %q: give an absolute path", path)
	}
	if old, err := os.Open(path); err == nil {
		_, err = readHeader(old)
		err = errors.Join(err, old.Close())
		if err != nil {
			return nil, fmt.Errorf("backup to %s: the file exists and is no backup: give another name", path)
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("backup: %w", err)
	}
	var s unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(path), &s); err != nil {
		return nil, fmt.Errorf("backup to %s: folder: %w", path, err)
	}
	if free := int64(s.Bavail) * s.Bsize; free < need {
		return nil, fmt.Errorf("backup to %s: %d bytes free, and up to %d are needed: %w", path, free, need, unix.ENOSPC)
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-*") // 0600: it holds what the MDT's disk holds
	if err != nil {
		return nil, fmt.Errorf("backup: %w", err)
	}
	if _, err := f.Write(make([]byte, headerBytes)); err != nil {
		return nil, errors.Join(fmt.Errorf("backup: %w", err), f.Close(), os.Remove(f.Name()))
	}
	return &backupFile{f: f, path: path, sum: newHasher()}, nil
}

func (f *backupFile) write(b []byte) error {
	f.sum.Write(b)
	n, err := f.f.Write(b)
	f.written += int64(n)
	if err == nil && f.written-f.synced >= backupSyncBytes {
		f.synced = f.written
		err = unix.Fdatasync(int(f.f.Fd()))
	}
	return err
}

// finish writes the header, brings everything to the disk and gives the file its name. It returns the body's length.
func (f *backupFile) finish(b *Backup) (int64, error) {
	head, err := encodeHeader(b, f.written, f.sum.Sum(nil))
	if err != nil {
		return 0, err
	}
	if _, err := f.f.WriteAt(head, 0); err != nil {
		return 0, err
	}
	if err := f.f.Sync(); err != nil {
		return 0, err
	}
	if err := f.f.Close(); err != nil {
		return 0, err
	}
	if err := os.Rename(f.f.Name(), f.path); err != nil {
		return 0, err
	}
	return f.written, syncPath(filepath.Dir(f.path))
}

// remove takes away what was written of a backup that failed; after finish has renamed it there is nothing.
func (f *backupFile) remove() {
	_ = f.f.Close()
	_ = os.Remove(f.f.Name())
}

// RestoredFrom says that the device was restored from a backup, of which time and up to which transno, and that the target
// on it has not taken note yet (TakenNote).
func (d *Device) RestoredFrom() (Restored, bool) {
	d.labelMu.Lock()
	defer d.labelMu.Unlock()
	if d.restored == nil {
		return Restored{}, false
	}
	return *d.restored, true
}

// TakenNote forgets that the device was restored. It is durable when TakenNote returns.
func (d *Device) TakenNote() error {
	d.labelMu.Lock()
	defer d.labelMu.Unlock()
	if err := d.Err(); err != nil {
		return err
	}
	if err := d.update(dropRestored); err != nil {
		d.stop(fmt.Errorf("restored record: %w", err))
		return d.Err()
	}
	d.restored = nil
	return nil
}
