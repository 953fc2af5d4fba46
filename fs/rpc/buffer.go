package rpc

import "sync"

// bufferClasses are the sizes of bulk buffers. The largest is wire.BulkMax; between two of them lies a factor of four, so
// that a transfer wastes at most three quarters of its buffer and a pool mixes few lists.
var bufferClasses = [...]int{16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20}

// buffers keeps bulk buffers for reuse. What lies idle is bounded by maxIdleBytes; more goes to the garbage collector.
type buffers struct {
	maxIdleBytes int

	mu        sync.Mutex
	idle      [len(bufferClasses)][][]byte // guarded by mu
	idleBytes int                          // guarded by mu
}

func newBuffers(maxIdleBytes int) *buffers { return &buffers{maxIdleBytes: maxIdleBytes} }

// classOf is the smallest class that holds n bytes.
func classOf(n int) int {
	for c, size := range bufferClasses {
		if n <= size {
			return c
		}
	}
	panic("rpc: a bulk buffer over the largest class")
}

// get returns a buffer of n bytes with undefined content.
func (p *buffers) get(n int) []byte {
	c := classOf(n)
	p.mu.Lock()
	if last := len(p.idle[c]) - 1; last >= 0 {
		b := p.idle[c][last]
		p.idle[c] = p.idle[c][:last]
		p.idleBytes -= bufferClasses[c]
		p.mu.Unlock()
		return b[:n]
	}
	p.mu.Unlock()
	return make([]byte, n, bufferClasses[c])
}

// put takes back a buffer that get gave.
func (p *buffers) put(b []byte) {
	c := classOf(cap(b))
	p.mu.Lock()
	if p.idleBytes+bufferClasses[c] <= p.maxIdleBytes {
		p.idle[c] = append(p.idle[c], b)
		p.idleBytes += bufferClasses[c]
	}
	p.mu.Unlock()
}
