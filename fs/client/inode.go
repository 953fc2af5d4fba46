package client

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/lov"
	"github.com/strakefs/strake/fs/mdc"
)

// inode is what this mount knows of a regular file in use.
type inode struct {
	c   *Client
	fid fid.FID
	// vanished says that an MDT which was started again has not taken back that the file is open.
	vanished atomic.Bool
	// io serialises appends, truncates and the first opening of the data, which must see one size.
	io ioLock

	mu sync.Mutex
	// refs counts handles, operations and reports on their way; at 0 the table drops the inode. guarded by mu
	refs int
	// file is the data, nil until the layout is known. guarded by mu; set once
	file *lov.File
	// known says that file's size is the truth, because nobody else can change it while the MDT's Update lock is held and
	// this mount knew it. guarded by mu
	known   bool
	handles int
	// writer says that the MDT counts this mount among the file's writers. guarded by mu
	writer bool
	// retiring says that the file is being written back after its last close; again that it was opened and closed once
	// more since that began; lost that some of it could not be stored. guarded by mu
	retiring, again, lost bool
	// closing is the handle that the report of the running retirement closes, 0 for none. guarded by mu
	closing uint64
	// caps is what is known of the file's capabilities. guarded by mu
	caps caps
	// gen is the setattr generation that the times below follow. guarded by mu
	gen      uint32
	mtime    attr.Time
	hasMtime bool
	atime    attr.Time
	hasAtime bool
	// last are the attributes that the MDT gave last, for permission bits and times. guarded by mu
	last attr.Attr
	gone bool
	// unnamed says that the inode had no name when it was opened last. guarded by mu
	unnamed bool
	// flocks are the owners that may hold application locks. guarded by mu
	flocks flockOwners
}

// table finds inodes by number.
type table struct {
	shards [64]shard
}

type shard struct {
	mu sync.Mutex
	m  map[uint64]*inode
}

func (t *table) init() {
	for i := range t.shards {
		t.shards[i].m = make(map[uint64]*inode)
	}
}

func (t *table) shard(ino uint64) *shard { return &t.shards[mix(ino)%uint64(len(t.shards))] }

func (t *table) len() int {
	n := 0
	for i := range t.shards {
		t.shards[i].mu.Lock()
		n += len(t.shards[i].m)
		t.shards[i].mu.Unlock()
	}
	return n
}

// each calls fn for every inode there is.
func (t *table) each(fn func(*inode)) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		list := make([]*inode, 0, len(s.m))
		for _, in := range s.m {
			list = append(list, in)
		}
		s.mu.Unlock()
		for _, in := range list {
			fn(in)
		}
	}
}

// find returns the inode with a reference, nil if the mount has none.
func (c *Client) find(ino uint64) *inode {
	s := c.inodes.shard(ino)
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.m[ino]
	if in != nil {
		in.mu.Lock()
		in.refs++
		in.mu.Unlock()
	}
	return in
}

// get returns the inode with a reference, made if the mount has none.
func (c *Client) get(f fid.FID) *inode {
	s := c.inodes.shard(f.Ino())
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.m[f.Ino()]
	if in == nil {
		in = &inode{c: c, fid: f}
		s.m[f.Ino()] = in
	}
	in.mu.Lock()
	in.refs++
	in.mu.Unlock()
	return in
}

// put gives a reference back.
func (c *Client) put(in *inode) {
	s := c.inodes.shard(in.fid.Ino())
	s.mu.Lock()
	in.mu.Lock()
	in.refs--
	last := in.refs == 0
	file := in.file
	if last && s.m[in.fid.Ino()] == in {
		delete(s.m, in.fid.Ino())
	}
	in.mu.Unlock()
	s.mu.Unlock()
	if last && file != nil {
		file.Close()
	}
}

// detach takes an inode that is not open out of the table: its file may have got other objects, and who opens it from now on
// uses those. An open file keeps its objects; its layout's lock goes when another client removes it. That the MDT has closed
// the last handle may not have been heard here yet.
func (c *Client) detach(ino uint64) {
	s := c.inodes.shard(ino)
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.m[ino]
	if in == nil {
		return
	}
	in.mu.Lock()
	open := in.handles > 0
	in.mu.Unlock()
	if !open {
		delete(s.m, ino)
	}
}

// attach gives the inode its data and size from what the MDT has answered, the size from the OSTs where the MDT does
// not know it.
func (in *inode) attach(ctx context.Context, e *mdc.Entry) error {
	if err := in.io.lock(ctx); err != nil {
		return err
	}
	defer in.io.unlock()
	in.mu.Lock()
	file, known := in.file, in.knowsLocked()
	if in.last.Ctime.Compare(e.Attr.Ctime) <= 0 {
		in.last = e.Attr
	}
	if in.gen < e.Attr.SetattrGen {
		in.gen, in.hasMtime = e.Attr.SetattrGen, false
	}
	in.mu.Unlock()
	if file == nil {
		var err error
		if file, err = in.c.openData(e); err != nil {
			return err
		}
		in.mu.Lock()
		in.file = file
		in.mu.Unlock()
	}
	if known {
		return nil
	}
	// The lock is pinned until the size is entered, so that losing it comes after, but for the loss of all locks.
	forgets := in.c.forgets.Load()
	h, alone := in.c.match(in.fid, ldlm.Update)
	if alone {
		defer in.c.locks.Unpin(h)
	}
	switch {
	case e.Attr.SizeValid:
		file.SetKnown(e.Attr.Size, e.Attr.Blocks)
	case alone:
		s, err := file.Glimpse(ctx)
		if err != nil {
			return fmt.Errorf("client: size of %v: %w", in.fid, err)
		}
		file.SetKnown(s.Size, s.Blocks)
	}
	if alone {
		in.mu.Lock()
		if in.c.forgets.Load() == forgets {
			in.known = true
			file.SetExclusive(true)
		}
		in.mu.Unlock()
	}
	return nil
}

// knowsLocked reports whether the size kept here is the truth.
func (in *inode) knowsLocked() bool { return in.known && in.file != nil }

// knows is knowsLocked for who does not hold mu.
func (in *inode) knows() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.knowsLocked()
}

// loseSizeLocked notes that others may change the size from now on.
func (in *inode) loseSizeLocked() {
	in.known = false
	if in.file != nil {
		in.file.SetExclusive(false)
	}
}

// follows brings the size of a file that others may change up to what was learned of it.
func (in *inode) follows(a *attr.Attr) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.file != nil && !in.writer && !in.knowsLocked() {
		in.file.SetKnown(a.Size, a.Blocks)
	}
}

// openData makes the data of an entry from its layout. No I/O.
func (c *Client) openData(e *mdc.Entry) (*lov.File, error) {
	var l layout.Layout
	if err := l.Decode(e.Layout); err != nil {
		return nil, fmt.Errorf("client: layout of %v: %w", e.Attr.FID, err)
	}
	f, err := c.data.Open(e.Attr.FID, &l, lov.Owner{UID: e.Attr.UID, GID: e.Attr.GID, Project: e.Attr.ProjID})
	if err != nil {
		return nil, fmt.Errorf("client: data of %v: %w", e.Attr.FID, err)
	}
	return f, nil
}

// complete puts what this mount knows better into attributes that the MDT answered with.
func (in *inode) complete(a *attr.Attr) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.knowsLocked() {
		a.Size, a.Blocks, a.SizeValid = in.file.Size(), in.file.Blocks(), true
		a.Volatile = in.file.Vague()
	}
	if in.hasMtime && in.gen >= a.SetattrGen {
		a.Mtime = in.mtime
		a.Ctime = a.Ctime.Later(in.mtime)
	}
	if in.hasAtime {
		a.Atime = in.atime
	}
}

// wrote notes a change of the data at time t.
func (in *inode) wrote(t attr.Time) {
	in.mu.Lock()
	in.mtime, in.hasMtime = t, true
	in.mu.Unlock()
}

// accessed notes a read and moves the access time as the policy says.
func (in *inode) accessed(policy Atime) {
	if policy == NoAtime {
		return
	}
	t := now()
	in.mu.Lock()
	defer in.mu.Unlock()
	if policy == Relatime {
		old, m, ct := in.last.Atime, in.last.Mtime, in.last.Ctime
		if in.hasAtime {
			old = in.atime
		}
		if in.hasMtime {
			m, ct = in.mtime, ct.Later(in.mtime)
		}
		const day = 24 * 60 * 60
		if old.Compare(m) > 0 && old.Compare(ct) > 0 && t.Sec-old.Sec < day {
			return
		}
	}
	in.atime, in.hasAtime = t, true
}

// reportLocked says what the MDT has to know now. done adds that nothing is left to write. After a loss the OSTs know the
// size better than this mount.
func (in *inode) reportLocked(done bool) mdc.Report {
	r := mdc.Report{FID: in.fid, SetattrGen: in.gen, Done: done}
	if in.writer && in.known && !in.lost {
		r.Valid |= attr.ValidSize
		r.Size, r.Blocks = in.file.Size(), in.file.Blocks()
	}
	if in.hasMtime {
		r.Valid |= attr.ValidMtime
		r.Mtime = in.mtime
	}
	if in.hasAtime {
		r.Valid |= attr.ValidAtime
		r.Atime = in.atime
	}
	return r
}
