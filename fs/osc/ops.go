package osc

import (
	"context"
	"errors"
	"fmt"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// Space is what statfs tells of OSTs, in bytes and inodes.
type Space struct {
	Total, Free, Avail uint64
	Inodes, FreeInodes uint64
	Granted            uint64
}

// Add sums.
func (s *Space) Add(t Space) {
	s.Total, s.Free, s.Avail = s.Total+t.Total, s.Free+t.Free, s.Avail+t.Avail
	s.Inodes, s.FreeInodes = s.Inodes+t.Inodes, s.FreeInodes+t.FreeInodes
	s.Granted += t.Granted
}

// Glimpse is what the OST tells of an object: size in bytes, blocks of 512 bytes, time of the last change of data.
// A zero Exists is an object that was never made or is destroyed.
type Glimpse struct {
	Size, Blocks uint64
	Mtime, Ctime attr.Time
	Exists       bool
	// Held says that a lock on the whole object, which was held already, told it: nobody was asked.
	Held bool
}

// Statfs asks the OST for its space.
func (c *OSC) Statfs(ctx context.Context) (Space, error) {
	var m wirepb.StatfsReply
	if err := c.do(ctx, &rpc.Request{Op: wire.OpStatfs, Reply: &m}); err != nil {
		return Space{}, fmt.Errorf("osc: %s: statfs: %w", c.o.Name, err)
	}
	return Space{
		Total: m.TotalBytes, Free: m.FreeBytes, Avail: m.AvailBytes,
		Inodes: m.Inodes, FreeInodes: m.FreeInodes, Granted: m.GrantedBytes,
	}, nil
}

// Sync writes back all dirty data of this OST and makes everything on it durable.
func (c *OSC) Sync(ctx context.Context) error {
	if err := c.flush(ctx); err != nil {
		return err
	}
	m := wirepb.ObjectSyncRequest{All: true}
	if err := c.do(ctx, &rpc.Request{Op: wire.OpObjectSync, Body: &m}); err != nil {
		return fmt.Errorf("osc: %s: sync: %w", c.o.Name, err)
	}
	return nil
}

// Sync makes durable what was written to the object. Dirty data is not: Flush first.
func (o *Object) Sync(ctx context.Context) error {
	var id wirepb.Object
	r, err := o.call(ctx, wire.OpObjectSync, &wirepb.ObjectSyncRequest{Object: o.name(&id)})
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.dirty == 0 && r.Exists {
		o.space.told(r.Blocks, r.Size)
	}
	return nil
}

// Punch frees e; an End of extent.EOF makes Start the object's size. It waits for the answer and cannot be interrupted,
// because a request that nobody waits for could reach the OST behind later writes; it ends with the OSC at the latest.
// Precondition: nothing in e is dirty or unanswered, and no write to e begins before it returned.
func (o *Object) Punch(e extent.Extent, mtime attr.Time, lock ldlm.Handle) error {
	var id wirepb.Object
	m := wirepb.PunchRequest{Object: o.name(&id), Start: e.Start, End: e.End, MtimeSec: mtime.Sec, MtimeNsec: mtime.Nsec}
	r, err := o.change(lock, &m.Lock, wire.OpPunch, &m)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if e.End == extent.EOF {
		o.space.told(guessCut(o.space.blocks, r.Blocks, e.Start), e.Start)
		o.osc.covers.changed(o.id, o.space.blocks, nanoseconds(mtime))
	} else {
		o.space.vague = true
	}
	return nil
}

// Fallocate does what fallocate(2) with these mode bits does to the bytes of e. It waits as Punch does.
// Precondition: as for Punch.
func (o *Object) Fallocate(mode uint32, e extent.Extent, mtime attr.Time, lock ldlm.Handle) error {
	var id wirepb.Object
	m := wirepb.FallocateRequest{
		Object: o.name(&id), Mode: mode, Offset: e.Start, Length: e.Len(), MtimeSec: mtime.Sec, MtimeNsec: mtime.Nsec,
	}
	r, err := o.change(lock, &m.Lock, wire.OpFallocate, &m)
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.osc.covers.changed(o.id, max(o.space.blocks, r.Blocks), nanoseconds(mtime))
	o.space.vague = true
	return nil
}

// Seek finds the first byte from off on that is data, or that is in a hole; the object's end counts as a hole. found is
// false when there is none.
// Precondition: nothing is dirty.
func (o *Object) Seek(ctx context.Context, off uint64, hole bool, lock ldlm.Handle) (pos uint64, found bool, err error) {
	var id wirepb.Object
	m := wirepb.SeekRequest{Object: o.name(&id), Offset: off, Hole: hole}
	m.Lock, _ = o.osc.remote(lock)
	r, err := o.call(ctx, wire.OpSeek, &m)
	if m.Lock != 0 && errors.Is(err, status.BadHandle) {
		m.Lock = 0
		r, err = o.call(ctx, wire.OpSeek, &m)
	}
	switch {
	case errors.Is(err, status.NoDevice) && hole:
		return off, true, nil
	case errors.Is(err, status.NoDevice):
		return 0, false, nil
	case err != nil:
		return 0, false, err
	}
	return r.Offset, true, nil
}

// change runs a request that changes the object under a lock; field is where the request names it.
func (o *Object) change(lock ldlm.Handle, field *uint64, op wire.Op, body rpc.Message) (*wirepb.ObjectReply, error) {
	o.osc.aheads.drop(o.osc, o.id, whole)
	defer o.osc.aheads.drop(o.osc, o.id, whole)
	for {
		h, ok := o.osc.remote(lock)
		if !ok {
			return nil, o.fail(op.String(), 0, errLost)
		}
		*field = h
		r := rpc.Request{Op: op, Body: body, Reply: new(wirepb.ObjectReply)}
		err := o.run(&o.osc.life, &r)
		if err == nil {
			*field = 0 // To be kept without: a replay needs none.
			if !o.osc.keepChange(o, &r) {
				continue
			}
		}
		if h == 0 || !errors.Is(err, status.BadHandle) {
			return r.Reply.(*wirepb.ObjectReply), err
		}
		if again, ok := o.osc.remote(lock); !ok || again == h {
			return nil, o.fail(op.String(), 0, errLost)
		}
	}
}

func (o *Object) call(ctx context.Context, op wire.Op, body rpc.Message) (*wirepb.ObjectReply, error) {
	reply := new(wirepb.ObjectReply)
	return reply, o.run(ctx, &rpc.Request{Op: op, Body: body, Reply: reply})
}

func (o *Object) run(ctx context.Context, r *rpc.Request) error {
	if err := o.osc.do(ctx, r); err != nil {
		return fmt.Errorf("osc: %s: %v object %v: %w", o.osc.o.Name, r.Op, o.id, err)
	}
	return nil
}
