package rpc

import (
	"context"
	"net"
)

// Transport makes the connections of imports and servers.
type Transport interface {
	// Dial connects to addr. It waits until the connection stands, ctx ends or the network gives up.
	Dial(ctx context.Context, addr string) (net.Conn, error)
	// Listen takes addr. Its error says why not: in use, not ours, no permission.
	Listen(addr string) (net.Listener, error)
}

// NewTCP is the Transport over TCP with host:port addresses; small frames leave at once.
func NewTCP() Transport { panic("rpc: not yet") }

// Pipe is an in-process network: a Transport whose addresses are any names.
type Pipe struct{}

// NewPipe makes an empty network.
func NewPipe() *Pipe { panic("rpc: not yet") }

// Dial connects to the listener of that name, ECONNREFUSED if there is none.
func (p *Pipe) Dial(ctx context.Context, addr string) (net.Conn, error) { panic("rpc: not yet") }

// Listen takes a name, EADDRINUSE if it is taken.
func (p *Pipe) Listen(addr string) (net.Listener, error) { panic("rpc: not yet") }
