package mdt

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
)

// The bytes `recovery` of a reply that changed something: what a replay needs to know of the first run, big-endian. They go to
// the client and come back, so they are checked, and never trusted beyond what the client might have asked for itself.
//
//	 0  1  version (1)
//	 1  1  number of dependencies, at most depsMax
//	 2  8  time of the operation: seconds
//	10  4  nanoseconds
//	14  …  transnos of the dependencies, 8 bytes each, in the order of depend.go
//	 …  …  outcomes of size reports
//
// An outcome is what a report made of its file:
//
//	 0  8  sequence
//	 8  4  object id
//	12  1  flags of the record: size_valid and mtime was set
//	13  4  setattr generation
//	17  8  size
//	25  8  blocks
//	33 12  atime
//	45 12  mtime
//	57 12  ctime
const (
	notesVersion = 1
	notesFixed   = 14
	outcomeSize  = 69
)

// again is what an operation that is a replay knows of its first run. Then on is set.
type again struct {
	on bool
	// entry is the reply of then, of operations that answer with one.
	entry    wirepb.EntryReply
	deps     [depsMax]store.Transno
	nDeps    int
	outcomes []byte
}

// noted sets the recovery bytes of a reply that is about to be published.
func (o *op) noted(reply rpc.Message) {
	if o.again.on || o.tx.Empty() {
		return
	}
	b := o.e.Alloc(notesFixed + 8*len(o.deps) + len(o.outcomes))
	b[0], b[1] = notesVersion, byte(len(o.deps))
	putTime(b[2:], o.now)
	for i, d := range o.deps {
		binary.BigEndian.PutUint64(b[notesFixed+8*i:], uint64(d.transno))
	}
	copy(b[notesFixed+8*len(o.deps):], o.outcomes)
	switch m := reply.(type) {
	case *wirepb.EntryReply:
		m.Recovery = b
	case *wirepb.UnlinkReply:
		m.Recovery = b
	case *wirepb.RenameReply:
		m.Recovery = b
	case *wirepb.XattrReply:
		m.Recovery = b
	case *wirepb.ReportReply:
		m.Recovery = b
	}
}

// remember makes the operation a replay, if it is one.
func (o *op) remember() error {
	raw, ok := o.h.target.Replayed(o.c)
	if !ok {
		return nil
	}
	a := &o.again
	a.on = true
	var notes []byte
	var err error
	switch o.c.Header.Op {
	case wire.OpCreate, wire.OpOpen, wire.OpLink, wire.OpSetattr, wire.OpSetLayout:
		a.entry.ResetVT()
		err = a.entry.UnmarshalVT(raw)
		notes = a.entry.Recovery
	case wire.OpUnlink:
		m := &o.rep.unlink
		m.ResetVT()
		err = m.UnmarshalVT(raw)
		notes = m.Recovery
	case wire.OpRename:
		m := &o.rep.rename
		m.ResetVT()
		err = m.UnmarshalVT(raw)
		notes = m.Recovery
	case wire.OpSetxattr, wire.OpRemovexattr:
		m := &o.rep.xattr
		m.ResetVT()
		err = m.UnmarshalVT(raw)
		notes = m.Recovery
	case wire.OpClose, wire.OpReportSizes:
		m := &o.rep.report
		m.ResetVT()
		err = m.UnmarshalVT(raw)
		notes = m.Recovery
	default:
		return status.Errorf(status.Protocol, "mdt: a replay of %v", o.c.Header.Op)
	}
	if err != nil {
		return fmt.Errorf("mdt: %w: the reply of a replay: %w", status.Protocol, err)
	}
	return a.read(notes, &o.now)
}

// read takes the recovery bytes of the first run.
func (a *again) read(b []byte, now *attr.Time) error {
	if len(b) < notesFixed || b[0] != notesVersion || int(b[1]) > depsMax || len(b) < notesFixed+8*int(b[1]) {
		return status.Errorf(status.Protocol, "mdt: a replay with %d bytes about its first run", len(b))
	}
	*now = getTime(b[2:])
	a.nDeps = int(b[1])
	for i := range a.nDeps {
		a.deps[i] = store.Transno(binary.BigEndian.Uint64(b[notesFixed+8*i:]))
	}
	a.outcomes = b[notesFixed+8*a.nDeps:]
	if now.Nsec >= 1e9 || len(a.outcomes)%outcomeSize != 0 || len(a.outcomes)/outcomeSize > reportBatch {
		return status.Errorf(status.Protocol, "mdt: a replay with %d bytes of outcomes", len(a.outcomes))
	}
	return nil
}

// same reports whether what the replay depends on is what its first run did: DESIGN §8, version-based recovery.
func (o *op) same() error {
	a := &o.again
	if len(o.deps) != a.nDeps {
		return status.Errorf(status.Stale, "mdt: the replay depends on %d changes, its first run did on %d", len(o.deps), a.nDeps)
	}
	for i, d := range o.deps {
		if d.transno != a.deps[i] {
			return status.Errorf(status.Stale, "mdt: the replay's dependency %d was changed in %#x, for its first run in %#x", i, uint64(d.transno), uint64(a.deps[i]))
		}
	}
	return nil
}

// refused makes any failure of a replay a refusal, and counts it: what it rests on is not there.
func (o *op) refused(err error) error {
	k := status.Of(err)
	if k == status.Stopping || o.h.dev.Err() != nil || o.h.life.Err() != nil {
		return err
	}
	o.h.stats.vbrRefused.Inc()
	if k == status.Stale || k == status.Protocol {
		return err
	}
	return fmt.Errorf("%w: a replay: %w", status.Stale, err)
}

// replayObjects gives o.child exactly the objects of the first run.
func (o *op) replayObjects() error {
	if err := o.tmpl.Decode(o.again.entry.Layout); err != nil {
		return fmt.Errorf("mdt: %w: the layout of a replay: %w", status.Protocol, err)
	}
	if err := o.h.o.Objects.Replay(o.tx, o.e, &o.tmpl); err != nil {
		return err
	}
	o.child.sec[secLayout] = o.encodeLayout(&o.tmpl)
	return nil
}

// outcome notes what a report has made of n.
func (o *op) outcome(n *inode) {
	be := binary.BigEndian
	at := len(o.outcomes)
	o.outcomes = slices.Grow(o.outcomes, outcomeSize)[:at+outcomeSize]
	b := o.outcomes[at:]
	be.PutUint64(b, uint64(n.FID.Seq))
	be.PutUint32(b[8:], n.FID.OID)
	b[12] = n.flags & recMtimeSet
	if n.SizeValid {
		b[12] |= recSizeValid
	}
	be.PutUint32(b[13:], n.SetattrGen)
	be.PutUint64(b[17:], n.Size)
	be.PutUint64(b[25:], n.Blocks)
	putTime(b[33:], n.Atime)
	putTime(b[45:], n.Mtime)
	putTime(b[57:], n.Ctime)
}

// replayReports applies the outcomes of reports. What they closed is closed: no handle comes back for it.
func (o *op) replayReports() error {
	o.locks.reset()
	o.beginTx()
	for b := o.again.outcomes; len(b) > 0; b = b[outcomeSize:] {
		if err := o.replayOutcome(b[:outcomeSize]); err != nil {
			return err
		}
	}
	return o.commit(nil)
}

// replayOutcome applies one. A file that is not there, or not for this client to write, is left alone; where another truncate, or another time that was set, was
// lost or came instead, nobody knows the size.
func (o *op) replayOutcome(b []byte) error {
	be := binary.BigEndian
	f, err := o.fid(be.Uint64(b), be.Uint32(b[8:]))
	if err != nil {
		return err
	}
	n := &o.child
	if err := o.get(f, n); err != nil {
		if stale(err) {
			return nil
		}
		return err
	}
	size := be.Uint64(b[17:])
	if !n.IsFile() || size > attr.SizeMax || o.x.ReadOnly {
		return nil
	}
	if be.Uint32(b[13:]) != n.SetattrGen {
		if n.SizeValid {
			n.SizeValid = false
			o.put(n, false)
		}
		return nil
	}
	n.Size, n.Blocks, n.SizeValid = size, be.Uint64(b[25:]), b[12]&recSizeValid != 0
	n.flags = n.flags&^recMtimeSet | b[12]&recMtimeSet
	n.Atime, n.Mtime, n.Ctime = getTime(b[33:]), getTime(b[45:]), getTime(b[57:]).Later(n.Ctime)
	if n.Atime.Nsec >= 1e9 || n.Mtime.Nsec >= 1e9 || n.Ctime.Nsec >= 1e9 {
		return status.Errorf(status.Protocol, "mdt: a replay with times of no clock")
	}
	o.put(n, false)
	return nil
}

// reopenMax bounds the opens handed back with one request.
const reopenMax = 4096

// reopen takes opens back after a restart, and who may have written what: each by number, also of what has no name any more.
func (o *op) reopen() error {
	m := &o.req.reopen
	if err := o.decode(m); err != nil {
		return err
	}
	if len(m.Opens) > reopenMax {
		return status.Errorf(status.TooBig, "mdt: %d opens handed back at once, %d are the most", len(m.Opens), reopenMax)
	}
	r := &o.rep.reopen
	r.Status = slices.Grow(r.Status[:0], len(m.Opens))
	for _, p := range m.Opens {
		err := o.reopenOne(p)
		o.locks.release()
		k := status.Of(err)
		if k == status.Stopping {
			return err
		}
		if err != nil {
			o.h.log.Warn("an open is not taken back", "target", o.h.o.Name, "peer", o.x.Peer, "seq", p.Seq, "oid", p.Oid, "err", err)
		}
		r.Status = append(r.Status, uint32(k))
	}
	o.c.Reply = r
	return nil
}

// lockReopen locks and reads an inode as lockOpen does, for who opens it to write or is a writer of it.
func (o *op) lockReopen(f fid.FID, p *wirepb.Reopen) error {
	if !p.Writer && !writes(p.Flags) {
		return o.lockOne(f, ldlm.CW, ldlm.Open)
	}
	if o.x.ReadOnly {
		return status.ReadOnly
	}
	if err := o.lockOne(f, ldlm.EX, opened); err != nil {
		return err
	}
	if o.child.IsDir() {
		return status.IsDir
	}
	return nil
}

func (o *op) reopenOne(p *wirepb.Reopen) error {
	f, err := o.fid(p.Seq, p.Oid)
	if err != nil {
		return err
	}
	if err := o.lockReopen(f, p); err != nil {
		return err
	}
	n := &o.child
	if p.Handle != 0 {
		again, err := o.xs.restoreHandle(p.Handle, f, p.Flags, n.IsDir())
		if err != nil || again {
			return err
		}
		o.h.opens.open(f)
		o.h.stats.opens.Add(1)
	}
	if !n.IsFile() || !p.Writer && !writes(p.Flags) {
		return nil
	}
	handles := 0
	if p.Handle != 0 && writes(p.Flags) {
		handles = 1
	}
	o.h.opens.restoreWriter(f, o.xs, handles, p.SetattrGen)
	if !n.SizeValid && n.flags&recWritten != 0 {
		return nil
	}
	o.beginTx()
	n.SizeValid = false
	n.flags |= recWritten
	o.put(n, false)
	_, err = o.h.dev.Publish(o.tx)
	return target.Status(err)
}
