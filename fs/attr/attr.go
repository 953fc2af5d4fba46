package attr

import (
	"time"

	"github.com/strakefs/strake/fs/fid"
)

// File type and permission bits of Mode, as in <sys/stat.h>.
const (
	TypeMask   = 0o170000
	TypeSocket = 0o140000
	TypeLink   = 0o120000
	TypeFile   = 0o100000
	TypeBlock  = 0o060000
	TypeDir    = 0o040000
	TypeChar   = 0o020000
	TypeFifo   = 0o010000

	SetUID   = 0o4000
	SetGID   = 0o2000
	Sticky   = 0o1000
	PermMask = 0o7777
)

// Limits of names and links. NameMax is in bytes. SymlinkMax is PATH_MAX without its NUL.
const (
	NameMax    = 255
	SymlinkMax = 4095
	// LinkMax bounds hard links of a file, so that nlink never wraps; folders have no such bound.
	LinkMax = 1<<31 - 1
	// SizeMax is the largest file size: offsets stay positive in a signed 64-bit loff_t.
	SizeMax = 1<<63 - 1
)

// Flags are the inode flags of chattr(1) that the file system keeps; the bit values are those of FS_IOC_SETFLAGS.
type Flags uint32

// Inode flags.
const (
	FlagSync      Flags = 0x8
	FlagImmutable Flags = 0x10
	FlagAppend    Flags = 0x20
	FlagNoDump    Flags = 0x40
	FlagNoAtime   Flags = 0x80
	FlagDirSync   Flags = 0x10000
	FlagProjInh   Flags = 0x20000000
)

// Time is a point in time since 1970-01-01 UTC. Nsec is 0 to 999,999,999.
type Time struct {
	Sec  int64
	Nsec uint32
}

// TimeOf converts a time.Time.
func TimeOf(t time.Time) Time { return Time{Sec: t.Unix(), Nsec: uint32(t.Nanosecond())} }

// Go converts to a time.Time.
func (t Time) Go() time.Time { return time.Unix(t.Sec, int64(t.Nsec)) }

// Compare orders two times: -1, 0 or 1.
func (t Time) Compare(u Time) int {
	switch {
	case t.Sec < u.Sec || t.Sec == u.Sec && t.Nsec < u.Nsec:
		return -1
	case t == u:
		return 0
	}
	return 1
}

// Later returns the later of two times.
func (t Time) Later(u Time) Time {
	if t.Compare(u) < 0 {
		return u
	}
	return t
}

// Attr is what an inode's owner, mode, size and times are. Size is in bytes, Blocks in units of 512 bytes.
type Attr struct {
	FID    fid.FID
	Mode   uint32
	UID    uint32
	GID    uint32
	ProjID uint32
	Nlink  uint32
	// Rdev is a device's number in the kernel's new encoding (major 12 bits, minor 20), 0 otherwise.
	Rdev   uint32
	Flags  Flags
	Size   uint64
	Blocks uint64
	Atime  Time
	Mtime  Time
	Ctime  Time
	// Btime is the birth time: set at creation, never changed.
	Btime Time
	// SizeValid says that Size, Blocks and Mtime are the file's whole truth; while it is false for a regular file,
	// the OSTs must be asked.
	SizeValid bool
	// SetattrGen counts explicit changes of times and size; a size report that follows an older one does not move
	// the times.
	SetattrGen uint32
	// HasACL says that the inode carries an access ACL, so that the mode alone does not decide permission.
	HasACL bool
	// NoXattr says that the inode has no extended attribute at all, ACLs included.
	NoXattr bool
	// Volatile says that Blocks may change by itself, so that nobody should keep these attributes. It is never stored.
	Volatile bool
	// Under says under which hold of its locks a client has these attributes, 0 for none. It is never stored nor sent.
	Under uint32
}

// Type returns the S_IFMT bits.
func (a *Attr) Type() uint32 { return a.Mode & TypeMask }

// IsDir reports whether the inode is a folder.
func (a *Attr) IsDir() bool { return a.Type() == TypeDir }

// IsFile reports whether the inode is a regular file.
func (a *Attr) IsFile() bool { return a.Type() == TypeFile }

// DirentType is the d_type of readdir(3) for a mode.
func DirentType(mode uint32) uint32 { return (mode & TypeMask) >> 12 }
