package osp

import (
	"context"
	"errors"
	"fmt"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/store"
)

// candidate is the OST as Choose sees it now.
func (o *OSP) candidate() Candidate {
	c := Candidate{Index: o.index, Up: o.up.Load(), Full: o.full.Load(), Deactivated: o.switchedOff()}
	if s := o.space.Load(); s != nil {
		c.AvailBytes = s.AvailBytes
	}
	o.mu.Lock()
	c.Ready = o.readyLocked()
	if c.Ready == 0 && !o.dry {
		o.dry = true
		wake(o.createWake)
	}
	o.mu.Unlock()
	return c
}

func (o *OSP) readyLocked() int { return int(o.last+1-o.cursor) + len(o.freed) }

// take hands out one object id; false if none is ready.
func (o *OSP) take() (uint64, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var id uint64
	switch {
	case len(o.freed) > 0:
		id = o.freed[len(o.freed)-1]
		o.freed = o.freed[:len(o.freed)-1]
	case o.cursor <= o.last:
		id = o.cursor
		o.cursor++
	default:
		return 0, false
	}
	o.top = max(o.top, id)
	o.handed++
	if uint64(o.readyLocked()) < o.batch/2 {
		wake(o.createWake)
	}
	return id, true
}

// putBack makes an id that was not used available again.
func (o *OSP) putBack(id uint64) {
	o.mu.Lock()
	o.freed = append(o.freed, id)
	o.mu.Unlock()
	o.set.notify()
}

// used notes an id that a replay uses, and returns the highest id used before.
func (o *OSP) used(id uint64) (top uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	top = o.top
	o.top = max(o.top, id)
	return top
}

// passedMax bounds the ids that one replay may pass over and have destroyed: more than an OST makes ahead.
const passedMax = 32768

// replayed puts into tx that a replay uses the object of st. Ids that are passed over belong to creates that may not come any more, of
// clients that are lost: each gets a record in the destroy log, which a replay that comes all the same takes out again. Records are
// not sent before recovery has ended. After a restore nothing is destroyed.
func (o *OSP) replayed(tx *store.Tx, e *env.Env, st layout.Stripe) {
	top, id, table := o.used(st.Object.ID), st.Object.ID, o.set.o.Tables.Destroy
	switch {
	case o.set.keeps():
	case id <= top:
		tx.Delete(table, putLogKey(e.Alloc(logKeySize), st.OST, st.Object))
	case id-top-1 <= passedMax:
		for st.Object.ID = top + 1; st.Object.ID < id; st.Object.ID++ {
			addDestroy(tx, e, table, st)
		}
	}
}

// createLoop keeps objects ready. It begins when recovery has ended, with the orphans.
func (o *OSP) createLoop() {
	select {
	case <-o.set.recovered:
	case <-o.set.ctx.Done():
		return
	}
	for {
		var err error
		if !o.cleaned.Load() {
			clean := o.cleanOrphans
			if o.set.keeps() {
				clean = o.survey
			}
			if err = clean(o.set.ctx); err == nil {
				o.cleaned.Store(true)
			}
		}
		for err == nil && o.low() {
			err = o.refill(o.set.ctx)
		}
		if o.set.ctx.Err() != nil {
			return
		}
		if err != nil {
			o.refused(err)
			o.set.o.Log.Warn("making objects ahead", "ost", o.name, "err", err)
			if !o.pause(retryEvery) {
				return
			}
			continue
		}
		select {
		case <-o.createWake:
		case <-o.set.ctx.Done():
			return
		}
	}
}

// low reports whether it is time to make more objects.
func (o *OSP) low() bool {
	if o.full.Load() || o.switchedOff() {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return uint64(o.readyLocked()) <= o.batch/2
}

// cleanOrphans makes the OST destroy what nobody owns, and begins the pool behind the last id that it ever made.
func (o *OSP) cleanOrphans(ctx context.Context) error {
	o.mu.Lock()
	used := o.top
	o.mu.Unlock()
	last, err := o.precreate(ctx, &wirepb.PrecreateRequest{Group: o.set.o.Group, Orphans: true, Used: used})
	if err != nil {
		return fmt.Errorf("orphans above %d: %w", used, err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = max(last, used)
	o.cursor = o.last + 1
	return nil
}

// refill makes one batch more. The batch doubles when it was nearly used up before the OST, though it did what it was
// asked, had the next one ready; it grows fourfold when creates had to wait.
func (o *OSP) refill(ctx context.Context) error {
	o.mu.Lock()
	batch, upto := o.batch, o.last+o.batch
	o.mu.Unlock()
	last, err := o.precreate(ctx, &wirepb.PrecreateRequest{Group: o.set.o.Group, Upto: upto})
	if err != nil {
		return fmt.Errorf("objects up to %d: %w", upto, err)
	}
	o.mu.Lock()
	if last <= o.last {
		was := o.last
		o.mu.Unlock()
		return status.Errorf(status.Protocol, "the OST was asked for objects up to %d, has %d, and answers %d", upto, was, last)
	}
	switch {
	case o.handed > 0 && o.readyLocked() == 0:
		o.batch = min(4*batch, o.set.o.CreateMax)
	case uint64(o.readyLocked()) < batch/4 && o.handed > 0:
		o.batch = min(2*batch, o.set.o.CreateMax)
	}
	o.last, o.dry = last, false
	o.mu.Unlock()
	o.set.notify()
	return nil
}

func (o *OSP) precreate(ctx context.Context, m *wirepb.PrecreateRequest) (uint64, error) {
	reply := &wirepb.PrecreateReply{}
	err := o.remote.Do(ctx, &rpc.Request{Op: wire.OpPrecreate, Body: m, Reply: reply})
	if errors.Is(err, context.Canceled) {
		return 0, err
	}
	return reply.Last, err
}
