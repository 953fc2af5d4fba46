package rpc_test

import (
	"net"
	"testing"

	"golang.org/x/net/nettest"

	"github.com/strakefs/strake/fs/rpc"
)

// The pipe is a net.Conn like any other.
func TestPipeIsAConn(t *testing.T) {
	nettest.TestConn(t, func() (a, b net.Conn, stop func(), err error) {
		p := rpc.NewPipe()
		l, err := p.Listen("x")
		if err != nil {
			return nil, nil, nil, err
		}
		accepted := make(chan net.Conn, 1)
		go func() {
			c, _ := l.Accept()
			accepted <- c
		}()
		if a, err = p.Dial(t.Context(), "x"); err != nil {
			return nil, nil, nil, err
		}
		b = <-accepted
		return a, b, func() { a.Close(); b.Close(); l.Close() }, nil
	})
}
