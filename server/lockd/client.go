package lockd

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
)

// Peer is a client's control connection; *rpc.Conn is one.
type Peer interface {
	// Callback calls the client and waits for its answer; status.NotConnected when the connection is gone.
	Callback(ctx context.Context, r *rpc.Request) error
	// LastHeard is when the last frame of the client came.
	LastHeard() time.Time
}

// Client is an export as the namespace knows it. Its zero value is not usable: Join makes one.
type Client struct {
	s    *Server
	id   ldlm.ClientID
	name string

	// gate is held shared by an enqueue that runs outside of Serve, and whole by Gone.
	gate     sync.RWMutex
	gone     atomic.Bool // set with gate held whole
	recalled atomic.Bool // a lock of it was called back since this was last looked at
	evicting atomic.Bool

	// convertMu is held across CONVERT, so that a lock does not change under it.
	convertMu sync.Mutex

	mu      sync.Mutex
	peer    Peer                          // nil without a connection; guarded by mu
	alone   time.Time                     // since when peer is nil; guarded by mu
	waits   map[ldlm.Handle]*waiter       // by the client's handle; guarded by mu
	held    int                           // of waits; guarded by mu
	prolong map[ldlm.Handle]time.Duration // until when at most, of locks that were prolonged; guarded by mu

	queue queue // of the sender
}

// Join makes a client, with a number that was never used before. name says who it is, for people. It has no connection
// yet.
func (s *Server) Join(name string) *Client {
	cl := &Client{s: s, id: ldlm.ClientID(s.nextID.Add(1)), name: name, alone: time.Now(),
		waits: map[ldlm.Handle]*waiter{}, prolong: map[ldlm.Handle]time.Duration{}}
	s.mu.Lock()
	s.clients[cl.id] = cl
	s.mu.Unlock()
	return cl
}

// ID is the client's number in the engine.
func (cl *Client) ID() ldlm.ClientID { return cl.id }

// Name says who the client is.
func (cl *Client) Name() string { return cl.name }

// Connected gives the client a control connection, its first or another one. What is to be sent to it goes there from now
// on. Calls held on an earlier connection are dropped: the client asks again. Call it before requests of the new one are
// served.
func (cl *Client) Connected(p Peer) {
	cl.mu.Lock()
	cl.peer, cl.alone = p, time.Time{}
	cl.mu.Unlock()
	cl.dropHeld(func(c *rpc.Call) bool { return !sameConn(c, p) })
	cl.s.send.wake(cl)
}

// sameConn reports whether the call came on the connection p.
func sameConn(c *rpc.Call, p Peer) bool {
	conn, ok := p.(*rpc.Conn)
	return ok && c.Conn == conn
}

// Disconnected tells that a connection has ended, the control connection or another one. Calls held on it are dropped,
// their waits end; what the client was told to wait for, and its granted locks, stay until it comes back or is gone.
func (cl *Client) Disconnected(p Peer) {
	cl.mu.Lock()
	if cl.peer == p {
		cl.peer, cl.alone = nil, time.Now()
	}
	cl.mu.Unlock()
	cl.dropHeld(func(c *rpc.Call) bool { return sameConn(c, p) })
}

// dropHeld ends the held calls that which picks.
func (cl *Client) dropHeld(which func(*rpc.Call) bool) {
	var drop []*waiter
	cl.mu.Lock()
	for _, w := range cl.waits {
		if w.heldOn(which) {
			drop = append(drop, w)
		}
	}
	cl.mu.Unlock()
	if len(drop) > 0 {
		k := cl.s.takeWork()
		for _, w := range drop {
			cl.s.withdraw(k, w, status.NotConnected)
		}
		cl.s.giveWork(k)
	}
	for _, c := range cl.s.send.takeFinishes(cl, which) {
		c.Finish(status.NotConnected) // granted or answered: the client asks again and is told
	}
}

// Gone takes the client out of the namespace: its locks, waits and application locks go, and those who wait for them get
// them. Nothing of the client may run, nor come later. It does not wait for anybody.
func (cl *Client) Gone() {
	s := cl.s
	cl.gate.Lock()
	if cl.gone.Swap(true) {
		cl.gate.Unlock()
		return
	}
	cl.gate.Unlock()
	s.mu.Lock()
	delete(s.clients, cl.id)
	s.mu.Unlock()
	cl.mu.Lock()
	cl.peer = nil
	cl.mu.Unlock()
	cl.dropHeld(func(*rpc.Call) bool { return true })
	s.park.drop(func(p *parked) bool { return p.cl == cl })
	k := s.takeWork()
	defer s.giveWork(k)
	s.send.drop(cl)
	s.ns.Evict(s.now(), cl.id, &k.fx)
	s.run(k)
}

// connection returns the control connection, nil when there is none.
func (cl *Client) connection() Peer {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return cl.peer
}

// lost notes that p turned out to be dead before Disconnected told so.
func (cl *Client) lost(p Peer) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.peer == p {
		cl.peer, cl.alone = nil, time.Now()
	}
}

// silence is how long nothing has been heard of the client, and whether it has no connection.
func (cl *Client) silence() (d time.Duration, alone bool) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.peer == nil {
		return time.Since(cl.alone), true
	}
	return time.Since(cl.peer.LastHeard()), false
}

// evict hands the client to the owner. It does not wait.
func (s *Server) evict(cl *Client, why string) {
	if cl.gone.Load() || cl.evicting.Swap(true) {
		return
	}
	s.goroutine(func() {
		s.count.evictions.Inc()
		s.log.Warn("client evicted", "client", cl.name, "why", why)
		if s.o.Evict != nil {
			s.o.Evict(cl, why)
		} else {
			cl.Gone()
		}
		cl.evicting.Store(false)
	})
}
