package osc

// The OST knows the blocks of new data only when it has flushed them, so between two of its answers this client guesses:
// what lies behind all that was there before takes new space, in units of allocUnit.

const (
	sectorBytes = 512
	// allocUnit is the host file systems' usual block.
	allocUnit = 4 << 10
)

// space is what is known of an object's blocks. It is a step function.
type space struct {
	// blocks of 512 bytes, as last told, and a guess of what was written since.
	blocks uint64
	// sent is behind the last byte that blocks counts.
	sent uint64
	// vague says that data went where a hole may have been, so that the guess may be high.
	vague bool
}

func alignUp(n uint64) uint64 { return (n + allocUnit - 1) &^ (allocUnit - 1) }

// grown is how many blocks data in [start, end) adds behind sent.
func grown(sent, start, end uint64) uint64 {
	from := max(start&^(allocUnit-1), alignUp(sent))
	if to := alignUp(end); to > from {
		return (to - from) / sectorBytes
	}
	return 0
}

// sparse reports whether what is known has holes, so that a write before sent may need new space.
func (s *space) sparse() bool { return s.blocks*sectorBytes < s.sent }

// wrote notes an answered write of [start, end); the OST told blocks, which may be old. Where a hole may have been, the
// write is counted whole: a guess that is too high does no harm, one that calls data a hole loses it in an archive.
func (s *space) wrote(start, end, blocks uint64) {
	n := s.blocks + grown(s.sent, start, end)
	if start < s.sent && s.sparse() {
		s.vague = true
		n = min(s.blocks+grown(0, start, end), alignUp(max(s.sent, end))/sectorBytes)
	}
	s.blocks = max(n, blocks)
	s.sent = max(s.sent, end)
}

// told notes what the OST knows for certain of an object of size bytes.
func (s *space) told(blocks, size uint64) { *s = space{blocks: blocks, sent: size} }

// cut notes that the object ends at size at most.
func (s *space) cut(size uint64) { s.sent = min(s.sent, size) }

// guessCut gives the blocks of an object cut at size, of which the OST's figure may be old.
func guessCut(blocks, told, size uint64) uint64 {
	return min(max(blocks, told), alignUp(size)/sectorBytes)
}

// guess gives the blocks with dirty bytes that reach up to end.
func (s *space) guess(dirty, end uint64) uint64 {
	n := alignUp(dirty) / sectorBytes
	if s.sparse() {
		return max(s.blocks, min(s.blocks+n, alignUp(max(s.sent, end))/sectorBytes))
	}
	return s.blocks + min(grown(s.sent, s.sent, end), n)
}

// Blocks estimates the object's blocks of 512 bytes: what the OST last told, what was written since and what is dirty.
func (o *Object) Blocks() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	end, _ := o.dirtyLocked()
	return o.space.guess(uint64(o.dirty), max(end, o.space.sent))
}

// Vague reports whether Blocks may be wrong with nothing dirty, so that a Glimpse is worth its request.
func (o *Object) Vague() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.space.vague
}

// SetSpace tells the object's size and blocks as they are known without asking the OST.
// Precondition: nothing is dirty.
func (o *Object) SetSpace(size, blocks uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.space.told(blocks, size)
}
