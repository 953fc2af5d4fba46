package wire

import (
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// AST is what the three callbacks say of the lock that they are about.
type AST struct {
	Own    ldlm.Handle // the holder's handle; 0 where it named none
	Remote ldlm.Handle // the server's
	Res    ldlm.ResID
}

// PutBlocking fills m from an effect of kind EffectBlocking.
func PutBlocking(m *wirepb.BlockingAST, e *ldlm.Effect) {
	m.Own, m.Lock = uint64(e.Remote), uint64(e.Handle)
	m.ResSeq, m.ResOid, m.ResHash, m.ResType = e.Res.Seq, e.Res.OID, e.Res.Hash, uint32(e.Res.Type)
	m.Cancel, m.Discard = recallBits(e.Cancel), e.Discard
	m.ByMode, m.ByBits, m.ByGid = uint32(e.Desc.Mode), uint32(e.Desc.Bits), e.Desc.GID
	m.ByStart, m.ByEnd = e.Desc.Extent.Start, e.Desc.Extent.End
}

// Blocking returns what m says: the lock, what is asked back, and the lock that wants it (Mode 0: nobody's).
func Blocking(m *wirepb.BlockingAST) (AST, ldlm.Recall, ldlm.Desc, error) {
	a := AST{Own: ldlm.Handle(m.Own), Remote: ldlm.Handle(m.Lock)}
	var err error
	if a.Res, err = res(m.ResSeq, m.ResOid, m.ResHash, m.ResType); err != nil {
		return a, ldlm.Recall{}, ldlm.Desc{}, err
	}
	r, err := recall(m.Cancel, m.Discard)
	if err != nil {
		return a, r, ldlm.Desc{}, err
	}
	by, err := desc(m.ByMode, m.ByBits, extent.Extent{Start: m.ByStart, End: m.ByEnd}, m.ByGid)
	return a, r, by, err
}

// PutCompletion fills m for an effect that ends a wait: a completion with the lock as Told says it is, for flock as the
// effect says; otherwise k.
func PutCompletion(m *wirepb.CompletionAST, e *ldlm.Effect, a *ldlm.Answer, k status.Kind) {
	m.Own, m.Lock, m.Status = uint64(e.Remote), uint64(e.Handle), uint32(k)
	m.ResSeq, m.ResOid, m.ResHash, m.ResType = e.Res.Seq, e.Res.OID, e.Res.Hash, uint32(e.Res.Type)
	m.Mode, m.Bits, m.Gid = uint32(a.Desc.Mode), uint32(a.Desc.Bits), a.Desc.GID
	m.Start, m.End = a.Desc.Extent.Start, a.Desc.Extent.End
	m.Blocked, m.RecallBits, m.Discard = a.Blocked, 0, a.Recall.Discard
	if a.Blocked {
		m.RecallBits = recallBits(a.Recall.Bits)
	}
}

// Completion returns what m says: the lock, what was granted, and a kind other than status.OK when nothing was.
func Completion(m *wirepb.CompletionAST, a *ldlm.Answer) (AST, status.Kind, error) {
	x := AST{Own: ldlm.Handle(m.Own), Remote: ldlm.Handle(m.Lock)}
	var err error
	if x.Res, err = res(m.ResSeq, m.ResOid, m.ResHash, m.ResType); err != nil {
		return x, 0, err
	}
	d, err := desc(m.Mode, m.Bits, extent.Extent{Start: m.Start, End: m.End}, m.Gid)
	if err != nil {
		return x, 0, err
	}
	r, err := recall(m.RecallBits, m.Discard)
	if err != nil {
		return x, 0, err
	}
	*a = ldlm.Answer{Remote: x.Remote, Desc: d, Blocked: m.Blocked, Recall: r}
	return x, status.Kind(m.Status), nil
}

// PutGlimpse fills m from an effect of kind EffectGlimpse.
func PutGlimpse(m *wirepb.GlimpseAST, e *ldlm.Effect) {
	m.Own, m.Lock, m.ResSeq, m.ResOid = uint64(e.Remote), uint64(e.Handle), e.Res.Seq, e.Res.OID
}

// Glimpse returns the lock that m asks about.
func Glimpse(m *wirepb.GlimpseAST) AST {
	return AST{Own: ldlm.Handle(m.Own), Remote: ldlm.Handle(m.Lock),
		Res: ldlm.ResID{Seq: m.ResSeq, OID: m.ResOid, Type: ldlm.TypeExtent}}
}

// PutLVB fills m from v.
func PutLVB(m *wirepb.LVB, v *ldlm.LVB) {
	m.Size, m.Blocks, m.MtimeNsec, m.AtimeNsec, m.CtimeNsec = v.Size, v.Blocks, v.Mtime, v.Atime, v.Ctime
}

// LVB returns what m holds; of nil a zero.
func LVB(m *wirepb.LVB) ldlm.LVB {
	return ldlm.LVB{Size: m.GetSize(), Blocks: m.GetBlocks(), Mtime: m.GetMtimeNsec(), Atime: m.GetAtimeNsec(),
		Ctime: m.GetCtimeNsec()}
}

// AppendLVB appends v's wire form, an LVB message, to b. It allocates only to grow b.
func AppendLVB(b []byte, v *ldlm.LVB) []byte {
	var m wirepb.LVB
	PutLVB(&m, v)
	n := len(b)
	b = append(b, make([]byte, m.SizeVT())...)
	if _, err := m.MarshalToSizedBufferVT(b[n:]); err != nil {
		panic(err) // it fits: its size was asked for
	}
	return b
}

// ParseLVB reads what AppendLVB wrote. Nothing is a zero.
func ParseLVB(b []byte) (ldlm.LVB, error) {
	var m wirepb.LVB
	if err := m.UnmarshalVT(b); err != nil {
		return ldlm.LVB{}, status.Errorf(status.Protocol, "wire: a lock value block of %d bytes: %v", len(b), err)
	}
	return LVB(&m), nil
}
