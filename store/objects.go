package store

import (
	"context"

	"github.com/strakefs/strake/fs/fid"
)

// Fallocate modes, with the values of fallocate(2).
const (
	FallocKeepSize  = 0x1
	FallocPunchHole = 0x2
	FallocZeroRange = 0x10
)

// Objects is the object files of a device. What it changes is durable after Flush (or the object's own Sync, for its
// data), not before; it is visible at once. All methods may wait for the disk.
type Objects interface {
	// Create makes empty objects; one that exists is left as it is.
	Create(ids []fid.ObjectID) error
	// Open returns a handle for reading and writing, ErrNotFound if there is no such object. Handles of one object
	// share one file; Close gives it back.
	Open(id fid.ObjectID) (Object, error)
	// Remove destroys an object; open handles keep working on its bytes until they are closed. ErrNotFound if there is
	// none.
	Remove(id fid.ObjectID) error
	// Walk calls fn for every object of a group, in no order, until fn returns false.
	Walk(group uint32, fn func(fid.ObjectID) bool) error
	// Flush makes every change before the call durable: data, sizes and folder entries of all objects.
	Flush(ctx context.Context) error
}

// Object is a handle on one object file. Offsets and lengths are bytes.
type Object interface {
	// ReadAt fills b from off and returns how many bytes there were; fewer than len(b) only at the object's end, and
	// then without an error.
	ReadAt(b []byte, off int64) (int, error)
	// WriteAt writes all of b at off.
	WriteAt(b []byte, off int64) error
	// Truncate sets the size.
	Truncate(size int64) error
	// Fallocate does what fallocate(2) does for the modes above; others give an error that wraps EOPNOTSUPP.
	Fallocate(mode uint32, off, n int64) error
	// SeekData and SeekHole are lseek(2)'s SEEK_DATA and SEEK_HOLE; past the end they return ErrNotFound.
	SeekData(off int64) (int64, error)
	SeekHole(off int64) (int64, error)
	// Stat tells size and allocated blocks of 512 bytes.
	Stat() (size int64, blocks int64, err error)
	// Sync makes the object's data and size durable, and its folder entry.
	Sync() error
	Close() error
}
