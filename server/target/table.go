package target

import (
	"encoding/binary"
	"iter"
	"unsafe"

	"github.com/strakefs/strake/fs/stats"
)

// The table of exports is an array of chains, a power of two long, that doubles when entries per bucket pass exportGrow and
// halves below exportShrink: the thresholds of Lustre's hash tables.
const (
	exportGrow, exportShrink = 0.75, 0.30
	exportBuckets            = 8
)

// exportTable finds exports by the uuid of their client. Target.mu guards it.
type exportTable struct {
	buckets []*Export
	n       int

	created, grows, shrinks, hits, misses int64
}

// at is the chain of a uuid. Clients draw theirs at random; one that does not makes its own searches longer.
func (t *exportTable) at(uuid [16]byte) **Export {
	h := (binary.LittleEndian.Uint64(uuid[:]) ^ binary.LittleEndian.Uint64(uuid[8:])) * 0x9e3779b97f4a7c15
	return &t.buckets[(h^h>>32)&uint64(len(t.buckets)-1)]
}

// get returns the export of a uuid, nil without one.
func (t *exportTable) get(uuid [16]byte) *Export {
	if t.n > 0 {
		for x := *t.at(uuid); x != nil; x = x.chain {
			if x.UUID == uuid {
				t.hits++
				return x
			}
		}
	}
	t.misses++
	return nil
}

// add enters an export. Precondition: its uuid is not in the table.
func (t *exportTable) add(x *Export) {
	t.created++
	if float64(t.n+1) > exportGrow*float64(len(t.buckets)) {
		t.resize(max(2*len(t.buckets), exportBuckets))
	}
	b := t.at(x.UUID)
	x.chain, *b = *b, x
	t.n++
}

// remove takes an export out, if it is there.
func (t *exportTable) remove(x *Export) {
	if t.n == 0 {
		return
	}
	at := t.at(x.UUID)
	for *at != x {
		if *at == nil {
			return
		}
		at = &(*at).chain
	}
	*at, x.chain = x.chain, nil
	t.n--
	if len(t.buckets) > exportBuckets && float64(t.n) < exportShrink*float64(len(t.buckets)) {
		t.resize(len(t.buckets) / 2)
	}
}

func (t *exportTable) resize(n int) {
	old := t.buckets
	if n < len(old) {
		t.shrinks++
	} else if len(old) > 0 {
		t.grows++
	}
	t.buckets = make([]*Export, n)
	for _, x := range old {
		for x != nil {
			next := x.chain
			b := t.at(x.UUID)
			x.chain, *b = *b, x
			x = next
		}
	}
}

// all goes over the exports, in no order. The table must not change meanwhile.
func (t *exportTable) all() iter.Seq[*Export] {
	return func(yield func(*Export) bool) {
		for _, x := range t.buckets {
			for ; x != nil; x = x.chain {
				if !yield(x) {
					return
				}
			}
		}
	}
}

// exportsTable gives the registry the figures of the table of exports. What a handler keeps of a client is not counted in bytes.
func (t *Target) exportsTable(to *stats.TableStats) {
	t.mu.Lock()
	e := &t.exports
	to.Name, to.MinBuckets, to.ShrinkTheta, to.GrowTheta = "EXPORT", exportBuckets, exportShrink, exportGrow
	to.Buckets, to.Entries, to.Created, to.Grows, to.Shrinks = int64(len(e.buckets)), int64(e.n), e.created, e.grows, e.shrinks
	to.Hits, to.Misses, to.Longest, to.Empty, to.Busy = e.hits, e.misses, 0, 0, 0
	to.Chains = [stats.ChainClasses]int64{}
	for _, x := range e.buckets {
		length := int64(0)
		for ; x != nil; x = x.chain {
			length++
		}
		if length == 0 {
			to.Empty++
		}
		to.Longest = max(to.Longest, length)
		to.Chains[stats.ChainClass(int(length))]++
	}
	t.mu.Unlock()
	to.LimitEntries, to.Rule = maxExports, "grows with the clients"
	to.Bytes = to.Buckets * int64(unsafe.Sizeof((*Export)(nil)))
	for _, x := range t.Exports() {
		to.Bytes += x.bytes()
		if x.Connected() {
			to.Busy++
		}
	}
}

// bytes is the memory of the export and its slots. The answers that slots keep count with a usual size: reading them would wait for
// what runs.
func (x *Export) bytes() int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := int64(unsafe.Sizeof(*x)) + int64(len(x.Peer)) + int64(cap(x.slots))*int64(unsafe.Sizeof((*slot)(nil)))
	for _, s := range x.slots {
		if s != nil {
			n += int64(unsafe.Sizeof(*s)) + usualAnswer
		}
	}
	return n
}

// usualAnswer is what a slot keeps of an answer: attributes of a folder and an inode.
const usualAnswer = 256
