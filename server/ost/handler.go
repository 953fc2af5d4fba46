package ost

import (
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/target"
)

// handler is the OST as its target calls it.
type handler struct{ o *OST }

// scratch is a worker's messages: they live in its env, so that nothing on the data path allocates.
type scratch struct {
	read      wirepb.ReadRequest
	write     wirepb.WriteRequest
	punch     wirepb.PunchRequest
	allocate  wirepb.FallocateRequest
	seek      wirepb.SeekRequest
	glimpse   wirepb.GlimpseRequest
	sync      wirepb.ObjectSyncRequest
	setattr   wirepb.ObjectSetattrRequest
	precreate wirepb.PrecreateRequest
	destroy   wirepb.DestroyRequest
	object    wirepb.Object // of whichever request
	access    access

	readReply      wirepb.ReadReply
	objectReply    wirepb.ObjectReply
	precreateReply wirepb.PrecreateReply
	statfsReply    wirepb.StatfsReply
}

func scratchOf(e *env.Env) *scratch {
	s, _ := e.State(env.LayerOST).(*scratch)
	if s == nil {
		s = &scratch{}
		e.SetState(env.LayerOST, s)
	}
	return s
}

// fresh returns the worker's object message, empty.
func (s *scratch) fresh() *wirepb.Object {
	s.object.Reset()
	return &s.object
}

// Serve implements target.Handler.
func (h handler) Serve(e *env.Env, x *target.Export, c *rpc.Call) error {
	switch c.Header.Op {
	case wire.OpRead:
		return h.o.serveRead(e, x, c)
	case wire.OpWrite:
		return h.o.serveWrite(e, x, c)
	case wire.OpGlimpse:
		return h.o.serveGlimpse(e, c)
	case wire.OpSeek:
		return h.o.serveSeek(e, x, c)
	case wire.OpObjectSync:
		return h.o.serveSync(e, c)
	case wire.OpStatfs:
		return h.o.serveStatfs(e, c)
	case wire.OpInspect:
		return h.o.inspector.Serve(e, x, c)
	case wire.OpPunch, wire.OpFallocate:
		if x.ReadOnly {
			return status.ReadOnly
		}
		if c.Header.Op == wire.OpPunch {
			return h.o.servePunch(e, x, c)
		}
		return h.o.serveFallocate(e, x, c)
	case wire.OpEnqueue, wire.OpConvert, wire.OpCancel, wire.OpProlong:
		return h.o.serveLocks(e, x, c)
	case wire.OpObjectSetattr, wire.OpPrecreate, wire.OpDestroy:
		if x.Kind != rpc.KindMDT {
			return status.Errorf(status.Perm, "%s: %v is for metadata targets", h.o.o.Name, c.Header.Op)
		}
		return h.serveMDT(e, c)
	}
	return status.Errorf(status.NotSupport, "%s: %v is no operation of an OST", h.o.o.Name, c.Header.Op)
}

func (h handler) serveMDT(e *env.Env, c *rpc.Call) error {
	switch c.Header.Op {
	case wire.OpObjectSetattr:
		return h.o.serveSetattr(e, c)
	case wire.OpPrecreate:
		return h.o.servePrecreate(e, c)
	}
	return h.o.serveDestroy(e, c)
}

// ExportGone implements target.Handler.
func (h handler) ExportGone(x *target.Export) { h.o.exportGone(x) }

// MaxObjectBytes is the largest size of an object: what an ext4 with blocks of 4 KiB holds.
const MaxObjectBytes = 1<<44 - 4096

// objectOf checks the object that a request names.
func objectOf(m *wirepb.Object) (fid.ObjectID, error) {
	if m == nil || m.Id == 0 {
		return fid.ObjectID{}, status.Errorf(status.Invalid, "a request without an object")
	}
	return fid.ObjectID{Group: m.Group, ID: m.Id}, nil
}

// checkRange refuses a range that no object can have, before anything is allocated for it.
func checkRange(offset, length uint64) error {
	if offset > MaxObjectBytes || length > MaxObjectBytes-offset {
		return status.Errorf(status.FileTooBig, "bytes %d and %d on: an object holds at most %d", offset, length, uint64(MaxObjectBytes))
	}
	return nil
}

// missing is the answer to a change of an object without a file: none for one that was destroyed.
func (o *OST) missing(id fid.ObjectID) error {
	if id.ID <= o.group(id.Group).last.Load() {
		return nil
	}
	return status.Errorf(status.NotExist, "%s: object %v was never made", o.o.Name, id)
}

func (o *OST) serveStatfs(e *env.Env, c *rpc.Call) error {
	f, err := o.o.Device.Statfs()
	if err != nil {
		return err
	}
	granted, _ := o.space.sums()
	r := &scratchOf(e).statfsReply
	r.Reset()
	r.TotalBytes, r.FreeBytes, r.AvailBytes = f.Total, f.Free, f.Avail
	r.Inodes, r.FreeInodes, r.GrantedBytes = f.Inodes, f.FreeInodes, uint64(granted)
	c.Reply = r
	return nil
}
