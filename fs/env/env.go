// Package env holds the execution environment that travels with a request.
//
// An env is one reusable bundle per worker: scratch memory, the layers' own working state and the caller's identity.
// It goes through every server layer, down to the lock value block methods and the store, and through the client's
// request path, so that nothing on a steady path allocates an environment, a buffer or a transaction of its own
// (LU-11164, LU-12034).
//
// Invariant: an Env is used by one goroutine at a time; memory taken from it is valid until the next Reset.
package env

// Layer numbers a place in an Env where one package keeps its reusable working state.
type Layer int

// The layers that keep state in an Env. A package uses its own and no other.
const (
	LayerStore Layer = iota
	LayerTarget
	LayerMDT
	LayerOST
	LayerRPC
	LayerLDLM
	LayerQuota
	LayerClient
	numLayers
)

// arenaSize fits the names, keys and values of one metadata operation: two names of 255 bytes, a symlink target of
// 4 KiB and a 64 KiB xattr seldom come together, and larger requests grow it once.
const arenaSize = 16 << 10

// Env is one execution environment. Make it with New; the zero Env works and allocates its arena at first use.
type Env struct {
	arena []byte
	used  int
	state [numLayers]any
	waits func()
}

// New returns an environment with its scratch memory in place.
func New() *Env { return &Env{arena: make([]byte, arenaSize)} }

// Reset gives back all memory taken with Alloc. Layer state stays.
func (e *Env) Reset() { e.used = 0 }

// OnWait sets what WillWait calls, nil for nothing. It belongs to the worker and outlasts Reset.
func (e *Env) OnWait(f func()) { e.waits = f }

// WillWait says that the operation is about to wait for others, for their locks above all, so that its worker lets go of what
// others need meanwhile.
func (e *Env) WillWait() {
	if e.waits != nil {
		e.waits()
	}
}

// Alloc returns n bytes of scratch memory with undefined content, valid until Reset. It allocates only when the
// arena is too small, and then keeps the larger arena.
func (e *Env) Alloc(n int) []byte {
	if e.used+n > len(e.arena) {
		size := max(2*len(e.arena), n, arenaSize)
		// What was handed out before stays valid: the old arena lives as long as its users hold it.
		e.arena, e.used = make([]byte, size), 0
	}
	b := e.arena[e.used : e.used+n : e.used+n]
	e.used += n
	return b
}

// Copy returns a copy of b in scratch memory.
func (e *Env) Copy(b []byte) []byte {
	c := e.Alloc(len(b))
	copy(c, b)
	return c
}

// State returns what the layer kept, nil at first.
func (e *Env) State(l Layer) any { return e.state[l] }

// SetState keeps v as the layer's state for later requests of this worker.
func (e *Env) SetState(l Layer, v any) { e.state[l] = v }
