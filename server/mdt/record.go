package mdt

import (
	"encoding/binary"
	"fmt"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/store"
)

// stamp says which transaction changed something last, and for which client (0: the target itself).
type stamp struct {
	transno store.Transno
	client  uint64
}

// severalClients is the client of a stamp whose change followed one of another client that was not on disk: for every client
// what is stamped holds changes of others. The next change after the commit stamps its client again.
const severalClients = ^uint64(0)

// followed is the client of a stamp that follows s for a client while all up to committed is on disk.
func (s stamp) followed(client uint64, committed store.Transno) uint64 {
	if s.transno > committed && s.client != client {
		return severalClients
	}
	return client
}

// recordVersion is the first byte of an inode record.
const recordVersion = 1

// Flag bits of an inode record.
const (
	recSizeValid = 1 << iota
	// recNoLink: made with O_TMPFILE|O_EXCL, link(2) must not give it a name.
	recNoLink
	// recMtimeSet: mtime was set by utimes after the last size report, so that a report may move it back.
	recMtimeSet
	// recTmpfile: has never had a name.
	recTmpfile
	// recWritten: was opened for write or had its size set, so that its objects may hold bytes.
	recWritten
	recFlagsEnd
)

// Sections of an inode record, in the order they are stored. An absent section is empty.
const (
	secLayout = iota
	secDefault
	secSymlink
	secACL
	secDefaultACL
	secLinks
	secXattrs
	numSections
)

// recordFixed is the length of the part before the sections; offsets of its stamps follow.
const (
	recordFixed  = 128
	atNlink      = 16
	atSize       = 32
	atMtime      = 60
	atCtime      = 72
	atOwnStamp   = 96
	atContentNo  = 112
	atContentCli = 120
)

// inode is a record in memory. Its sections share memory with the value they were decoded from.
//
// An inode record, numbers big-endian, uvarint where marked v:
//
//	  0  1  version (1)
//	  1  1  flags: 1 size_valid, 2 never linkable, 4 mtime was set, 8 never had a name, 16 written
//	  2  2  mode
//	  4  4  uid
//	  8  4  gid
//	 12  4  project
//	 16  4  nlink
//	 20  4  rdev
//	 24  4  inode flags of chattr
//	 28  4  setattr generation
//	 32  8  size in bytes; of a folder the number of its entries
//	 40  8  blocks of 512 bytes
//	 48 12  atime: seconds, nanoseconds
//	 60 12  mtime
//	 72 12  ctime
//	 84 12  btime
//	 96  8  own stamp: transno of the last change of the inode itself
//	104  8  own stamp: client
//	112  8  content stamp of a folder: transno of the last change of its entries
//	120  8  content stamp: client
//	128     sections, each: 1 number, v length, bytes; ascending numbers:
//	        0 layout, 1 default layout of a folder, 2 symlink target, 3 access ACL, 4 default ACL (both as xattrs),
//	        5 parent links (links.go), 6 xattrs (xattrs.go)
type inode struct {
	attr.Attr
	flags   uint8
	entries uint64
	own     stamp
	content stamp
	sec     [numSections][]byte
}

func putTime(b []byte, t attr.Time) {
	binary.BigEndian.PutUint64(b, uint64(t.Sec))
	binary.BigEndian.PutUint32(b[8:], t.Nsec)
}

func getTime(b []byte) attr.Time {
	return attr.Time{Sec: int64(binary.BigEndian.Uint64(b)), Nsec: binary.BigEndian.Uint32(b[8:])}
}

// size is the length of n's record.
func (n *inode) encodedSize() int {
	size := recordFixed
	for _, s := range &n.sec {
		if len(s) > 0 {
			size += 1 + binary.MaxVarintLen32 + len(s)
		}
	}
	return size
}

// appendTo appends n's record to b.
func (n *inode) appendTo(b []byte) []byte {
	be := binary.BigEndian
	flags := n.flags &^ recSizeValid
	if n.SizeValid {
		flags |= recSizeValid
	}
	size := n.Size
	if n.IsDir() {
		size = n.entries
	}
	b = append(b, recordVersion, flags)
	b = be.AppendUint16(b, uint16(n.Mode))
	for _, v := range [...]uint32{n.UID, n.GID, n.ProjID, n.Nlink, n.Rdev, uint32(n.Flags), n.SetattrGen} {
		b = be.AppendUint32(b, v)
	}
	b = be.AppendUint64(b, size)
	b = be.AppendUint64(b, n.Blocks)
	for _, t := range [...]attr.Time{n.Atime, n.Mtime, n.Ctime, n.Btime} {
		b = be.AppendUint64(b, uint64(t.Sec))
		b = be.AppendUint32(b, t.Nsec)
	}
	for _, v := range [...]uint64{uint64(n.own.transno), n.own.client, uint64(n.content.transno), n.content.client} {
		b = be.AppendUint64(b, v)
	}
	for i, s := range &n.sec {
		if len(s) > 0 {
			b = append(b, byte(i))
			b = binary.AppendUvarint(b, uint64(len(s)))
			b = append(b, s...)
		}
	}
	return b
}

// decode reads the record of f. The sections share v's memory.
func (n *inode) decode(f fid.FID, v []byte) error {
	if len(v) < recordFixed || v[0] != recordVersion || v[1] >= recFlagsEnd {
		return fmt.Errorf("%w: inode %v: %d bytes", errFormat, f, len(v))
	}
	be := binary.BigEndian
	*n = inode{flags: v[1] &^ recSizeValid}
	n.FID, n.SizeValid = f, v[1]&recSizeValid != 0
	n.Mode = uint32(be.Uint16(v[2:]))
	n.UID, n.GID, n.ProjID = be.Uint32(v[4:]), be.Uint32(v[8:]), be.Uint32(v[12:])
	n.Nlink, n.Rdev, n.Flags = be.Uint32(v[atNlink:]), be.Uint32(v[20:]), attr.Flags(be.Uint32(v[24:]))
	n.SetattrGen, n.Size, n.Blocks = be.Uint32(v[28:]), be.Uint64(v[atSize:]), be.Uint64(v[40:])
	n.Atime, n.Mtime, n.Ctime, n.Btime = getTime(v[48:]), getTime(v[atMtime:]), getTime(v[atCtime:]), getTime(v[84:])
	n.own = stamp{store.Transno(be.Uint64(v[atOwnStamp:])), be.Uint64(v[104:])}
	n.content = stamp{store.Transno(be.Uint64(v[atContentNo:])), be.Uint64(v[atContentCli:])}
	if err := n.decodeSections(v[recordFixed:]); err != nil {
		return fmt.Errorf("%w: inode %v: %w", errFormat, f, err)
	}
	if n.IsDir() {
		n.entries = n.Size
		n.Size = folderSize(n.entries)
		n.Blocks = n.Size / 512
	}
	if !n.IsFile() {
		n.SizeValid = true
	}
	n.HasACL = len(n.sec[secACL]) > 0
	return nil
}

func (n *inode) decodeSections(v []byte) error {
	last := -1
	for len(v) > 0 {
		i := int(v[0])
		size, k := binary.Uvarint(v[1:])
		if i <= last || i >= numSections || k <= 0 || size == 0 || size > uint64(len(v)-1-k) {
			return fmt.Errorf("section %d of %d bytes", i, size)
		}
		end := 1 + k + int(size)
		n.sec[i] = v[1+k : end : end]
		v, last = v[end:], i
	}
	return nil
}

// folderSize is the st_size of a folder with so many entries: whole blocks of 4 KiB, 32 bytes an entry.
func folderSize(entries uint64) uint64 { return (entries/128 + 1) * 4096 }

// Parent deltas. A delta changes what parallel operations in one folder share; big-endian:
//
//	 0  4  added to nlink, signed
//	 4  8  added to the number of entries, signed
//	12 12  the new mtime: it may lie before the present one, which utimes can have set to any value
//	24 12  the least ctime
//	36  8  content stamp: transno
//	44  8  content stamp: client
//	52  8  what was on disk when the delta was made: a stamp before this one that is newer and another client's is not forgotten
//
// Deltas live in memory until their txg is committed, and are not on disk.
const (
	deltaSize      = 60
	deltaAtMtime   = 12
	deltaAtCtime   = 24
	deltaAtContent = 36
	deltaAtHorizon = 52
)

// putDelta fills b, deltaSize bytes, but for the transno, which Publish writes. s is of the client that makes the change, and
// of the newest transaction that is on disk.
func putDelta(b []byte, nlink int32, entries int64, t attr.Time, s stamp) {
	be := binary.BigEndian
	be.PutUint32(b, uint32(nlink))
	be.PutUint64(b[4:], uint64(entries))
	putTime(b[deltaAtMtime:], t)
	putTime(b[deltaAtCtime:], t)
	be.PutUint64(b[deltaAtContent:], 0)
	be.PutUint64(b[deltaAtContent+8:], s.client)
	be.PutUint64(b[deltaAtHorizon:], uint64(s.transno))
}

// getStamp reads a stamp: transno, client.
func getStamp(b []byte) stamp {
	return stamp{store.Transno(binary.BigEndian.Uint64(b)), binary.BigEndian.Uint64(b[8:])}
}

// putContent writes the content stamp that delta leaves behind one that was before to b.
func putContent(b []byte, before stamp, delta []byte) {
	now := getStamp(delta[deltaAtContent:])
	horizon := store.Transno(binary.BigEndian.Uint64(delta[deltaAtHorizon:]))
	binary.BigEndian.PutUint64(b, uint64(now.transno))
	binary.BigEndian.PutUint64(b[8:], before.followed(now.client, horizon))
}

// inodeMerger gives parent deltas their meaning. Whole puts of a folder happen under EX of its UPDATE only, so that they
// never meet a delta in flight.
type inodeMerger struct{}

// Combine implements store.Merger. b is published after a.
func (inodeMerger) Combine(dst, a, b []byte) []byte {
	be := binary.BigEndian
	at := len(dst)
	dst = append(dst, b...)
	d := dst[at:]
	be.PutUint32(d, be.Uint32(a)+be.Uint32(b))
	be.PutUint64(d[4:], be.Uint64(a[4:])+be.Uint64(b[4:]))
	putTime(d[deltaAtCtime:], getTime(a[deltaAtCtime:]).Later(getTime(b[deltaAtCtime:])))
	putContent(d[deltaAtContent:], getStamp(a[deltaAtContent:]), b)
	if be.Uint64(b[deltaAtHorizon:]) < be.Uint64(a[deltaAtContent:]) {
		copy(d[deltaAtHorizon:], a[deltaAtHorizon:deltaSize]) // a is not on disk either, so what counts is what was before it.
	}
	return dst
}

// Apply implements store.Merger. A folder that is gone stays gone.
func (inodeMerger) Apply(dst, base, delta []byte) []byte {
	if base == nil {
		return dst
	}
	be := binary.BigEndian
	at := len(dst)
	dst = append(dst, base...)
	d := dst[at:]
	be.PutUint32(d[atNlink:], be.Uint32(d[atNlink:])+be.Uint32(delta))
	be.PutUint64(d[atSize:], be.Uint64(d[atSize:])+be.Uint64(delta[4:]))
	copy(d[atMtime:atMtime+12], delta[deltaAtMtime:])
	putTime(d[atCtime:], getTime(delta[deltaAtCtime:]).Later(getTime(d[atCtime:])))
	putContent(d[atContentNo:], getStamp(base[atContentNo:]), delta)
	return dst
}
