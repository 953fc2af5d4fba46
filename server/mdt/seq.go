package mdt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/store"
)

// Sequences of a client, and their use.
const (
	// seqBatch is how many sequences one request gets.
	seqBatch = 1
	// seqsPerExport bounds those that one client may hold unused parts of; the oldest are given up beyond it.
	seqsPerExport = 64
	// useWindow is how far below the highest id in use a lower one may still come: creates of one client run in parallel
	// and overtake each other, by as many as wait for its slots.
	useWindow = 2048
)

// A sequence's record, big-endian; the key is the sequence, 8 bytes:
//
//	 0  1  version (1)
//	 1  1  length of what precedes the use (24)
//	 2  6  0
//	 8 16  uuid of the client that it was given to
//	24  …  use
//
// Key 0 holds the next sequence to hand out: version, 7 zero bytes, sequence.
//
// A use, also the delta of one:
//
//	0  4  highest id in use
//	4  …  bitmap of at most useWindow bits, without zero bytes at its end: bit i%8 of byte i/8 says that id highest - i
//	      is in use
const (
	seqVersion = 1
	seqAtUse   = 24
	useMin     = 4
	useMax     = useMin + useWindow/8
)

// use is which ids of a sequence name inodes, or did: ids are never used twice.
type use struct {
	high uint32
	bits [useWindow / 64]uint64
}

// decode reads what appendTo wrote.
// Precondition: useMin <= len(b) <= useMax.
func (u *use) decode(b []byte) {
	u.high = binary.BigEndian.Uint32(b)
	u.bits = [useWindow / 64]uint64{}
	for i, c := range b[useMin:] {
		u.bits[i/8] |= uint64(c) << (i % 8 * 8)
	}
}

func (u *use) appendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, u.high)
	words := len(u.bits)
	for words > 0 && u.bits[words-1] == 0 {
		words--
	}
	for _, w := range u.bits[:words] {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	for words > 0 && b[len(b)-1] == 0 {
		b = b[:len(b)-1]
	}
	return b
}

// has reports whether id may not be used: it is in use or behind.
func (u *use) has(id uint32) bool {
	if id > u.high {
		return false
	}
	d := u.high - id
	return d >= useWindow || u.bits[d/64]&(1<<(d%64)) != 0
}

// behind reports whether id is so far below the highest one that nobody knows whether it is in use.
func (u *use) behind(id uint32) bool { return id <= u.high && u.high-id >= useWindow }

// add marks id.
func (u *use) add(id uint32) {
	if id > u.high {
		u.shift(id - u.high)
		u.high = id
	}
	if d := u.high - id; d < useWindow {
		u.bits[d/64] |= 1 << (d % 64)
	}
}

// remove takes id's mark back; the highest id stays.
func (u *use) remove(id uint32) {
	if d := u.high - id; id <= u.high && d < useWindow {
		u.bits[d/64] &^= 1 << (d % 64)
	}
}

// shift moves every mark n ids further from the highest one.
func (u *use) shift(n uint32) {
	if n >= useWindow {
		u.bits = [useWindow / 64]uint64{}
		return
	}
	words, bits := int(n/64), n%64
	for i := len(u.bits) - 1; i >= 0; i-- {
		var v uint64
		if i >= words {
			v = u.bits[i-words] << bits
			if i > words && bits > 0 {
				v |= u.bits[i-words-1] >> (64 - bits)
			}
		}
		u.bits[i] = v
	}
}

// join marks all that v marks.
func (u *use) join(v use) {
	if v.high > u.high {
		*u, v = v, *u
	}
	v.shift(u.high - v.high)
	for i := range u.bits {
		u.bits[i] |= v.bits[i]
	}
}

// useMerger merges the uses of a sequence.
type useMerger struct{}

// Combine implements store.Merger.
func (useMerger) Combine(dst, a, b []byte) []byte {
	var u, v use
	u.decode(a)
	v.decode(b)
	u.join(v)
	return u.appendTo(dst)
}

// Apply implements store.Merger. A sequence whose record is gone stays gone.
func (useMerger) Apply(dst, base, delta []byte) []byte {
	if len(base) < seqAtUse+useMin {
		return append(dst, base...)
	}
	var u, v use
	u.decode(base[seqAtUse:])
	v.decode(delta)
	u.join(v)
	return u.appendTo(append(dst, base[:seqAtUse]...))
}

// seqUse is a sequence that a client holds.
type seqUse struct {
	seq fid.Seq
	mu  sync.Mutex
	use use // guarded by mu
}

// seq gives the client a sequence that is on disk.
func (o *op) seq() error {
	if err := o.throttle(false); err != nil {
		return err
	}
	first, n, err := o.newSequences()
	if err != nil {
		return err
	}
	// The sequences are on disk before the answer is even made: no crash can hand them out twice.
	if err := o.h.dev.WaitCommitted(o.h.contextOf(o.c), n); err != nil {
		return fmt.Errorf("mdt: waiting for new sequences to be on disk: %w", err)
	}
	o.xs.mu.Lock()
	for i := range fid.Seq(seqBatch) {
		o.xs.seqs = append(o.xs.seqs, &seqUse{seq: first + i})
	}
	o.xs.mu.Unlock()
	o.rep.seq.First, o.rep.seq.Count = uint64(first), seqBatch
	o.beginTx()
	return o.commit(&o.rep.seq)
}

// newSequences publishes the record of the client's next sequences, and drops its oldest when it holds too many.
func (o *op) newSequences() (fid.Seq, store.Transno, error) {
	h := o.h
	h.seqMu.Lock()
	defer h.seqMu.Unlock()
	first := h.nextSeq
	if first+seqBatch > fid.SeqLast {
		return 0, 0, status.Errorf(status.NoSpace, "mdt: %s has handed out all sequences", h.o.Name)
	}
	o.beginTx()
	next := o.e.Alloc(16)
	clear(next)
	next[0] = seqVersion
	binary.BigEndian.PutUint64(next[8:], uint64(first+seqBatch))
	o.tx.Put(h.tables.Sequence, o.seqKey(0), next)
	for i := range fid.Seq(seqBatch) {
		v := o.e.Alloc(seqAtUse + useMin)
		clear(v)
		v[0], v[1] = seqVersion, seqAtUse
		copy(v[8:], o.x.UUID[:])
		o.tx.Put(h.tables.Sequence, o.seqKey(first+i), v)
	}
	o.xs.mu.Lock()
	if extra := len(o.xs.seqs) + seqBatch - seqsPerExport; extra > 0 {
		for _, s := range o.xs.seqs[:extra] {
			o.tx.Delete(h.tables.Sequence, o.seqKey(s.seq))
		}
		o.xs.seqs = append(o.xs.seqs[:0], o.xs.seqs[extra:]...)
	}
	o.xs.mu.Unlock()
	n, err := h.dev.Publish(o.tx)
	if err == nil {
		h.nextSeq += seqBatch
	}
	return first, n, err
}

func (o *op) seqKey(s fid.Seq) []byte {
	return binary.BigEndian.AppendUint64(o.e.Alloc(8)[:0], uint64(s))
}

// claim takes a FID that the client has chosen for a new inode. unclaim gives it back when the operation fails. One that too
// many younger ones have overtaken is of kind Overtaken: the client takes another.
func (o *op) claim(f fid.FID) (*seqUse, error) {
	s := o.xs.sequence(f.Seq)
	if s == nil {
		return nil, status.Errorf(status.Protocol, "mdt: %v is in no sequence of %s", f, o.x.Peer)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.use.behind(f.OID) && !o.again.on {
		return nil, status.Errorf(status.Overtaken, "mdt: %v of %s lies %d behind its highest", f, o.x.Peer, s.use.high-f.OID)
	}
	if s.use.has(f.OID) && !s.use.behind(f.OID) {
		return nil, status.Errorf(status.Protocol, "mdt: %v of %s was used before", f, o.x.Peer)
	}
	s.use.add(f.OID)
	return s, nil
}

func (s *seqUse) unclaim(f fid.FID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.use.remove(f.OID)
}

func (s *export) sequence(seq fid.Seq) *seqUse {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.seqs) - 1; i >= 0; i-- {
		if s.seqs[i].seq == seq {
			return s.seqs[i]
		}
	}
	return nil
}

// used adds the use of a claimed FID to the transaction.
func (o *op) used(f fid.FID) {
	var u use
	u.add(f.OID)
	o.tx.Delta(o.h.tables.Sequence, o.seqKey(f.Seq), u.appendTo(o.e.Alloc(useMin + 8)[:0]))
}

// loadSequences reads who holds which sequences, and where the next one is.
func (h *Handler) loadSequences(e *env.Env) error {
	h.seqMu.Lock()
	defer h.seqMu.Unlock()
	h.nextSeq = fid.SeqFirst
	var bad error
	err := h.dev.Scan(e, h.tables.Sequence, nil, nil, func(key, v []byte) bool {
		if len(key) != 8 || len(v) < 16 || v[0] != seqVersion {
			bad = fmt.Errorf("%w: sequence of %d and %d bytes", errFormat, len(key), len(v))
			return false
		}
		seq := fid.Seq(binary.BigEndian.Uint64(key))
		if seq == 0 {
			h.nextSeq = max(h.nextSeq, fid.Seq(binary.BigEndian.Uint64(v[8:])))
			return true
		}
		if len(v) < seqAtUse+useMin || len(v) > seqAtUse+useMax {
			bad = fmt.Errorf("%w: sequence %#x of %d bytes", errFormat, uint64(seq), len(v))
			return false
		}
		s := &seqUse{seq: seq}
		s.use.decode(v[seqAtUse:])
		uuid := [16]byte(v[8:24])
		h.restored[uuid] = append(h.restored[uuid], s)
		h.nextSeq = max(h.nextSeq, seq+1)
		return true
	})
	if err != nil {
		return err
	}
	return bad
}

// dropSequences removes the records of sequences whose clients have no export any more.
func (h *Handler) dropSequences() error {
	h.seqMu.Lock()
	left := h.restored
	h.restored = map[[16]byte][]*seqUse{}
	h.seqMu.Unlock()
	for _, seqs := range left {
		if err := h.deleteSequences(seqs); err != nil {
			return err
		}
	}
	return nil
}

// forgetSequences removes the records of a client that is gone.
func (h *Handler) forgetSequences(s *export) {
	s.mu.Lock()
	seqs := s.seqs
	s.seqs = nil
	s.mu.Unlock()
	if err := h.deleteSequences(seqs); err != nil && h.dev.Err() == nil {
		h.log.Error("removing sequences of a client that is gone", "target", h.o.Name, "err", err)
	}
}

func (h *Handler) deleteSequences(seqs []*seqUse) error {
	if len(seqs) == 0 {
		return nil
	}
	tx := h.dev.Begin(env.New())
	for _, s := range seqs {
		tx.Delete(h.tables.Sequence, binary.BigEndian.AppendUint64(nil, uint64(s.seq)))
	}
	_, err := h.dev.Publish(tx)
	return err
}

// restoredSkip is how many sequences a metadata target that was restored from a backup passes over: those that may have
// been handed out since. Of the 2^45 that there are, 2^21 restores can do so.
const restoredSkip = 1 << 24

// SkipSequences puts into tx that no sequence is given out that may have been since the backup that a device was restored from,
// and that nobody holds those of then. Call it before New, with the clients' exports gone.
func SkipSequences(dev store.Device, t Tables, tx *store.Tx) error {
	next := fid.SeqFirst
	var bad error
	err := dev.Scan(env.New(), t.Sequence, nil, nil, func(key, v []byte) bool {
		if len(key) != 8 || len(v) < 16 || v[0] != seqVersion {
			bad = fmt.Errorf("%w: sequence of %d and %d bytes", errFormat, len(key), len(v))
			return false
		}
		if seq := fid.Seq(binary.BigEndian.Uint64(key)); seq == 0 {
			next = max(next, fid.Seq(binary.BigEndian.Uint64(v[8:])))
		} else {
			next = max(next, seq+1)
			tx.Delete(t.Sequence, bytes.Clone(key))
		}
		return true
	})
	if err != nil || bad != nil {
		return errors.Join(err, bad)
	}
	if next+restoredSkip > fid.SeqLast {
		return status.Errorf(status.NoSpace, "mdt: sequences are used up: %#x is the next one", uint64(next))
	}
	v := make([]byte, 16)
	v[0] = seqVersion
	binary.BigEndian.PutUint64(v[8:], uint64(next+restoredSkip))
	tx.Put(t.Sequence, make([]byte, 8), v)
	return nil
}
