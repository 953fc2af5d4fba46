package boltdev

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/strakefs/strake/store"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// Restored says what a device was restored from.
type Restored struct {
	// Transno is the last one in the backup, Made when it was made, Instance the target's instance then.
	Transno  store.Transno `json:"transno"`
	Made     time.Time     `json:"made"`
	Instance uint64        `json:"instance"`
}

// restoreStarts is how far the start count jumps: the device may have been started so often since the backup, and no
// transno may be given twice. A million starts in all leave room for a thousand restores.
const restoreStarts = 1024

// restoreBatch is how many records go into one transaction of the database: its dirty pages are in memory.
const restoreBatch = 50_000

var keyRestored = []byte("restored")

// CheckBackup reads a backup file to its end and describes it. Errors wrap ErrBackup where the file is damaged.
func CheckBackup(path string) (Backup, error) {
	f, err := os.Open(path)
	if err != nil {
		return Backup{}, err
	}
	defer f.Close()
	h, err := checkBackup(f)
	if err != nil {
		return h.Backup, fmt.Errorf("%s: %w", path, err)
	}
	return h.Backup, nil
}

// checkBackup checks the checksums and leaves f at the body.
func checkBackup(f *os.File) (header, error) {
	h, err := readHeader(f)
	if err != nil {
		return h, err
	}
	sum := newHasher()
	n, err := io.Copy(sum, bufio.NewReaderSize(f, 1<<20))
	switch {
	case err != nil:
		return h, err
	case n != h.Bytes:
		return h, fmt.Errorf("%w: its body has %d bytes, its header says %d", ErrBackup, n, h.Bytes)
	case !bytes.Equal(sum.Sum(nil), h.sum):
		return h, fmt.Errorf("%w: the body's checksum does not match", ErrBackup)
	}
	_, err = f.Seek(headerBytes, io.SeekStart)
	return h, err
}

// Restore makes the device of a backup in a folder that is absent or empty. The whole file is checked before anything is
// written, and the database gets its name when it is whole and on disk: a restore that fails or is cut short leaves the
// folder as one to be formatted. The first Open after it finds RestoredFrom, and transnos far above the backup's.
func Restore(path, dir string) (b Backup, err error) {
	f, err := os.Open(path)
	if err != nil {
		return b, err
	}
	defer f.Close()
	h, err := checkBackup(f)
	if err != nil {
		return b, fmt.Errorf("%s: %w", path, err)
	}
	made, err := makeDir(dir)
	defer func() {
		if err != nil {
			err = fmt.Errorf("data folder %s: %w", dir, err)
			for _, m := range made {
				_ = os.Remove(m) // only if it is empty still
			}
		}
	}()
	if err != nil {
		return b, err
	}
	lock, err := lockDir(dir, time.Second)
	if err != nil {
		return b, err
	}
	defer lock.Close()
	fresh, err := isFresh(dir)
	if err != nil {
		return b, err
	}
	if !fresh {
		return b, fmt.Errorf("%w: it holds a target's %s (give an empty folder, or move this one away)", ErrNotEmpty, dbName)
	}
	return h.Backup, restoreInto(f, &h, dir)
}

// restoreInto writes the database and gives it its name.
func restoreInto(f *os.File, h *header, dir string) (err error) {
	path := filepath.Join(dir, newName)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(path)
		}
	}()
	options := boltOptions()
	// The map must not have to grow while pages of it are in use, and need not: it costs address space only.
	options.NoSync, options.NoFreelistSync = true, false
	for ; ; options.InitialMmapSize /= 4 {
		options.MaxSize = options.InitialMmapSize
		var db *bolt.DB
		db, err = bolt.Open(path, 0o600, options)
		if errors.Is(err, unix.ENOMEM) && options.InitialMmapSize >= 1<<30 {
			continue
		}
		if err != nil {
			return err
		}
		l := loader{db: db, in: recordReader{in: bufio.NewReaderSize(f, 1<<20)}, h: h}
		err = l.run()
		if err == nil {
			err = db.Sync()
		}
		if err = errors.Join(err, db.Close()); err != nil {
			return err
		}
		break
	}
	if err := syncPath(path); err != nil {
		return err
	}
	if err := os.Rename(path, filepath.Join(dir, dbName)); err != nil {
		return err
	}
	return syncPath(dir)
}

// loader puts a backup's records into an empty database.
type loader struct {
	db     *bolt.DB
	in     recordReader
	h      *header
	names  [256]string // of the tables, by index
	inTail bool
	ended  bool
}

func (l *loader) run() error {
	for !l.ended {
		if err := l.db.Update(l.batch); err != nil {
			return err
		}
	}
	return nil
}

// batch puts up to restoreBatch records in.
func (l *loader) batch(tx *bolt.Tx) error {
	var buckets [256]*bolt.Bucket
	for range restoreBatch {
		r, err := l.in.next()
		if err != nil {
			return err
		}
		switch r.kind {
		case recTable:
			l.names[r.table] = string(r.key)
			buckets[r.table], err = tx.CreateBucketIfNotExists(bucketOf(l.names[r.table]))
		case recTail:
			l.inTail = true
		case recEnd:
			l.ended = true
			return l.finish(tx, r.transno)
		default:
			b := buckets[r.table]
			if b == nil {
				if l.names[r.table] == "" {
					return fmt.Errorf("%w: a key of a table that was not named", ErrBackup)
				}
				b = tx.Bucket(bucketOf(l.names[r.table]))
				if b.FillPercent = fillAscending; l.inTail {
					b.FillPercent = bolt.DefaultFillPercent
				}
				buckets[r.table] = b
			}
			if r.kind == recPut {
				// bbolt keeps the value until the transaction ends.
				err = b.Put(r.key, bytes.Clone(r.value))
			} else {
				err = b.Delete(r.key)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// finish writes the records of the device itself.
func (l *loader) finish(tx *bolt.Tx, last store.Transno) error {
	if last != l.h.Transno {
		return fmt.Errorf("%w: its body ends at transno %#x, its header says %#x", ErrBackup, uint64(last), uint64(l.h.Transno))
	}
	b, err := tx.CreateBucketIfNotExists(bucketDevice)
	if err != nil {
		return err
	}
	note, err := json.Marshal(Restored{Transno: l.h.Transno, Made: l.h.Made, Instance: l.h.Instance})
	if err != nil {
		return err
	}
	return errors.Join(putUint(b, keyFormat, formatVersion), putUint(b, keyStarts, l.h.Starts+restoreStarts),
		putUint(b, keyCommitted, uint64(last)), b.Put(keyRestored, note), putLabel(tx, l.h.Label))
}

// dropRestored removes the note of a restore.
func dropRestored(tx *bolt.Tx) error { return tx.Bucket(bucketDevice).Delete(keyRestored) }

// readRestored reads it; nil where there is none.
func readRestored(b *bolt.Bucket) (*Restored, error) {
	v := b.Get(keyRestored)
	if v == nil {
		return nil, nil
	}
	r := &Restored{}
	if err := json.Unmarshal(v, r); err != nil {
		return nil, fmt.Errorf("%w: note of a restore: %w", ErrCorrupt, err)
	}
	return r, nil
}
