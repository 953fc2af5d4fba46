package wire

import (
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// CancelsMax bounds the locks of one CANCEL, PROLONG or early lock cancel: what lies behind one message is worked off
// in one go.
const CancelsMax = 1024

// lockFlags are the flags that a peer may set.
const lockFlags = ldlm.NoExpansion | ldlm.NoWait | ldlm.Speculative | ldlm.Glimpse | ldlm.Replay | ldlm.DiscardData

// res joins the fields that name a resource.
func res(seq, oid, hash uint64, kind uint32) (ldlm.ResID, error) {
	if kind < uint32(ldlm.TypePlain) || kind > uint32(ldlm.TypeInodeBits) {
		return ldlm.ResID{}, status.Errorf(status.Protocol, "wire: a resource of type %d", kind)
	}
	return ldlm.ResID{Seq: seq, OID: oid, Hash: hash, Type: ldlm.Type(kind)}, nil
}

// desc joins the fields that describe a lock. A mode of 0 passes: it means none.
func desc(mode, bits uint32, e extent.Extent, gid uint64) (ldlm.Desc, error) {
	if mode != 0 && (mode > uint32(ldlm.TXN) || !ldlm.Mode(mode).Valid()) || bits&^uint32(ldlm.Full) != 0 {
		return ldlm.Desc{}, status.Errorf(status.Protocol, "wire: a lock of mode %#x with bits %#x", mode, bits)
	}
	return ldlm.Desc{Mode: ldlm.Mode(mode), Bits: ldlm.Bits(bits), Extent: e, GID: gid}, nil
}

// recall joins the fields that say what is asked back.
func recall(bits uint32, discard bool) (ldlm.Recall, error) {
	if bits&^uint32(ldlm.Full) != 0 {
		return ldlm.Recall{}, status.Errorf(status.Protocol, "wire: bits %#x are asked back", bits)
	}
	return ldlm.Recall{Bits: ldlm.Bits(bits), Discard: discard}, nil
}

// recallBits is r's bits as they travel: 0, the whole lock, where more than the bits there are is meant.
func recallBits(b ldlm.Bits) uint32 {
	if b&^ldlm.Full != 0 {
		return 0
	}
	return uint32(b)
}

// PutHandles appends handles to a message's field.
func PutHandles(to []uint64, from []ldlm.Handle) []uint64 {
	for _, h := range from {
		to = append(to, uint64(h))
	}
	return to
}

// Handles appends the handles of a message's field to to. More than CancelsMax are an error of kind Protocol.
func Handles(from []uint64, to []ldlm.Handle) ([]ldlm.Handle, error) {
	if len(from) > CancelsMax {
		return to, status.Errorf(status.Protocol, "wire: %d locks in one message, at most %d", len(from), CancelsMax)
	}
	for _, h := range from {
		to = append(to, ldlm.Handle(h))
	}
	return to, nil
}

// PutEnqueue fills m from r: a mirror's request, with own as its handle.
func PutEnqueue(m *wirepb.EnqueueRequest, r *ldlm.Request, own ldlm.Handle) {
	m.Own = uint64(own)
	m.ResSeq, m.ResOid, m.ResHash, m.ResType = r.Res.Seq, r.Res.OID, r.Res.Hash, uint32(r.Res.Type)
	m.Mode, m.Start, m.End = uint32(r.Mode), r.Extent.Start, r.Extent.End
	m.Bits, m.TryBits, m.Gid, m.Flags = uint32(r.Bits), uint32(r.TryBits), r.GID, uint32(r.Flags)
	m.Cancels = PutHandles(m.Cancels[:0], r.Cancels)
}

// Enqueue fills r from m, but for Client, Cause, Initiator, KnownSize and Data, which no peer may say; r.Cancels keeps its
// memory. What no lock can be asked as is an error of kind Protocol. The resource is not of type flock.
func Enqueue(m *wirepb.EnqueueRequest, r *ldlm.Request) error {
	id, err := res(m.ResSeq, m.ResOid, m.ResHash, m.ResType)
	if err != nil {
		return err
	}
	cancels, err := Handles(m.Cancels, r.Cancels[:0])
	if err != nil {
		return err
	}
	switch {
	case id.Type == ldlm.TypeFlock:
		return status.Errorf(status.Protocol, "wire: an application lock where another one belongs")
	case m.Mode > uint32(ldlm.GROUP) || !ldlm.Mode(m.Mode).Valid():
		return status.Errorf(status.Protocol, "wire: a lock of mode %#x is asked for", m.Mode)
	case (m.Bits|m.TryBits)&^uint32(ldlm.Full) != 0:
		return status.Errorf(status.Protocol, "wire: a lock with bits %#x, %#x is asked for", m.Bits, m.TryBits)
	case m.Flags&^uint32(lockFlags) != 0:
		return status.Errorf(status.Protocol, "wire: a lock with flags %#x is asked for", m.Flags)
	}
	*r = ldlm.Request{
		Res: id, Mode: ldlm.Mode(m.Mode), Remote: ldlm.Handle(m.Own), Extent: extent.Extent{Start: m.Start, End: m.End},
		Bits: ldlm.Bits(m.Bits), TryBits: ldlm.Bits(m.TryBits), GID: m.Gid, Flags: ldlm.Flags(m.Flags), Cancels: cancels,
	}
	return nil
}

// PutFlock fills m from r: a wish for an application lock (Op is not FlockUnlock), with own as the handle that a completion
// AST names.
func PutFlock(m *wirepb.EnqueueRequest, r *ldlm.FlockRequest, own ldlm.Handle) {
	m.Own = uint64(own)
	m.ResSeq, m.ResOid, m.ResHash, m.ResType = r.Res.Seq, r.Res.OID, r.Res.Hash, uint32(r.Res.Type)
	m.Mode = uint32(ldlm.PR)
	if r.Op == ldlm.FlockExclusive {
		m.Mode = uint32(ldlm.PW)
	}
	m.Start, m.End = r.Range.Start, r.Range.End
	m.FlockClass, m.FlockOwner, m.FlockPid = uint32(r.Range.Owner.Class), r.Range.Owner.Owner, r.Range.PID
	m.Flags = 0
	if !r.Wait {
		m.Flags = uint32(ldlm.NoWait)
	}
	m.Detach = r.Wait
}

// Flock fills r from m, but for the owner's client and Data. One that is handed back after a restart (Replay) waits for nobody.
func Flock(m *wirepb.EnqueueRequest, r *ldlm.FlockRequest) error {
	id, err := res(m.ResSeq, m.ResOid, m.ResHash, m.ResType)
	if err != nil {
		return err
	}
	*r = ldlm.FlockRequest{Res: id, Op: ldlm.FlockShared, Wait: m.Flags&uint32(ldlm.NoWait|ldlm.Replay) == 0, Remote: ldlm.Handle(m.Own)}
	switch {
	case id.Type != ldlm.TypeFlock, m.FlockClass > uint32(ldlm.BSD), m.Flags&^uint32(ldlm.NoWait|ldlm.Replay) != 0:
		return status.Errorf(status.Protocol, "wire: an application lock of type %d, class %d, flags %#x", id.Type, m.FlockClass, m.Flags)
	case m.Mode == uint32(ldlm.PW):
		r.Op = ldlm.FlockExclusive
	case m.Mode != uint32(ldlm.PR):
		return status.Errorf(status.Protocol, "wire: an application lock of mode %#x", m.Mode)
	}
	r.Range = flockRange(m.Start, m.End, m.FlockClass, m.FlockOwner, m.FlockPid)
	return nil
}

func flockRange(start, end uint64, class uint32, owner uint64, pid uint32) ldlm.FlockRange {
	return ldlm.FlockRange{Extent: extent.Extent{Start: start, End: end}, PID: pid,
		Owner: ldlm.FlockOwner{Owner: owner, Class: ldlm.FlockClass(class)}}
}

// PutFlockRequest fills m from r: an unlock, or with test the question who is in the way of it.
func PutFlockRequest(m *wirepb.FlockRequest, r *ldlm.FlockRequest, test bool) {
	m.ResSeq, m.ResOid, m.Start, m.End = r.Res.Seq, r.Res.OID, r.Range.Start, r.Range.End
	m.Class, m.Owner, m.Pid = uint32(r.Range.Owner.Class), r.Range.Owner.Owner, r.Range.PID
	m.Test, m.Write = test, r.Op == ldlm.FlockExclusive
}

// FlockRequest fills r from m, but for the owner's client: an unlock, or with m.Test the lock whose way is asked about.
func FlockRequest(m *wirepb.FlockRequest, r *ldlm.FlockRequest) error {
	if m.Class > uint32(ldlm.BSD) {
		return status.Errorf(status.Protocol, "wire: application locks of class %d", m.Class)
	}
	*r = ldlm.FlockRequest{Res: ldlm.ResID{Seq: m.ResSeq, OID: m.ResOid, Type: ldlm.TypeFlock}, Op: ldlm.FlockUnlock,
		Range: flockRange(m.Start, m.End, m.Class, m.Owner, m.Pid)}
	switch {
	case m.Test && m.Write:
		r.Op = ldlm.FlockExclusive
	case m.Test:
		r.Op = ldlm.FlockShared
	}
	return nil
}

// PutEnqueueReply fills the lock's part of m from what was granted.
func PutEnqueueReply(m *wirepb.EnqueueReply, a *ldlm.Answer) {
	m.Lock, m.Mode, m.Bits, m.Gid = uint64(a.Remote), uint32(a.Desc.Mode), uint32(a.Desc.Bits), a.Desc.GID
	m.Start, m.End = a.Desc.Extent.Start, a.Desc.Extent.End
	m.Blocked, m.RecallBits, m.Discard = a.Blocked, 0, a.Recall.Discard
	if a.Blocked {
		m.RecallBits = recallBits(a.Recall.Bits)
	}
}

// EnqueueReply fills a from m, for Namespace.Settle.
func EnqueueReply(m *wirepb.EnqueueReply, a *ldlm.Answer) error {
	d, err := desc(m.Mode, m.Bits, extent.Extent{Start: m.Start, End: m.End}, m.Gid)
	if err != nil {
		return err
	}
	r, err := recall(m.RecallBits, m.Discard)
	if err != nil {
		return err
	}
	*a = ldlm.Answer{Remote: ldlm.Handle(m.Lock), Desc: d, Blocked: m.Blocked, Recall: r}
	return nil
}

// PutGrant fills m from what was granted with another request's answer; own is the holder's handle, or 0.
func PutGrant(m *wirepb.LockGrant, id ldlm.ResID, own ldlm.Handle, a *ldlm.Answer) {
	m.Own, m.Lock, m.Mode, m.Bits = uint64(own), uint64(a.Remote), uint32(a.Desc.Mode), uint32(a.Desc.Bits)
	m.ResSeq, m.ResOid, m.ResHash, m.ResType = id.Seq, id.OID, id.Hash, uint32(id.Type)
	m.Start, m.End = a.Desc.Extent.Start, a.Desc.Extent.End
	m.Blocked, m.RecallBits = a.Blocked, 0
	if a.Blocked {
		m.RecallBits = recallBits(a.Recall.Bits)
	}
}

// Grant returns the resource and the holder's handle of m and fills a.
func Grant(m *wirepb.LockGrant, a *ldlm.Answer) (ldlm.ResID, ldlm.Handle, error) {
	id, err := res(m.ResSeq, m.ResOid, m.ResHash, m.ResType)
	if err != nil {
		return id, 0, err
	}
	d, err := desc(m.Mode, m.Bits, extent.Extent{Start: m.Start, End: m.End}, 0)
	if err != nil {
		return id, 0, err
	}
	r, err := recall(m.RecallBits, false)
	if err != nil {
		return id, 0, err
	}
	*a = ldlm.Answer{Remote: ldlm.Handle(m.Lock), Desc: d, Blocked: m.Blocked, Recall: r}
	return id, ldlm.Handle(m.Own), nil
}

// Conversion fills c from m, but for the client.
func Conversion(m *wirepb.ConvertRequest, c *ldlm.Conversion) error {
	d, err := desc(m.Mode, m.Bits, extent.Extent{}, 0)
	if err != nil {
		return err
	}
	*c = ldlm.Conversion{Handle: ldlm.Handle(m.Lock), Mode: d.Mode, Bits: d.Bits}
	return nil
}

// PutConvertReply fills m from the lock as it is now.
func PutConvertReply(m *wirepb.ConvertReply, d *ldlm.Desc) {
	m.Mode, m.Bits, m.Start, m.End = uint32(d.Mode), uint32(d.Bits), d.Extent.Start, d.Extent.End
}

// ConvertReply returns the lock as it is now, for Namespace.Converted.
func ConvertReply(m *wirepb.ConvertReply) (ldlm.Desc, error) {
	return desc(m.Mode, m.Bits, extent.Extent{Start: m.Start, End: m.End}, 0)
}
