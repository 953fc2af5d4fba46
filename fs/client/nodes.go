package client

import (
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/puzpuzpuz/xsync/v4"
	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/mdc"
	"github.com/strakefs/strake/fs/wire"
)

// wanted are the bits asked for with an inode's attributes.
const wanted = ldlm.Lookup | ldlm.Update | ldlm.Perm | ldlm.Xattr | ldlm.Layout

// attrBits cover all attributes.
const attrBits = ldlm.Update | ldlm.Perm

// name is an entry that leads to an inode.
type name struct {
	parent uint64
	name   string
}

// link is a name of a node. It is hidden while this client changes it, and after a change that failed: then nothing is
// answered from it, but the kernel may still have it.
type link struct {
	entry  name
	hidden bool
}

// node is what is cached of an inode under locks of the MDT.
//
// Invariant: valid is a part of held; what a bit covers is there and right while its bit is in valid.
type node struct {
	fid fid.FID

	mu sync.Mutex
	// held are the bits of the locks held; without any the node is out of the table (dead). guarded by mu
	held ldlm.Bits
	// valid are the bits whose content is here: Lookup names, Update and Perm together attr, Xattr xattrs. guarded by mu
	valid ldlm.Bits
	dead  bool // guarded by mu
	// gone says that this client has removed the inode's last name: no answer that leads to it is on its way. guarded by mu
	gone bool
	// epoch changes when a bit is lost, and is never that of another node or time; never 0. guarded by mu
	epoch uint32
	attr  attr.Attr // guarded by mu
	// changed numbers this client's newest change of a folder that attr follows. guarded by mu
	changed wire.Transno
	layout  []byte // guarded by mu
	// names lead here, as far as this client has looked them up. guarded by mu
	names []link
	// xattrs holds values, nil for absent names. guarded by mu
	xattrs map[string][]byte
	// told says what the kernel was given with a timeout, and toldAt when that was last. guarded by mu
	told   told
	toldAt time.Time
}

// told is a set of what the kernel may believe.
type told uint8

const (
	toldEntry told = 1 << iota
	toldAttr
)

// nodes is the table of nodes. As many are there as inode locks are held, which the lock cache bounds.
//
// Lock order: node.mu, then a bucket of one of the maps.
type nodes struct {
	seed maphash.Seed
	// inos finds nodes by inode number, names by the hash of folder and name.
	inos, names *xsync.Map[uint64, *node]

	epochs               atomic.Uint32
	hits, misses, purged atomic.Int64
	created              atomic.Int64
}

func (t *nodes) nextEpoch() uint32 {
	for {
		if n := t.epochs.Add(1); n != 0 {
			return n
		}
	}
}

func (t *nodes) init() {
	t.seed = maphash.MakeSeed()
	t.inos, t.names = xsync.NewMap[uint64, *node](), xsync.NewMap[uint64, *node]()
}

func (t *nodes) hash(parent uint64, name string) uint64 {
	return mix(maphash.String(t.seed, name) ^ parent*0x9e3779b97f4a7c15)
}

// find returns the node of an inode, nil without one.
func (t *nodes) find(ino uint64) *node {
	n, _ := t.inos.Load(ino)
	return n
}

// lock returns the node of an inode, made if there is none, with its mutex held.
func (t *nodes) lock(f fid.FID) *node {
	for {
		n, had := t.inos.LoadOrCompute(f.Ino(), func() (*node, bool) { return &node{fid: f, epoch: t.nextEpoch()}, false })
		if !had {
			t.created.Add(1)
		}
		n.mu.Lock()
		if !n.dead {
			return n
		}
		n.mu.Unlock() // It is about to leave the table.
	}
}

// drop takes a node without locks out of the table.
func (t *nodes) drop(n *node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.held == 0 && !n.dead {
		n.dead = true
		t.inos.Delete(n.fid.Ino())
		t.purged.Add(1)
	}
}

// byName returns the node that an entry leads to, nil where that is not known. The caller looks again under node.mu.
func (t *nodes) byName(parent uint64, name string) *node {
	n, _ := t.names.Load(t.hash(parent, name))
	return n
}

// nameLocked adds an entry that leads to n.
// Precondition: n.mu is held, and a lock with Lookup.
func (t *nodes) nameLocked(n *node, e name) {
	if i := n.linkLocked(e); i < 0 {
		n.names = append(n.names, link{entry: e})
	} else if n.names[i].hidden {
		n.names[i].hidden = false
	} else {
		return
	}
	t.names.Store(t.hash(e.parent, e.name), n)
}

// linkLocked finds a name in n.names, -1 for none.
func (n *node) linkLocked(e name) int {
	return slices.IndexFunc(n.names, func(l link) bool { return l.entry == e })
}

func (n *node) leadsLocked(e name) bool {
	i := n.linkLocked(e)
	return i >= 0 && !n.names[i].hidden
}

// unnameLocked takes names of n out of the table.
func (t *nodes) unnameLocked(n *node, list []link) {
	for _, l := range list {
		t.names.Compute(t.hash(l.entry.parent, l.entry.name), func(old *node, _ bool) (*node, xsync.ComputeOp) {
			if old == n {
				return nil, xsync.DeleteOp
			}
			return old, xsync.CancelOp
		})
	}
}

// hidden is a node whose entry was hidden, nil for none, and its epoch then.
type hidden struct {
	n     *node
	epoch uint32
}

// hide hides one entry, which is about to change, and returns the node that it leads to, if that is known.
func (t *nodes) hide(e name) hidden {
	n := t.byName(e.parent, e.name)
	if n == nil {
		return hidden{}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.hideLocked(e) {
		return hidden{}
	}
	return hidden{n, n.epoch}
}

// hideLocked hides an entry of n, and reports whether n has it. It stays in the table: the next change of the name has to find it.
func (n *node) hideLocked(e name) bool {
	i := n.linkLocked(e)
	if i < 0 {
		return false
	}
	n.names[i].hidden = true
	return true
}

// removed forgets an entry that this client has removed, whatever it leads to by now: a lookup that was answered before may have
// brought it back. The kernel has dropped it, or moved it away.
// Precondition: the change of the folder is marked, so that no such lookup comes after.
func (t *nodes) removed(e name) {
	n := t.byName(e.parent, e.name)
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if i := n.linkLocked(e); i >= 0 {
		t.unnameLocked(n, n.names[i:i+1])
		n.names = slices.Delete(n.names, i, i+1)
	}
}

// moved gives a node the entry to which a rename has moved it: the kernel moves its own along with what it may believe of it.
// Where f is another inode, or a lock was lost meanwhile, the entry may lead elsewhere: then it stays hidden.
func (t *nodes) moved(h hidden, f fid.FID, to name) {
	n := h.n
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.valid&ldlm.Lookup == 0 {
		return
	}
	t.nameLocked(n, to)
	if n.fid != f || n.epoch != h.epoch {
		n.hideLocked(to)
	}
}

// each calls fn for every node there is.
func (t *nodes) each(fn func(*node)) {
	t.inos.Range(func(_ uint64, n *node) bool {
		fn(n)
		return true
	})
}

// asked is what was known of an inode when a request about it was sent.
type asked struct {
	n     *node
	epoch uint32
	held  ldlm.Bits
	at    uint64
}

// ask prepares a request about an inode: e wants the bits that are not held. A zero f is an inode that is not known yet.
func (c *Client) ask(f fid.FID, e *mdc.Entry) asked {
	k := asked{at: c.changes.now()}
	e.Want = wanted
	if f.IsZero() {
		return k
	}
	if n := c.nodes.find(f.Ino()); n != nil {
		n.mu.Lock()
		k.n, k.epoch, k.held = n, n.epoch, n.held
		n.mu.Unlock()
		e.Want = wanted &^ k.held
	}
	if c.hot.is(f.Ino()) {
		e.Want &^= ldlm.Update // It would be called back at once.
	}
	return k
}

// entering prepares a change of a folder's entries.
func (c *Client) entering(folder fid.FID) asked {
	var k asked
	if n := c.nodes.find(folder.Ino()); n != nil {
		n.mu.Lock()
		k.n, k.epoch = n, n.epoch
		n.mu.Unlock()
	}
	return k
}

// entered takes over a folder's attributes as they are after a change of its entries. Changes in parallel may be answered in
// any order: the one with the highest number counts.
func (c *Client) entered(k *asked, folder fid.FID, a *attr.Attr, number wire.Transno) {
	c.changes.mark(folder.Ino())
	n := k.n
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.valid&attrBits != attrBits:
	case n.epoch != k.epoch || a.FID != folder:
		n.valid &^= attrBits
	case number > n.changed:
		n.changed = number
		none := n.attr.NoXattr
		n.attr = *a
		n.attr.NoXattr, n.attr.Under = none, n.epoch
	}
}

// keep caches an answer under the lock that came with it, and under those held all the time since it was asked for. own
// says that the answer is to a change by this client. entry leads to the inode; its name is empty where none was looked up.
func (c *Client) keep(k *asked, e *mdc.Entry, own bool, entry name) {
	f := e.Attr.FID
	newest := false
	if own {
		newest = c.changes.markSince(f.Ino(), k.at)
	} else {
		newest = !c.changes.since(f.Ino(), k.at)
	}
	if e.Lock == 0 && k.n == nil {
		return
	}
	n := k.n
	if e.Lock != 0 {
		n = c.nodes.lock(f)
	} else {
		n.mu.Lock()
	}
	defer n.mu.Unlock()
	usable := e.Bits
	if n == k.n && n.epoch == k.epoch {
		usable |= k.held
	}
	n.held |= e.Bits
	if own {
		n.xattrs, n.valid = nil, n.valid&^ldlm.Xattr // chmod changes an ACL
	}
	usable &= n.held
	if !newest || n.dead {
		if own {
			n.valid &^= attrBits | ldlm.Xattr
		}
		return
	}
	known := n.leadsLocked(entry)
	c.fillLocked(n, e, usable, entry)
	if !own && !known && c.changes.since(entry.parent, k.at) {
		n.hideLocked(entry) // This client has changed the folder meanwhile, perhaps this very name.
	}
}

// fillLocked takes an answer's content into a node. Precondition: n.mu is held.
func (c *Client) fillLocked(n *node, e *mdc.Entry, usable ldlm.Bits, entry name) {
	if usable&attrBits == attrBits {
		n.attr = e.Attr
		n.attr.Under = n.epoch
		n.valid |= attrBits
		e.Attr.Under = n.epoch
	}
	if usable&ldlm.Layout != 0 {
		n.layout = append(n.layout[:0], e.Layout...)
		n.valid |= ldlm.Layout
	}
	if usable&ldlm.Lookup != 0 && entry.name != "" {
		c.nodes.nameLocked(n, entry)
		n.valid |= ldlm.Lookup
	}
	if usable&ldlm.Xattr != 0 {
		if n.valid&ldlm.Xattr == 0 {
			n.xattrs = nil
		}
		n.valid |= ldlm.Xattr
	}
}

// stale forgets what is cached of an inode that this client changes: who asks meanwhile asks the MDT.
func (c *Client) stale(ino uint64) {
	if n := c.nodes.find(ino); n != nil {
		n.mu.Lock()
		n.valid &^= attrBits | ldlm.Xattr
		n.mu.Unlock()
	}
}

// match reports whether a lock with these bits is held and its server heard, and pins it. It counts as a use of the lock.
func (c *Client) match(f fid.FID, bits ldlm.Bits) (ldlm.Handle, bool) {
	g, ok := c.locks.Match(&ldlm.Wanted{Res: ldlm.InodeRes(f), Modes: ldlm.PR, Bits: bits})
	return g.Handle, ok
}

// cachedAttr answers from the cache, and reports whether it can.
func (c *Client) cachedAttr(n *node, a *attr.Attr) bool {
	if n == nil {
		c.nodes.misses.Add(1)
		return false
	}
	h, ok := c.match(n.fid, ldlm.Update)
	if !ok {
		c.nodes.misses.Add(1)
		return false
	}
	defer c.locks.Unpin(h)
	n.mu.Lock()
	ok = n.valid&attrBits == attrBits
	if ok {
		*a = n.attr
	}
	n.mu.Unlock()
	if ok && a.IsFile() {
		in := c.find(a.FID.Ino())
		if in != nil {
			in.complete(a)
			c.put(in)
		}
		ok = a.SizeValid && !a.Volatile
	}
	if ok {
		c.nodes.hits.Add(1)
	} else {
		c.nodes.misses.Add(1)
	}
	return ok
}

// cachedEntry answers a lookup from the cache, and reports whether it can.
func (c *Client) cachedEntry(parent uint64, entry string, a *attr.Attr) bool {
	n := c.nodes.byName(parent, entry)
	if n == nil {
		c.nodes.misses.Add(1)
		return false
	}
	h, ok := c.match(n.fid, ldlm.Lookup)
	if !ok {
		c.nodes.misses.Add(1)
		return false
	}
	defer c.locks.Unpin(h)
	n.mu.Lock()
	ok = n.valid&ldlm.Lookup != 0 && n.leadsLocked(name{parent, entry})
	n.mu.Unlock()
	return ok && c.cachedAttr(n, a)
}

// Told is what the kernel may keep of an answer.
type Told struct{ Entry, Attr bool }

// Tell says what the kernel may keep of attributes that go to it now, as the answer about an entry or, with an empty name,
// about an inode. What it may keep is taken back before its lock goes.
func (c *Client) Tell(a *attr.Attr, parent uint64, entry string) Told {
	var t Told
	n := c.nodes.find(a.FID.Ino())
	if n == nil || c.hot.is(a.FID.Ino()) {
		return t
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	t.Attr = n.valid&attrBits == attrBits && a.Under == n.epoch && a.Under != 0 && !a.Volatile && (!a.IsFile() || a.SizeValid)
	t.Entry = entry != "" && n.valid&ldlm.Lookup != 0 && n.leadsLocked(name{parent, entry}) && !c.hot.is(parent)
	if t.Attr {
		n.told |= toldAttr
	}
	if t.Entry {
		n.told |= toldEntry
	}
	if t.Attr || t.Entry {
		n.toldAt = time.Now()
	}
	return t
}

// hot remembers inodes that another client wanted a moment ago: the kernel keeps nothing of them, so that taking it back
// costs nothing. Slots are shared, which costs requests only.
type hot struct {
	slots [1 << 12]atomic.Int64
}

// hotTime is how long an inode stays hot.
const hotTime = 2 * time.Second

func (h *hot) slot(ino uint64) *atomic.Int64 { return &h.slots[mix(ino)%uint64(len(h.slots))] }

func (h *hot) mark(ino uint64) { h.slot(ino).Store(time.Now().Add(hotTime).UnixNano()) }

func (h *hot) is(ino uint64) bool {
	until := h.slot(ino).Load()
	return until != 0 && time.Now().UnixNano() < until
}
