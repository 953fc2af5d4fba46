package osc

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
)

// live finds the Objects that have dirty or unanswered data by the object that they are of: a file that was closed and is
// open again has two, and a lock must be given back when it has none.
//
// Invariant: an Object is in exactly while its map of blocks is not empty.
type live struct {
	n  atomic.Int64 // Objects in; who finds 0 need not lock
	mu sync.Mutex
	of map[fid.ObjectID]*Object // guarded by mu; linked by Object.nextLive
}

// enter adds o. Called with o.mu held.
func (l *live) enter(o *Object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = make(map[fid.ObjectID]*Object)
	}
	o.nextLive = l.of[o.id]
	l.of[o.id] = o
	l.n.Add(1)
}

// leave takes o out. Called with o.mu held.
func (l *live) leave(o *Object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n.Add(-1)
	at := l.of[o.id]
	if at == o {
		if o.nextLive == nil {
			delete(l.of, o.id)
		} else {
			l.of[o.id] = o.nextLive
		}
	} else {
		for at.nextLive != o {
			at = at.nextLive
		}
		at.nextLive = o.nextLive
	}
	o.nextLive = nil
}

// find appends the Objects of an object, but for one.
func (l *live) find(id fid.ObjectID, but *Object, to []*Object) []*Object {
	if l.n.Load() == 0 {
		return to
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for o := l.of[id]; o != nil; o = o.nextLive {
		if o != but {
			to = append(to, o)
		}
	}
	return to
}

// all appends every Object.
func (l *live) all(to []*Object) []*Object {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.of {
		for ; o != nil; o = o.nextLive {
			to = append(to, o)
		}
	}
	return to
}

// alone lets what others hold dirty of this object's e be written back first: a file closed with dirty data and opened
// again.
func (o *Object) alone(ctx context.Context, e extent.Extent) error {
	l := &o.osc.live
	if l.n.Load() == 0 {
		return nil
	}
	l.mu.Lock()
	at := l.of[o.id]
	only := at == nil || at == o && at.nextLive == nil
	l.mu.Unlock()
	if only {
		return nil
	}
	for _, x := range l.find(o.id, o, nil) {
		if err := x.Flush(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// Holds reports whether this client has dirty or unanswered data of the object, in any File.
func (o *Object) Holds() bool {
	l := &o.osc.live
	if l.n.Load() == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of[o.id] != nil
}

// Grown tells the locks that this client holds on the object, or asks for, of a write to end that goes under none of them.
func (o *Object) Grown(end uint64) {
	if o.osc.locks != nil {
		o.osc.covers.doubt(o.id, end)
	}
}

// SettleOthers writes back what other Objects of the same object hold in e: before a change that is not a write.
func (o *Object) SettleOthers(ctx context.Context, e extent.Extent) error { return o.alone(ctx, e) }
