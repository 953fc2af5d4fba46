package mdt

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
)

// op is one operation that runs: what it knows, its locks, its transaction, its messages. One belongs to each worker's Env
// and is used again, so that an operation allocates nothing.
type op struct {
	h      *Handler
	e      *env.Env
	x      *target.Export
	xs     *export
	c      *rpc.Call
	tx     *store.Tx
	client uint64
	cred   attr.Cred
	caller *wirepb.Caller
	now    attr.Time

	locks lockSet
	scan  entryScan
	free  slot
	list  dirScan
	// tmpl is the layout being made or destroyed, wish the template it follows.
	tmpl, wish layout.Layout
	layoutBuf  []byte
	dots       [2]byte
	// want is the bits that the client would like of the inode that lockOne is about to lock; granted are the locks that go
	// with the answer; died are the inodes that the transaction ends.
	want    ldlm.Bits
	writing bool // the operation makes the client a writer
	granted []uint64
	died    []fid.FID
	// reported are the files of the batch of reports being applied.
	reported []fid.FID
	// folder, to, child and other are the inodes of the operation, by their part in it.
	// step is one of a walk, and the whiteout of a rename.
	folder, to, child, other, step inode
	move                           renaming
	// again is what a replay knows of its first run; outcomes is what the reports of this one have made of their files.
	again    again
	outcomes []byte
	// deps is what the operation has declared to depend on since it took its locks: see depend.go.
	deps []stamp
	// beyond is the newest change of another client that it rests on besides, shown the newest that its answer shows, and
	// awaits what has to be on disk before it starts over; tries is how often it has waited for that.
	beyond, shown, awaits store.Transno
	// above is the newest change of another client among the folders that a rename has walked.
	above store.Transno
	tries int
	// removed are the names that the transaction takes away, by removalKey.
	removed []uint64

	req requests
	rep replies
}

// requests holds one message of each kind that an MDT decodes.
type requests struct {
	lookup   wirepb.LookupRequest
	getattr  wirepb.GetattrRequest
	open     wirepb.OpenRequest
	create   wirepb.CreateRequest
	link     wirepb.LinkRequest
	unlink   wirepb.UnlinkRequest
	rename   wirepb.RenameRequest
	setattr  wirepb.SetattrRequest
	readdir  wirepb.ReaddirRequest
	xattr    wirepb.XattrRequest
	close    wirepb.CloseRequest
	reports  wirepb.ReportSizesRequest
	reopen   wirepb.ReopenRequest
	oneSize  [1]*wirepb.SizeReport
	enqueue  wirepb.EnqueueRequest
	sync     wirepb.SyncRequest
	path     wirepb.PathRequest
	layout   wirepb.LayoutRequest
	setAttrs attr.Attr
}

// replies holds one message of each kind that an MDT answers with; their sub-messages are here too.
type replies struct {
	entry   wirepb.EntryReply
	unlink  wirepb.UnlinkReply
	rename  wirepb.RenameReply
	readdir wirepb.ReaddirReply
	dirent  wirepb.Dirent
	xattr   wirepb.XattrReply
	seq     wirepb.SeqReply
	report  wirepb.ReportReply
	reopen  wirepb.ReopenReply
	statfs  wirepb.StatfsReply
	attr    wirepb.Attr
	attr2   wirepb.Attr
	parent  wirepb.Attr
	parent2 wirepb.Attr

	want     wirepb.LockWant
	grant    wirepb.LockGrant
	locks    [1]*wirepb.LockGrant
	lockOnly wirepb.EntryReply
}

// opOf is the op of an Env, made at its first use.
func opOf(e *env.Env) *op {
	o, ok := e.State(env.LayerMDT).(*op)
	if !ok {
		o = &op{dots: [2]byte{'.', '.'}, deps: newDeps()}
		o.scan.init()
		o.list.init()
		e.SetState(env.LayerMDT, o)
	}
	return o
}

// begin readies the worker's op for a request.
func (h *Handler) begin(e *env.Env, x *target.Export, c *rpc.Call) *op {
	o := opOf(e)
	o.h, o.e, o.x, o.c = h, e, x, c
	o.client, o.xs = 0, nil
	cause := ldlm.Local
	if x != nil {
		o.client = binary.BigEndian.Uint64(x.UUID[:])
		if o.xs, _ = x.State.(*export); o.xs != nil && o.xs.locks != nil {
			cause = o.xs.locks.ID()
		}
	}
	o.locks.begin(h, e, cause)
	o.tx, o.caller = nil, nil
	o.beyond, o.shown, o.awaits = 0, 0, 0
	o.want, o.writing, o.granted, o.died = 0, false, o.granted[:0], o.died[:0]
	o.again.on, o.outcomes = false, o.outcomes[:0]
	o.now = attr.TimeOf(h.o.Clock())
	return o
}

// end gives back what the operation holds.
func (o *op) end() { o.locks.release() }

// decode reads the request into m and its caller.
func (o *op) decode(m interface {
	rpc.Message
	ResetVT()
}) error {
	m.ResetVT()
	return o.c.Decode(m)
}

// as takes the caller of a request.
func (o *op) as(m *wirepb.Caller) error {
	o.caller = m
	return wire.Caller(m, &o.cred)
}

// fid joins and checks the FID of a request that addresses an inode.
func (o *op) fid(seq uint64, oid uint32) (fid.FID, error) {
	f, err := wire.FID(seq, oid)
	if err != nil {
		return fid.FID{}, status.Stale
	}
	return f, nil
}

// throttle waits for room in the device. reserve lets the operation use the last of it: it makes room, or ends something, or is a
// replay.
func (o *op) throttle(reserve bool) error {
	return o.h.dev.Throttle(o.ctx(), reserve || o.again.on)
}

// ctx ends with the call's connection; without a call, and for a replay, with the target.
func (o *op) ctx() context.Context {
	if o.c == nil || o.again.on {
		return o.h.life
	}
	return o.h.contextOf(o.c)
}

// acquire takes the locks named; see lockSet.acquire.
func (o *op) acquire() (bool, error) {
	o.deps, o.beyond = o.deps[:0], 0
	ok, err := o.locks.acquire(o.ctx())
	if err != nil {
		return false, fmt.Errorf("mdt: waiting for a lock: %w", err)
	}
	return ok, nil
}

// lockAll takes the locks named, however often it has to try.
func (o *op) lockAll() error {
	for {
		if ok, err := o.acquire(); ok || err != nil {
			return err
		}
		o.h.stats.restarts.Inc()
	}
}

// beginTx makes the operation's transaction.
func (o *op) beginTx() {
	o.tx = o.h.dev.Begin(o.e)
	o.died, o.removed = o.died[:0], o.removed[:0]
}

// commit publishes the transaction with the reply.
func (o *op) commit(reply rpc.Message) error {
	o.noted(reply)
	if err := o.h.target.Commit(o.e, o.c, o.tx, reply); err != nil {
		return err
	}
	if len(o.removed) > 0 && o.h.sharing.level.Load() != shareNothing {
		for _, key := range o.removed { // The names are locked until this is noted.
			o.h.sharing.removed.add(key, stamp{store.Transno(o.c.Transno), o.client}, o.h.dev.Committed())
		}
	}
	return nil
}

// get reads an inode. One that is not there is Stale: the request named it by a FID that is gone, and the kernel of the
// client looks its name up again once.
func (o *op) get(f fid.FID, n *inode) error {
	v, err := o.h.dev.Get(o.e, o.h.tables.Inode, f.AppendKey(o.e.Alloc(fid.KeySize)[:0]))
	if errors.Is(err, store.ErrNotFound) {
		return status.Stale
	}
	if err != nil {
		return fmt.Errorf("mdt: reading inode %v: %w", f, err)
	}
	return n.decode(f, v)
}

// put adds an inode's record to the transaction, stamped with it. A new folder's content is stamped too.
func (o *op) put(n *inode, fresh bool) {
	n.own = stamp{client: n.own.followed(o.client, o.h.dev.Committed())}
	key := n.FID.AppendKey(o.e.Alloc(fid.KeySize)[:0])
	if fresh && n.IsDir() {
		n.content = n.own
		o.tx.Put(o.h.tables.Inode, key, n.appendTo(o.e.Alloc(n.encodedSize())[:0]), atOwnStamp, atContentNo)
		return
	}
	o.tx.Put(o.h.tables.Inode, key, n.appendTo(o.e.Alloc(n.encodedSize())[:0]), atOwnStamp)
}

// touch sets ctime to now. It never goes back.
func (o *op) touch(n *inode) { n.Ctime = o.now.Later(n.Ctime) }

// delta adds a change of a folder's shared attributes, and makes it in n too, for the reply.
func (o *op) delta(n *inode, nlink int32, entries int64) {
	d := o.e.Alloc(deltaSize)
	putDelta(d, nlink, entries, o.now, stamp{o.h.dev.Committed(), o.client})
	o.tx.Delta(o.h.tables.Inode, n.FID.AppendKey(o.e.Alloc(fid.KeySize)[:0]), d, deltaAtContent)
	n.Nlink += uint32(nlink)
	n.entries += uint64(entries)
	n.Size = folderSize(n.entries)
	n.Blocks = n.Size / 512
	n.Mtime = o.now
	o.touch(n)
}

// settle reports whether the attributes of folder n in a reply that was made before publishing are what they were right
// after it. If other operations worked in the folder meanwhile, they are read again and settle returns true when the reply
// has to be encoded once more. The client takes those of the reply with the highest transno.
func (o *op) settle(n *inode, m *wirepb.Attr) bool {
	if o.locks.alone(n.FID) {
		return false
	}
	if err := o.get(n.FID, n); err != nil {
		return false
	}
	putAttr(m, n)
	return true
}

// resend encodes a reply again after settle has changed it. What the slot keeps for a resend stays as it was: a client
// that lost a reply asks for attributes anew.
func (o *op) resend(m rpc.Message) {
	b := o.e.Alloc(m.SizeVT())
	if _, err := m.MarshalToSizedBufferVT(b); err == nil {
		o.c.RawReply = b // Else the reply made before publishing goes out: the change is made in any case.
	}
}

// entryReply fills the entry reply with an inode.
func (o *op) entryReply(n *inode) *wirepb.EntryReply {
	r := &o.rep.entry
	putAttr(&o.rep.attr, n)
	r.Attr, r.Parent = &o.rep.attr, nil
	r.Layout, r.Symlink, r.Recovery = nil, nil, nil
	r.Handle, r.Created, r.Locks = 0, false, nil
	switch n.Type() {
	case attr.TypeFile:
		r.Layout = n.sec[secLayout]
	case attr.TypeDir:
		r.Layout = n.sec[secDefault]
	case attr.TypeLink:
		r.Symlink = n.sec[secSymlink]
	}
	return r
}

// commitEntry publishes with an entry reply whose parent is the folder changed.
func (o *op) commitEntry(r *wirepb.EntryReply, folder *inode) error {
	putAttr(&o.rep.parent, folder)
	r.Parent = &o.rep.parent
	if err := o.commit(r); err != nil {
		return err
	}
	if o.settle(folder, &o.rep.parent) {
		r.Locks = o.grants()
		o.resend(r)
		return nil
	}
	o.attach()
	return nil
}

// commitGranted publishes with an entry reply that changes no folder.
func (o *op) commitGranted(r *wirepb.EntryReply) error {
	if err := o.commit(r); err != nil {
		return err
	}
	o.attach()
	return nil
}

// putAttr fills m with n's attributes.
func putAttr(m *wirepb.Attr, n *inode) {
	n.NoXattr = len(n.sec[secXattrs]) == 0 && len(n.sec[secACL]) == 0 && len(n.sec[secDefaultACL]) == 0
	wire.PutAttr(m, &n.Attr)
}
