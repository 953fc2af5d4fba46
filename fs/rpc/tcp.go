package rpc

import (
	"context"
	"net"
	"time"
)

// tcpKeepAlive notices a host that vanished from a connection on which nobody has anything to say. Imports ping, so this
// is for the server's side.
var tcpKeepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3}

type tcp struct{}

// NewTCP is the Transport over TCP. Addresses are host:port; port 0 listens on a free one. Small frames leave at once
// (TCP_NODELAY), keep-alive notices a vanished host after a minute. Multipath TCP, Go's default for listeners, is off: its
// path through the kernel is longer and the protocol has no use for a second path.
func NewTCP() Transport { return tcp{} }

// Dial implements Transport.
func (tcp) Dial(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{KeepAliveConfig: tcpKeepAlive}
	d.SetMultipathTCP(false)
	return d.DialContext(ctx, "tcp", addr)
}

// Listen implements Transport.
func (tcp) Listen(addr string) (net.Listener, error) {
	lc := net.ListenConfig{KeepAliveConfig: tcpKeepAlive}
	lc.SetMultipathTCP(false)
	return lc.Listen(context.Background(), "tcp", addr)
}
