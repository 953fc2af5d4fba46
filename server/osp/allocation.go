package osp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/store"
)

// Pool is what a metadata target wants of its OSTs. Set implements it.
type Pool interface {
	// Allocate chooses OSTs for a new file by its template and reserves one object on each: for the first component,
	// unless its bytes stay on the MDT; an empty template is layout.Plain of one stripe. It waits only when objects are
	// not ready, until ctx ends or the wait limit has passed. Call it before any lock. own is for errors. Errors: kind
	// NoSpace with the reason, Invalid for OSTs that do not exist, ctx's.
	// Every Allocation ends with Release. tmpl must not change before.
	Allocate(ctx context.Context, tmpl *layout.Layout, own fid.FID) (*Allocation, error)
	// Destroy puts into tx what makes the objects of l go once tx is on disk. l may be empty.
	Destroy(tx *store.Tx, e *env.Env, l *layout.Layout)
	// Chown puts into tx what gives the objects of l another owner once tx is on disk; all three ids are meant.
	Chown(tx *store.Tx, e *env.Env, l *layout.Layout, o Owner)
}

// Allocation is the objects reserved for one new file. It belongs to one goroutine and comes from a pool.
type Allocation struct {
	set     *Set
	tmpl    *layout.Layout
	stripes []layout.Stripe // of component 0
	filled  bool
	chosen  []layout.OSTIndex
	cands   []Candidate
}

// Stripes are the objects reserved, in stripe order; empty for a file whose bytes stay on the MDT.
func (a *Allocation) Stripes() []layout.Stripe { return a.stripes }

// Fill makes l the file's layout: the template with the objects in place, sharing no memory with it and reusing l's
// slices. It adds the last used ids to tx, with memory of e. After it Release keeps the objects used.
func (a *Allocation) Fill(l *layout.Layout, tx *store.Tx, e *env.Env) {
	l.Gen = a.tmpl.Gen
	comps := l.Components[:cap(l.Components)]
	for len(comps) < max(len(a.tmpl.Components), 1) {
		comps = append(comps, layout.Component{})
	}
	l.Components = comps[:max(len(a.tmpl.Components), 1)]
	if a.tmpl.IsZero() {
		copyComponent(&l.Components[0], &a.set.plain.Components[0])
	}
	for i := range a.tmpl.Components {
		copyComponent(&l.Components[i], &a.tmpl.Components[i])
	}
	if len(a.stripes) > 0 {
		c := &l.Components[0]
		c.Stripes = append(c.Stripes[:0], a.stripes...)
		c.StripeCount, c.StripeOffset = uint32(len(a.stripes)), int32(a.stripes[0].OST)
		c.Flags |= layout.FlagInit
		c.Wanted = c.Wanted[:0]
	}
	for _, s := range a.stripes {
		addUsed(tx, e, a.set.o.Tables.LastUsed, s)
	}
	a.filled = true
}

func copyComponent(dst, src *layout.Component) {
	wanted, stripes := append(dst.Wanted[:0], src.Wanted...), dst.Stripes[:0]
	*dst = *src
	dst.Wanted, dst.Stripes = wanted, stripes
	if dst.StripeSize == 0 {
		dst.StripeSize = layout.StripeSizeDefault
	}
}

// Release ends the allocation. Objects that Fill has not put into a layout go back. The Allocation must not be used
// after it; nil is allowed.
func (a *Allocation) Release() {
	if a == nil {
		return
	}
	if !a.filled {
		a.giveBack()
	}
	a.tmpl, a.stripes, a.filled = nil, a.stripes[:0], false
	a.set.allocations.Put(a)
}

// Cancel is Release for a transaction that Fill added to and that was not published: the objects go back in any case.
func (a *Allocation) Cancel() {
	if a != nil {
		a.filled = false
		a.Release()
	}
}

func (a *Allocation) giveBack() {
	for _, s := range a.stripes {
		if o := a.set.find(s.OST); o != nil {
			o.putBack(s.Object.ID)
		}
	}
	a.stripes = a.stripes[:0]
}

// Allocate implements Pool.
func (s *Set) Allocate(ctx context.Context, tmpl *layout.Layout, own fid.FID) (*Allocation, error) {
	a, _ := s.allocations.Get().(*Allocation)
	if a == nil {
		a = &Allocation{set: s}
	}
	a.tmpl = tmpl
	c := &s.plain.Components[0]
	if !tmpl.IsZero() {
		c = &tmpl.Components[0]
	}
	if c.Pattern == layout.OnMDT {
		return a, nil
	}
	if err := s.fill(ctx, a, c); err != nil {
		a.Release()
		return nil, fmt.Errorf("osp: objects for %v: %w", own, err)
	}
	return a, nil
}

// fill chooses and takes until every stripe has its object.
func (s *Set) fill(ctx context.Context, a *Allocation, c *layout.Component) error {
	if err := s.try(a, c); err == nil || s.final(err, a, c) {
		return err
	}
	begin := time.Now()
	var limit *time.Timer
	again := time.NewTicker(hurryEvery)
	defer again.Stop()
	for {
		changed := s.watch() // Before the attempt: what changes after it is noticed.
		err := s.try(a, c)
		if err == nil || s.final(err, a, c) {
			return err
		}
		if limit == nil {
			limit = time.NewTimer(s.patience(a, c))
			defer limit.Stop()
			s.hurry(c)
		}
		select {
		case <-changed:
		case <-again.C:
			s.hurry(c)
		case <-ctx.Done():
			return fmt.Errorf("waiting for OSTs: %w", ctx.Err())
		case <-s.ctx.Done():
			return status.Errorf(status.Stopping, "the target is stopping")
		case <-limit.C:
			if !errors.Is(err, errNotReady) {
				return err
			}
			// An OST that was away has come, and gets the time that others have.
			left := s.o.WaitLimit - time.Since(begin)
			if left <= 0 {
				return status.Errorf(status.NoSpace, "OSTs made no objects for %v", s.o.WaitLimit)
			}
			limit.Reset(left)
		}
	}
}

// patience is how long fill waits at first.
func (s *Set) patience(a *Allocation, c *layout.Component) time.Duration {
	if s.freeing(a) || a.away(c) {
		return min(roomTime, s.o.WaitLimit)
	}
	return s.o.WaitLimit
}

// hurryEvery is the time between two tries to reach an OST that a create waits for: by itself a connection that was lost
// for some seconds is tried as seldom as every few seconds.
const hurryEvery = 250 * time.Millisecond

// reconnecter is a Remote that can be told not to wait before it tries to connect again, as an rpc.Import.
type reconnecter interface {
	stater
	Reconnect()
}

// hurry has the OSTs tried again that c asks for by index and that do not answer.
func (s *Set) hurry(c *layout.Component) {
	asked(c, func(i layout.OSTIndex) bool {
		o := s.find(i)
		if o == nil || o.up.Load() || o.switchedOff() {
			return false
		}
		if r, ok := o.remote.(reconnecter); ok && r.State() == rpc.StateDisconn {
			r.Reconnect()
		}
		return false
	})
}

// roomTime is how long an unlink may take to make room on a full OST: the MDT's commit, which is hastened, the destroy,
// and the OST's next word on its space.
const roomTime = 4 * time.Second

// freeing reports whether an OST that was full at a's last attempt is about to get room: something on it was unlinked a moment
// ago.
func (s *Set) freeing(a *Allocation) bool {
	for i := range a.cands {
		if !a.cands[i].Full {
			continue
		}
		if o := s.find(a.cands[i].Index); o != nil && time.Since(time.Unix(0, o.destroyed.Load())) < roomTime {
			return true
		}
	}
	return false
}

// away reports whether, at the last attempt, an OST that c asks for by index did not answer: for a moment it may be starting.
func (a *Allocation) away(c *layout.Component) bool {
	return asked(c, func(i layout.OSTIndex) bool {
		o := find(a.cands, i)
		return o != nil && !o.Up && !o.Deactivated
	})
}

// asked reports whether fn holds for an OST that c asks for by index, and asks no further then.
func asked(c *layout.Component, fn func(layout.OSTIndex) bool) bool {
	return slices.ContainsFunc(c.Wanted, fn) || c.StripeOffset >= 0 && fn(layout.OSTIndex(c.StripeOffset))
}

// final reports whether waiting cannot mend err, the last attempt's: everything but objects that are not ready, full OSTs that
// are about to get room, and OSTs that are all down, as they are for a moment when the file system starts. What the attempt
// saw counts: an OST may have come since.
func (s *Set) final(err error, a *Allocation, c *layout.Component) bool {
	if errors.Is(err, errNotReady) {
		return false
	}
	if !errors.Is(err, status.NoSpace) {
		return true
	}
	if a.away(c) {
		return false
	}
	if s.freeing(a) {
		s.o.Device.Hasten(s.o.Device.Last())
		return false
	}
	for i := range a.cands {
		if a.cands[i].Up || a.cands[i].Deactivated {
			return true
		}
	}
	return false
}

// try makes one attempt without waiting. It does not allocate in steady state.
func (s *Set) try(a *Allocation, c *layout.Component) error {
	a.cands = a.cands[:0]
	for _, o := range s.list() {
		a.cands = append(a.cands, o.candidate())
	}
	turn := s.turn.Add(uint64(min(max(c.StripeCount, 1), layout.MaxStripes)))
	w := Wish{Count: c.StripeCount, Offset: c.StripeOffset, Wanted: c.Wanted, Turn: turn, Random: s.o.Rand()}
	var err error
	if a.chosen, err = Choose(a.chosen[:0], a.cands, w); err != nil {
		return err
	}
	for _, index := range a.chosen {
		id, ok := s.find(index).take()
		if !ok {
			a.giveBack()
			return errNotReady
		}
		a.stripes = append(a.stripes, layout.Stripe{OST: index, Object: fid.ObjectID{Group: s.o.Group, ID: id}})
	}
	return nil
}

// Replay takes exactly the objects of a replayed create's layout and adds their ids to tx: they are used from now on. The error, of kind
// Protocol, is of objects that another metadata target gives out, or none.
// Precondition: RecoveryEnded was not called yet.
func (s *Set) Replay(tx *store.Tx, e *env.Env, l *layout.Layout) error {
	bad := false
	each(l, func(st layout.Stripe) { bad = bad || st.Object.Group != s.o.Group || st.Object.ID == 0 })
	if err := l.Check(); err != nil || bad {
		return status.Errorf(status.Protocol, "osp: a replay of a layout with objects of other groups, or none")
	}
	each(l, func(st layout.Stripe) {
		if o := s.find(st.OST); o != nil {
			o.replayed(tx, e, st)
		}
		addUsed(tx, e, s.o.Tables.LastUsed, st)
	})
	return nil
}

// Destroy implements Pool.
func (s *Set) Destroy(tx *store.Tx, e *env.Env, l *layout.Layout) {
	now := time.Now().UnixNano()
	each(l, func(st layout.Stripe) {
		addDestroy(tx, e, s.o.Tables.Destroy, st)
		if o := s.find(st.OST); o != nil {
			o.destroyed.Store(now)
		}
	})
}

// Chown implements Pool.
func (s *Set) Chown(tx *store.Tx, e *env.Env, l *layout.Layout, o Owner) {
	each(l, func(st layout.Stripe) { addSetattr(tx, e, s.o.Tables.Setattr, st, o) })
}

func each(l *layout.Layout, fn func(layout.Stripe)) {
	for i := range l.Components {
		for _, st := range l.Components[i].Stripes {
			fn(st)
		}
	}
}
