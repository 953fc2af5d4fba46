package lockd

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// Defaults of Options.
const (
	// MaxParallelASTDefault is Lustre's.
	MaxParallelASTDefault = 1024
	// HeldMaxDefault leaves an import of eight requests in flight half of them.
	HeldMaxDefault = 4
	// ReconnectGraceDefault is DESIGN's.
	ReconnectGraceDefault = 5 * time.Second
	// tickDefault is how often deadlines are looked at.
	tickDefault = 250 * time.Millisecond
	// poolPeriod is how often the pool and the memory guard are.
	poolPeriod = time.Second
	// prolongCap bounds what prolonging a lock can add, in lock timeouts: 200 s with the default.
	prolongCap = 10
)

// Options of a namespace.
type Options struct {
	// Name is the namespace's, "mdt-strake-MDT0000" or the like: ldlm.namespaces.<name>.
	Name string
	// Seed is random, see ldlm.Config.
	Seed uint64
	// Shared is what the namespaces of a process have in common; nil makes one of this namespace's own.
	Shared *Shared
	// Objects reads what lock value blocks begin with; nil where there are none.
	Objects Objects
	// Intent does requests that came with an enqueue, under the lock granted; nil refuses them.
	Intent Intent
	// Evict is called, in a goroutine of its own, when a client has to go: the owner ends the export and calls
	// Client.Gone. nil calls Gone at once. It may wait; for one client it is not called twice at the same time.
	Evict func(c *Client, why string)
	// Busy reports whether a request of the client works under a lock of the resource now; such a client is spared for
	// another timeout, up to ten in all. nil: never.
	Busy func(c *Client, id ldlm.ResID) bool
	// Limits are the engine's; zero fields are its defaults.
	Limits ldlm.Limits
	// MaxParallelAST bounds the goroutines that send, HeldMax the waiting calls kept of one client.
	MaxParallelAST, HeldMax int
	// ReconnectGrace is how long a wanted client may be without a connection.
	ReconnectGrace time.Duration
	// Tick is how often deadlines are looked at.
	Tick time.Duration
	// Log and Stats may be nil.
	Log   *slog.Logger
	Stats *stats.Registry
}

func (o *Options) setDefaults() {
	if o.Shared == nil {
		o.Shared = NewShared(0)
	}
	if o.MaxParallelAST <= 0 {
		o.MaxParallelAST = MaxParallelASTDefault
	}
	if o.HeldMax <= 0 {
		o.HeldMax = HeldMaxDefault
	}
	if o.ReconnectGrace <= 0 {
		o.ReconnectGrace = ReconnectGraceDefault
	}
	if o.Tick <= 0 {
		o.Tick = tickDefault
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

// Intent does a request that came with an enqueue.
type Intent interface {
	// Serve does op, which changes nothing, with its body, and sets reply's intent_status and intent_reply. It runs under
	// the lock granted, in any goroutine, with that one's env. It must not ask for locks.
	Serve(e *env.Env, c *Client, op wire.Op, body []byte, reply *wirepb.EnqueueReply)
}

// Server is one target's namespace at work. Its methods are safe for concurrent use.
type Server struct {
	o      Options
	ns     *ldlm.Namespace
	shared *Shared
	log    *slog.Logger
	start  time.Time
	ctx    context.Context // the server's life, for what waits
	cancel context.CancelFunc
	done   sync.WaitGroup
	send   sender
	pool   poolState
	park   parking
	memory lockMemory
	count  counters
	nextID atomic.Uint64

	mu      sync.RWMutex
	clients map[ldlm.ClientID]*Client // guarded by mu
	closed  bool                      // guarded by mu
}

// counters are what the engine does not count.
type counters struct {
	evictions, noAnswer, unknown, detached, parked, prolonged stats.Counter
	// asts is how long clients took to answer ASTs, waits how long requests of clients waited for their lock.
	asts, waits *stats.Histogram
}

// New makes an empty namespace and starts its clock. Close it.
func New(o Options) *Server {
	o.setDefaults()
	s := &Server{o: o, shared: o.Shared, log: o.Log.With("namespace", o.Name), start: time.Now(), clients: map[ldlm.ClientID]*Client{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	cfg := ldlm.Config{Seed: o.Seed, Limits: o.Limits}
	if o.Objects != nil {
		cfg.LVB = lvbMethods{o.Objects}
	}
	s.ns = ldlm.New(cfg)
	s.send.init(s, o.MaxParallelAST)
	s.pool.init(s.shared.PoolLimit())
	s.shared.add(s)
	s.register()
	s.done.Go(s.tick)
	return s
}

// Stop ends all waits of the server's own operations, and those that come, with status.Stopping, and stops sending: so that
// nothing of the target waits for a client any more. Close follows when nothing of the target runs.
func (s *Server) Stop() { s.cancel() }

// Close ends all waits of the server's own operations with status.Stopping, stops sending and waits for its goroutines, Evict
// calls included. Held calls are left to the rpc server. Nothing may be called afterwards.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.done.Wait()
	s.shared.remove(s)
	if s.o.Stats != nil {
		s.o.Stats.Unregister(s.path())
	}
}

// Namespace is the engine, for what needs nothing sent: figures, dumps, LVBs.
func (s *Server) Namespace() *ldlm.Namespace { return s.ns }

// now is the engine's time.
func (s *Server) now() time.Duration { return time.Since(s.start) }

// goroutine runs f in a goroutine that Close waits for; false when the server is closed.
func (s *Server) goroutine(f func()) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return false
	}
	s.done.Go(f)
	return true
}

func (s *Server) client(id ldlm.ClientID) *Client {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.clients[id]
}

// work is what a worker keeps for this package in its Env.
type work struct {
	e       *env.Env
	fx      ldlm.Effects
	req     ldlm.Request
	flock   ldlm.FlockRequest
	enqueue wirepb.EnqueueRequest
	reply   wirepb.EnqueueReply
	cancel  wirepb.CancelRequest
	cancelR wirepb.CancelReply
	convert wirepb.ConvertRequest
	convR   wirepb.ConvertReply
	prolong wirepb.ProlongRequest
	prolR   wirepb.ProlongReply
	flockM  wirepb.FlockRequest
	flockR  wirepb.FlockReply
	handles []ldlm.Handle
	spare   *waiter // of the next request that might wait
	ticket  *ticket // leads to it
}

// workOf returns the worker's own, with no effects in it.
func workOf(e *env.Env) *work {
	k, _ := e.State(env.LayerLDLM).(*work)
	if k == nil {
		k = &work{e: e}
		e.SetState(env.LayerLDLM, k)
	}
	return k
}

// Serve runs one lock request of a client: ENQUEUE, CONVERT, CANCEL, PROLONG or FLOCK. An enqueue that waits returns
// rpc.ErrHeld. It never waits for a client. After Gone it must not be called for that client.
func (s *Server) Serve(e *env.Env, cl *Client, c *rpc.Call) error {
	k := workOf(e)
	switch c.Header.Op {
	case wire.OpEnqueue:
		return s.enqueue(k, cl, c)
	case wire.OpCancel:
		return s.cancels(k, cl, c)
	case wire.OpConvert:
		return s.converts(k, cl, c)
	case wire.OpProlong:
		return s.prolongs(k, cl, c)
	case wire.OpFlock:
		return s.flockRequest(k, cl, c)
	}
	return status.Errorf(status.NotSupport, "lockd: %s does not know %v", s.o.Name, c.Header.Op)
}

// run carries out the effects of a step and empties the list.
func (s *Server) run(k *work) {
	for i := range k.fx.List {
		f := &k.fx.List[i]
		switch f.Kind {
		case ldlm.EffectCompletion, ldlm.EffectDeny, ldlm.EffectDeadlock:
			switch w := f.Data.(type) {
			case *ticket:
				w.end(f)
			case *localWait:
				w.end(f)
			}
		case ldlm.EffectBlocking:
			if f.Client == ldlm.Local {
				if w, ok := f.Data.(*localWait); ok && w.onBlocking != nil {
					w.onBlocking(f.Handle)
				}
			} else if cl := s.client(f.Client); cl != nil {
				cl.recalled.Store(true)
				s.send.post(cl, job{kind: jobBlocking, effect: *f})
			}
		case ldlm.EffectEvict:
			s.expired(f)
		default:
			panic(fmt.Sprintf("lockd: effect %v outside of its place", f.Kind))
		}
	}
	k.fx.Reset()
}
