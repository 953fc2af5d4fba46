// Package rpctest is a client for tests of servers, which sends the frames that it is told to and no others: unlike an rpc.Import it
// connects once, resends nothing, keeps no slots and takes every answer as it comes. So a test decides what a client replays,
// in which order, and where its connection ends.
//
// Invariant: each frame sent gets exactly one Answer, with an error when the connection ends first.
package rpctest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// Peer is one connection. Its methods may be called from several goroutines; what each sends goes out whole.
type Peer struct {
	nc    net.Conn
	reply wirepb.ConnectReply
	ended chan struct{} // the reading goroutine has returned

	sendMu sync.Mutex
	mu     sync.Mutex
	xid    wire.XID                   // guarded by mu
	waits  map[wire.XID]chan<- Answer // guarded by mu
	err    error                      // why it ended; guarded by mu
}

// Answer is the reply to one frame. Err is of the status in it, or status.NotConnected.
type Answer struct {
	Header     wire.Header
	Body, Bulk []byte
	Err        error
}

// Decode reads the body into m, which is in its reset state.
func (a *Answer) Decode(m rpc.Message) error {
	if a.Err != nil {
		return a.Err
	}
	return m.UnmarshalVT(a.Body)
}

// Dial connects to a target as r says. Close it.
func Dial(ctx context.Context, t rpc.Transport, address string, r *wirepb.ConnectRequest) (*Peer, error) {
	nc, err := t.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	p := &Peer{nc: nc, ended: make(chan struct{}), waits: map[wire.XID]chan<- Answer{}}
	r.Version = wire.Version
	go p.read()
	a := <-p.Send(wire.Header{Op: wire.OpConnect}, r)
	if err := a.Decode(&p.reply); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Connected is the answer to CONNECT.
func (p *Peer) Connected() *wirepb.ConnectReply { return &p.reply }

// Close ends the connection and waits for its goroutine.
func (p *Peer) Close() {
	_ = p.nc.Close()
	<-p.ended
}

// Send sends a frame: h's op, slot, flags and xid, which is the next of this connection if it is 0. The channel gets the answer.
func (p *Peer) Send(h wire.Header, body rpc.Message, bulk ...[]byte) <-chan Answer {
	got := make(chan Answer, 1)
	var encoded []byte
	if body != nil {
		encoded = make([]byte, body.SizeVT())
		if _, err := body.MarshalToSizedBufferVT(encoded); err != nil {
			got <- Answer{Err: err}
			return got
		}
	}
	all := bytes.Join(bulk, nil)
	p.sendMu.Lock()
	defer p.sendMu.Unlock()
	p.mu.Lock()
	if h.XID == 0 {
		p.xid++
		h.XID = p.xid
	}
	p.xid = max(p.xid, h.XID)
	if p.err != nil {
		p.mu.Unlock()
		got <- Answer{Err: p.err}
		return got
	}
	p.waits[h.XID] = got
	p.mu.Unlock()
	h.Generation = p.reply.Generation
	if h.BulkLen = uint32(len(all)); len(all) > 0 {
		h.Flags |= wire.FlagBulkSum
		h.BulkSum = wire.Sum(all)
	}
	p.write(&h, encoded, all)
	return got
}

// Do sends a frame and waits for its answer.
func (p *Peer) Do(h wire.Header, body, reply rpc.Message) (Answer, error) {
	a := <-p.Send(h, body)
	if a.Err == nil && reply != nil {
		a.Err = reply.UnmarshalVT(a.Body)
	}
	return a, a.Err
}

// write sends one frame. A failure ends the connection, which the reading goroutine tells.
// Precondition: sendMu is held.
func (p *Peer) write(h *wire.Header, body, bulk []byte) {
	b := make([]byte, wire.HeaderSize, wire.HeaderSize+len(body)+len(bulk))
	h.BodyLen = uint32(len(body))
	h.Put(b, body)
	if _, err := p.nc.Write(append(append(b, body...), bulk...)); err != nil {
		_ = p.nc.Close()
	}
}

// read takes answers until the connection ends. Callbacks are answered with success.
func (p *Peer) read() {
	defer close(p.ended)
	err := p.readAll()
	_ = p.nc.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = fmt.Errorf("%w: %w", status.NotConnected, err)
	for _, got := range p.waits {
		got <- Answer{Err: p.err}
	}
	clear(p.waits)
}

func (p *Peer) readAll() error {
	head := make([]byte, wire.HeaderSize)
	for {
		if _, err := io.ReadFull(p.nc, head); err != nil {
			return err
		}
		var a Answer
		if err := a.Header.Parse(head); err != nil {
			return err
		}
		a.Body, a.Bulk = make([]byte, a.Header.BodyLen), make([]byte, a.Header.BulkLen)
		if _, err := io.ReadFull(p.nc, a.Body); err != nil {
			return err
		}
		if _, err := io.ReadFull(p.nc, a.Bulk); err != nil {
			return err
		}
		if a.Header.Flags&wire.FlagReply == 0 {
			p.sendMu.Lock()
			p.write(&wire.Header{Op: a.Header.Op, XID: a.Header.XID, Flags: wire.FlagReply | wire.FlagCallback}, nil, nil)
			p.sendMu.Unlock()
			continue
		}
		a.Err = errorOf(&a)
		p.mu.Lock()
		got := p.waits[a.Header.XID]
		delete(p.waits, a.Header.XID)
		p.mu.Unlock()
		if got != nil {
			got <- a
		}
	}
}

func errorOf(a *Answer) error {
	if a.Header.Status == status.OK {
		return nil
	}
	var m wirepb.ErrorReply
	if m.UnmarshalVT(a.Body) != nil || len(m.Text) == 0 {
		return a.Header.Status
	}
	return fmt.Errorf("%w: %s", a.Header.Status, m.Text)
}
