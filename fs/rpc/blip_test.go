package rpc_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// cutting is a network whose connections can be cut.
type cutting struct {
	rpc.Transport
	mu    sync.Mutex
	conns []net.Conn // guarded by mu
}

func (c *cutting) Dial(ctx context.Context, addr string) (net.Conn, error) {
	nc, err := c.Transport.Dial(ctx, addr)
	if err == nil {
		c.mu.Lock()
		c.conns = append(c.conns, nc)
		c.mu.Unlock()
	}
	return nc, err
}

// cut ends one of the connections that were made last.
func (c *cutting) cut(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.conns) > 0 {
		c.conns[max(0, len(c.conns)-1-n%2)].Close()
	}
}

// Connections break at random moments while the target lives: every request ends well, reads and writes bring the right
// bytes, and nothing that modifies happens twice.
func TestBrokenConnectionsLoseAndRepeatNothing(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		c.start()
		network := &cutting{Transport: c.transport}
		i := c.connect(func(o *rpc.ImportOptions) { o.Transport, o.Bulk = network, true })
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		var mu sync.Mutex
		modified := 0
		for g := range 6 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(seed, uint64(g)))
				buf, want := make([]byte, 1<<20), make([]byte, 1<<20)
				for range 60 {
					n := 1 + rnd.IntN(len(buf))
					var r *rpc.Request
					switch rnd.IntN(3) {
					case 0:
						r = &rpc.Request{Op: wire.OpRead, Body: &wirepb.ReadRequest{Length: uint32(n)}, Into: buf[:n]}
					case 1:
						pattern(buf[:n], 7)
						r = &rpc.Request{Op: wire.OpWrite, Bulk: [][]byte{buf[:n/2], buf[n/2 : n]}}
					case 2:
						r = &rpc.Request{Op: wire.OpSetattr}
					}
					if err := i.Do(ctx, r); err != nil {
						t.Errorf("%v: %v", r.Op, err)
						return
					}
					switch r.Op {
					case wire.OpRead:
						if pattern(want[:n], 0); !bytes.Equal(buf[:n], want[:n]) {
							t.Error("read other bytes")
						}
					case wire.OpSetattr:
						mu.Lock()
						modified++
						mu.Unlock()
					}
				}
			})
		}
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		rnd := rand.New(rand.NewPCG(seed, 99))
		for cuts := 0; ; cuts++ {
			select {
			case <-done:
				c.target.disk.mu.Lock()
				defer c.target.disk.mu.Unlock()
				for xid, n := range c.target.disk.executed {
					if n != 1 {
						t.Errorf("xid %d was executed %d times", xid, n)
					}
				}
				if len(c.target.disk.executed) != modified {
					t.Errorf("%d executed, %d answered", len(c.target.disk.executed), modified)
				}
				return
			case <-time.After(time.Duration(1+rnd.IntN(20)) * time.Millisecond):
				if cuts < 25 {
					network.cut(cuts)
				}
			}
		}
	})
}
