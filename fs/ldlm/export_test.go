package ldlm

import (
	"fmt"
	"unsafe"

	"github.com/strakefs/strake/fs/extent"
)

// LockSize is the size of one lock.
const LockSize = unsafe.Sizeof(lock{})

// ResourceSize is the size of one resource.
const ResourceSize = unsafe.Sizeof(resource{})

// Verify checks the package's invariants over a whole namespace, the slow way.
func (ns *Namespace) Verify() error {
	for i := range ns.shards {
		sh := &ns.shards[i]
		sh.mu.Lock()
		err := sh.verify()
		sh.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

func (sh *shard) verify() error {
	n, locks, waiting := 0, 0, 0
	for _, r := range sh.table.buckets {
		for ; r != nil; r = r.chain {
			n++
			if r.empty() {
				return fmt.Errorf("%v is empty and still there", r.id)
			}
			if err := r.verify(sh.ns.mirror); err != nil {
				return fmt.Errorf("%v: %w", r.id, err)
			}
			locks += int(r.nGranted + r.waiting.n)
			waiting += int(r.waiting.n)
		}
	}
	owned := 0
	for _, l := range sh.clients {
		owned += int(l.n)
	}
	switch {
	case n != sh.table.n:
		return fmt.Errorf("%d resources, counted %d", n, sh.table.n)
	case waiting != sh.waiting:
		return fmt.Errorf("%d locks in waiting queues, counted %d", waiting, sh.waiting)
	case locks != sh.locks.live || owned != locks:
		return fmt.Errorf("%d locks in queues, %d live, %d owned", locks, sh.locks.live, owned)
	}
	last := sh.called.head
	for l := sh.called.head; l != nil; l = l.links[linkAge].next {
		if l.stamp < last.stamp || !l.has(markBlocked) || l.state != stateGranted {
			return fmt.Errorf("lock %v is wrong in the list by deadline", l.handle)
		}
		last = l
	}
	return nil
}

func (r *resource) all() (granted, waiting []*lock) {
	for m := range r.granted {
		for l := r.granted[m].head; l != nil; l = l.links[linkQueue].next {
			granted = append(granted, l)
		}
	}
	for l := r.waiting.head; l != nil; l = l.links[linkQueue].next {
		waiting = append(waiting, l)
	}
	return granted, waiting
}

func (l *lock) shares(m *lock) bool {
	switch l.res.id.Type {
	case TypeExtent:
		return l.ext.Overlaps(m.ext)
	case TypeFlock:
		return false
	}
	return l.bits&m.bits != 0
}

func (r *resource) verify(mirror bool) error {
	granted, waiting := r.all()
	own := 0
	for _, l := range append(granted[:len(granted):len(granted)], waiting...) {
		if l.flags&Own != 0 {
			own++
		}
	}
	if own != int(r.own) {
		return fmt.Errorf("%d own locks, counted %d", own, r.own)
	}
	if len(granted) != int(r.nGranted) {
		return fmt.Errorf("%d granted, counted %d", len(granted), r.nGranted)
	}
	if r.id.Type == TypeFlock {
		return r.verifyFlock(waiting)
	}
	if mirror {
		return nil
	}
	for i, a := range granted {
		if a.state != stateGranted {
			return fmt.Errorf("granted lock %v in state %d", a.handle, a.state)
		}
		if !a.ext.Contains(a.req) {
			return fmt.Errorf("granted %v, asked %v", a.ext, a.req)
		}
		for _, b := range granted[i+1:] {
			same := a.mode == GROUP && b.mode == GROUP && a.owner == b.owner
			if !Compatible(a.mode, b.mode) && !same && !a.own(b) && a.shares(b) && a.mode&(COS|TXN) == 0 && b.mode&(COS|TXN) == 0 {
				return fmt.Errorf("granted together: %+v and %+v", a.desc(), b.desc())
			}
		}
	}
	for i, w := range waiting {
		if err := r.verifyWaiting(w, granted, waiting[:i]); err != nil {
			return err
		}
	}
	return r.verifyIndexes(granted)
}

// verifyWaiting checks that a waiting lock has a reason, and that who stands in its way was called back.
func (r *resource) verifyWaiting(w *lock, granted, ahead []*lock) error {
	reason := false
	for _, g := range granted {
		if w.shares(g) && w.stands(g) {
			reason = true
			if !g.has(markBlocked) && g.mode != GROUP {
				return fmt.Errorf("%+v waits for %+v, which was not called back", w.desc(), g.desc())
			}
			if g.seq > w.seq && g.mode != GROUP && w.mode != GROUP && g.flags&Replay == 0 && g.newMode == 0 {
				return fmt.Errorf("%+v was granted ahead of %+v", g.desc(), w.desc())
			}
		}
		if g.has(markConverting) && !Compatible(g.newMode, w.mode) && !w.own(g) &&
			(r.id.Type == TypeExtent && g.ext.Overlaps(w.ext) || g.newBits&w.bits != 0) {
			reason = true
		}
	}
	for _, a := range ahead {
		if w.shares(a) && w.stands(a) && (w.mode != GROUP || a.mode == GROUP) {
			reason = true
		}
		if w.mode == GROUP && a.mode != GROUP {
			return fmt.Errorf("GROUP waits behind %v", a.mode)
		}
	}
	if !reason {
		return fmt.Errorf("%+v waits for nothing", w.desc())
	}
	return nil
}

func (r *resource) verifyIndexes(granted []*lock) error {
	if r.id.Type == TypeExtent {
		for m := range r.trees.granted {
			if err := r.trees.granted[m].check(int(r.granted[m].n)); err != nil {
				return err
			}
		}
		n := 0
		for m := range r.trees.waiting {
			r.trees.waiting[m].overlapping(extent.Extent{End: extent.EOF}, func(*lock) bool { n++; return true })
		}
		if n != int(r.waiting.n) {
			return fmt.Errorf("%d waiting in trees, %d in the queue", n, r.waiting.n)
		}
	}
	for m := range r.granted {
		blocked := false
		for l := r.granted[m].head; l != nil; l = l.links[linkQueue].next {
			if blocked && !l.has(markBlocked) {
				return fmt.Errorf("a lock stands behind called-back ones")
			}
			blocked = blocked || l.has(markBlocked)
		}
	}
	if r.counted {
		var want bitCounts
		for _, l := range granted {
			want.add(l.mode, l.bits, 1)
		}
		if want != *r.bits {
			return fmt.Errorf("bit counts are off")
		}
	}
	return nil
}

func (r *resource) verifyFlock(waiting []*lock) error {
	rs := r.flock.table.ranges
	for i := range rs {
		for j := i + 1; j < len(rs); j++ {
			if rs[i].conflicts(&rs[j]) || rs[i].Owner == rs[j].Owner && rs[i].Overlaps(rs[j].Extent) {
				return fmt.Errorf("held together: %+v and %+v", rs[i], rs[j])
			}
		}
	}
	for _, w := range waiting {
		q := w.flockRange()
		if _, ok := r.flock.table.Conflict(&q); !ok {
			return fmt.Errorf("flock %+v waits for nothing", q)
		}
	}
	return nil
}

// check verifies balance, order, the augmentation and the number of nodes.
func (t *tree) check(n int) error {
	count := 0
	var walk func(*lock) error
	walk = func(l *lock) error {
		if l == nil {
			return nil
		}
		count++
		h, m, d := l.height, l.max, height(l.left)-height(l.right)
		fix(l)
		if h != l.height || m != l.max || d > 1 || d < -1 {
			return fmt.Errorf("node %v: height %d max %d balance %d", l.ext, h, m, d)
		}
		if l.left != nil && !before(l.left, l) || l.right != nil && !before(l, l.right) {
			return fmt.Errorf("node %v: order", l.ext)
		}
		if err := walk(l.left); err != nil {
			return err
		}
		return walk(l.right)
	}
	if err := walk(t.root); err != nil {
		return err
	}
	if count != n {
		return fmt.Errorf("%d nodes, want %d", count, n)
	}
	return nil
}

// WaitNodes is the number of owners in the wait-for graph.
func (ns *Namespace) WaitNodes() int {
	ns.waits.mu.Lock()
	defer ns.waits.mu.Unlock()
	return len(ns.waits.nodes)
}

// SetFlockRanges gives a file n ranges that touch nobody.
func (ns *Namespace) SetFlockRanges(id ResID, n int) {
	sh, hash := ns.shardOf(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	t := &sh.table.findOrAdd(id, hash).flock.table
	for i := range uint64(n) {
		t.ranges = append(t.ranges, FlockRange{Extent: extent.Extent{Start: 2 * i, End: 2*i + 1}, Owner: FlockOwner{Client: 99}})
	}
}
