package mdt

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/lockd"
)

// grantable are the bits that clients cache under.
const grantable = ldlm.Lookup | ldlm.Update | ldlm.Layout | ldlm.Perm | ldlm.Xattr

// ctimeAgeLimit keeps UPDATE of a folder from a client when another one changed it less than this ago. Lustre has 10 s; here
// the kernel asks for a folder's attributes with every path through it that no lock covers, and a client whose lock was
// called back does not ask again for a while by itself.
const ctimeAgeLimit time.Duration = 0

// wants returns the bits that a request would like with its answer, 0 for none. LOOKUP is left out where the operation
// does not check that a name leads to the inode.
func (o *op) wants(m *wirepb.LockWant, named bool) ldlm.Bits {
	if m == nil || o.xs == nil || o.xs.locks == nil || o.again.on || ldlm.Mode(m.Mode) != ldlm.PR {
		return 0
	}
	b := ldlm.Bits(m.Bits|m.TryBits) & grantable
	if !named {
		b &^= ldlm.Lookup
	}
	o.rep.want.Own = m.Own
	return b
}

// grant gives the client what is free of the bits of an inode, and returns what that is. The lock is taken back when the
// operation ends with an error.
func (o *op) grant(f fid.FID, b ldlm.Bits, to *wirepb.LockGrant) ldlm.Bits {
	w := &o.rep.want
	w.Mode, w.Bits, w.TryBits = uint32(ldlm.PR), 0, uint32(b)
	if b == 0 || !o.h.ldlm.Grant(o.e, o.xs.locks, ldlm.InodeRes(f), w, to) {
		return 0
	}
	o.granted = append(o.granted, to.Lock)
	return ldlm.Bits(to.Bits)
}

// ungrant takes the newest lock that was granted back.
func (o *op) ungrant() {
	last := len(o.granted) - 1
	o.takeBack(o.granted[last:])
	o.granted = o.granted[:last]
}

// takeBack cancels locks of the client that it was not told of.
func (o *op) takeBack(handles []uint64) {
	o.h.stats.takenBack.Add(int64(len(handles)))
	for len(handles) > 0 {
		n := min(len(handles), wire.CancelsMax)
		if err := o.h.ldlm.CancelEarly(o.e, o.xs.locks, handles[:n]); err != nil {
			panic("mdt: " + err.Error()) // Only a count that is too high is an error.
		}
		handles = handles[n:]
	}
}

// cancels gives up locks of the client that it names in a request that changes something, before it is carried out.
func (o *op) cancels(handles []uint64) error {
	if len(handles) == 0 || o.xs == nil || o.xs.locks == nil || o.again.on {
		return nil
	}
	return o.h.ldlm.CancelEarly(o.e, o.xs.locks, handles)
}

// mayUpdate reports whether the client may cache what UPDATE covers of n as it was just read. Of a file: while its size is
// the record's, or only this client can change it. Of a folder: when it changed it last itself, or when nobody has for a
// while.
func (o *op) mayUpdate(n *inode) bool {
	switch {
	case n.IsDir():
		age := time.Duration(o.now.Sec-n.Ctime.Sec)*time.Second + time.Duration(o.now.Nsec) - time.Duration(n.Ctime.Nsec)
		limit := time.Duration(o.h.ctimeAge.Load())
		return limit == 0 || n.content.client == o.client || age >= limit
	case n.IsFile() && !n.SizeValid:
		mine, others := o.h.opens.writers(n.FID, o.xs)
		return mine && !others
	}
	return true
}

// read grants what is wanted of f and then reads it into n, so that what is read is covered by the lock.
func (o *op) read(f fid.FID, n *inode, want ldlm.Bits) error {
	want = o.withoutWriters(f, want)
	for {
		got := o.grant(f, want, &o.rep.grant)
		if err := o.get(f, n); err != nil {
			if got != 0 {
				o.ungrant()
			}
			return err
		}
		if got&ldlm.Update == 0 || o.mayUpdate(n) {
			o.readsInode(n)
			return nil
		}
		o.ungrant()
		want &^= ldlm.Update
	}
}

// withoutWriters leaves UPDATE out where it could not stay because others write the file.
func (o *op) withoutWriters(f fid.FID, want ldlm.Bits) ldlm.Bits {
	if want&ldlm.Update != 0 {
		if _, others := o.h.opens.writers(f, o.xs); others {
			want &^= ldlm.Update
		}
	}
	return want
}

// grants is what the reply says of the lock granted by read or lockOne.
func (o *op) grants() []*wirepb.LockGrant {
	if len(o.granted) == 0 {
		return nil
	}
	o.rep.locks[0] = &o.rep.grant
	return o.rep.locks[:]
}

// attach adds the lock granted to a reply that was published. What the slot keeps for a resend goes without: the lock may
// be called back before that.
func (o *op) attach() {
	m := &o.rep.lockOnly
	if m.Locks = o.grants(); m.Locks == nil {
		return
	}
	raw := o.c.RawReply
	b := o.e.Alloc(len(raw) + m.SizeVT())
	copy(b, raw)
	if _, err := m.MarshalToSizedBufferVT(b[len(raw):]); err != nil {
		for len(o.granted) > 0 {
			o.ungrant()
		}
		return
	}
	o.c.RawReply = b
}

// finish does what follows from how the operation ended, while its locks are held: a lock that is not told is taken back,
// and waits for what died end.
func (o *op) finish(err error) {
	if err == nil {
		o.bury()
	}
	if o.c != nil && o.c.Header.Op.Modifies() && o.xs != nil && o.xs.locks != nil {
		o.xs.sent.inSlot(o.c.Header.Slot, o.grants(), err)
	}
	if len(o.granted) == 0 {
		return
	}
	if err != nil {
		o.takeBack(o.granted)
	} else {
		o.h.stats.granted.Add(int64(len(o.granted)))
		if !o.c.Header.Op.Modifies() {
			o.xs.sent.add(o.c.Header.XID, o.granted)
		}
	}
	o.granted = o.granted[:0]
}

// bury ends the waits for inodes that are gone.
func (o *op) bury() {
	for _, f := range o.died {
		o.h.ldlm.Deny(o.e, ldlm.InodeRes(f), status.Stale)
		o.h.ldlm.Deny(o.e, ldlm.FlockRes(f), status.Stale)
	}
	o.died = o.died[:0]
}

// Namespace is the name of an MDT's lock namespace: ldlm.namespaces.<that>.
func Namespace(target string) string { return "mdt-" + target }

// startLocks makes the namespace.
func (h *Handler) startLocks() error {
	var seed [8]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return fmt.Errorf("mdt: the seed of %s's locks: %w", h.o.Name, err)
	}
	h.ldlm = lockd.New(lockd.Options{
		Name: Namespace(h.o.Name), Seed: binary.LittleEndian.Uint64(seed[:]), Shared: h.o.Locks, Limits: h.o.LockLimits,
		ReconnectGrace: h.o.ReconnectGrace, Evict: h.evict, Log: h.o.Log, Stats: h.o.Stats,
	})
	h.ctimeAge.Store(int64(ctimeAgeLimit))
	if r := h.o.Stats; r != nil {
		r.Param("ldlm.namespaces."+stats.Element(Namespace(h.o.Name))+".ctime_age_limit",
			"Seconds that a folder must have been left alone by others until a client may cache its entries, 0 to 3600.",
			func() string { return strconv.FormatInt(h.ctimeAge.Load()/int64(time.Second), 10) },
			func(text string) error {
				n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 12)
				if err != nil || n > 3600 {
					return fmt.Errorf("mdt: ctime_age_limit is a number of seconds from 0 to 3600, not %q", text)
				}
				h.ctimeAge.Store(int64(n) * int64(time.Second))
				return nil
			})
	}
	return nil
}

// sentMax bounds the locks whose replies may have been lost: those of a few pages of a listing, and of all other requests in
// flight. What is beyond it stays until somebody wants it: the client does not know it and says so.
const sentMax = 4096

// sentGrants are the newest locks that went with replies. When a connection is lost, the client sends what was not answered
// again: then the locks of the first answer are nobody's. Requests that change nothing are carried out again, and their
// first locks taken back. Those that own a slot are answered from it, without a lock; so when a client has connected again,
// the lock of each slot's last answer is called back: who knows it gives it back, who does not says so, and it is freed.
type sentGrants struct {
	mu    sync.Mutex
	list  []sentGrant          // guarded by mu
	next  int                  // where the next goes, once list is full; guarded by mu
	slots map[uint32]ldlmGrant // by slot; guarded by mu
}

// ldlmGrant is a lock by what it is on.
type ldlmGrant struct {
	res  ldlm.ResID
	bits ldlm.Bits
}

// inSlot notes the lock that goes with the answer kept in a slot, if there is one. The client had the one before.
func (s *sentGrants) inSlot(slot uint32, locks []*wirepb.LockGrant, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || len(locks) == 0 {
		delete(s.slots, slot)
		return
	}
	if s.slots == nil {
		s.slots = map[uint32]ldlmGrant{}
	}
	g := locks[0]
	s.slots[slot] = ldlmGrant{ldlm.ResID{Seq: g.ResSeq, OID: g.ResOid, Type: ldlm.TypeInodeBits}, ldlm.Bits(g.Bits)}
}

// takeSlots returns the locks of all slots and forgets them.
func (s *sentGrants) takeSlots() []ldlmGrant {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Collect(maps.Values(s.slots))
	clear(s.slots)
	return all
}

// callBack has locks of clients called back and does not wait for them.
func (h *Handler) callBack(grants []ldlmGrant) {
	if len(grants) == 0 {
		return
	}
	e := env.New()
	ctx, cancel := context.WithCancel(h.life)
	cancel() // The wait is given up at once; what was called back stays so.
	for _, g := range grants {
		l := lockd.LocalLock{Res: g.res, Mode: ldlm.EX, Bits: g.bits}
		if err := h.ldlm.Lock(ctx, e, &l); err == nil {
			h.ldlm.Unlock(e, &l)
		}
	}
}

type sentGrant struct {
	xid  wire.XID
	lock uint64
}

func (s *sentGrants) add(xid wire.XID, locks []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range locks {
		if len(s.list) < sentMax {
			s.list = append(s.list, sentGrant{xid, l})
			continue
		}
		s.list[s.next] = sentGrant{xid, l}
		s.next = (s.next + 1) % sentMax
	}
}

// take appends the locks that went with the answer to a request to b, and forgets them.
func (s *sentGrants) take(xid wire.XID, b []uint64) []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.list {
		if g := &s.list[i]; g.xid == xid && g.lock != 0 {
			b = append(b, g.lock)
			g.lock = 0
		}
	}
	return b
}

// resent takes back what was granted with the answer to the request when it came first: that answer was lost.
func (o *op) resent() {
	if o.xs == nil || o.xs.locks == nil {
		return
	}
	if lost := o.xs.sent.take(o.c.Header.XID, nil); len(lost) > 0 {
		o.takeBack(lost)
	}
}

// lockRequest does ENQUEUE, CONVERT, CANCEL, PROLONG and FLOCK.
func (o *op) lockRequest() error {
	if o.xs == nil || o.xs.locks == nil {
		return status.Errorf(status.NotSupport, "mdt: %s has no locks for %s", o.h.o.Name, o.x.Peer)
	}
	if o.c.Header.Op == wire.OpEnqueue {
		if err := o.mayEnqueue(); err != nil {
			return err
		}
	}
	return o.h.ldlm.Serve(o.e, o.xs.locks, o.c)
}

// mayEnqueue admits application locks, and locks on inodes that let others read. UPDATE of a regular file is granted with
// answers only, because it depends on who writes the file.
func (o *op) mayEnqueue() error {
	m := &o.req.enqueue
	if err := o.decode(m); err != nil {
		return err
	}
	id := ldlm.ResID{Seq: m.ResSeq, OID: m.ResOid, Hash: m.ResHash, Type: ldlm.Type(m.ResType)}
	inode := m.ResType == uint32(ldlm.TypeInodeBits) && id.Hash == 0 &&
		(m.Mode == uint32(ldlm.PR) || m.Mode == uint32(ldlm.CR)) && ldlm.Bits(m.Bits|m.TryBits)&^grantable == 0
	if m.ResType != uint32(ldlm.TypeFlock) && !inode {
		return status.Errorf(status.Invalid, "mdt: a client may not lock %v in mode %v", id, ldlm.Mode(m.Mode))
	}
	f := id.FID()
	if _, err := o.fid(uint64(f.Seq), f.OID); err != nil || f.Ver != 0 {
		return status.Stale
	}
	if err := o.get(f, &o.child); err != nil {
		return err
	}
	if inode && o.child.IsFile() && ldlm.Bits(m.Bits|m.TryBits)&ldlm.Update != 0 {
		return status.Errorf(status.Invalid, "mdt: UPDATE of file %v is granted with answers only", f)
	}
	return nil
}
