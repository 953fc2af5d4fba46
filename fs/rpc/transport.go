package rpc

import (
	"context"
	"net"
)

// Transport makes the connections of imports and servers. Two implementations pass one suite: TCP and Pipe.
type Transport interface {
	// Dial connects to addr. It waits until the connection stands, ctx ends or the network gives up.
	Dial(ctx context.Context, addr string) (net.Conn, error)
	// Listen takes addr. Its error says why not: in use, not ours, no permission.
	Listen(addr string) (net.Listener, error)
}
