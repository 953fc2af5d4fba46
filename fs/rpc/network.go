package rpc

import (
	"context"
	"net"
	"strings"
)

// PipePrefix starts the addresses that are inside one process.
const PipePrefix = "pipe:"

// Network is what a process with several roles uses: addresses with PipePrefix are its own pipe's, all others TCP's.
type Network struct {
	pipe *Pipe
	tcp  Transport
}

// NewNetwork makes a process's network.
func NewNetwork() *Network { return &Network{pipe: NewPipe(), tcp: NewTCP()} }

func (n *Network) of(addr string) Transport {
	if strings.HasPrefix(addr, PipePrefix) {
		return n.pipe
	}
	return n.tcp
}

// Dial connects to an address of either kind.
func (n *Network) Dial(ctx context.Context, addr string) (net.Conn, error) {
	return n.of(addr).Dial(ctx, addr)
}

// Listen listens at an address of either kind.
func (n *Network) Listen(addr string) (net.Listener, error) { return n.of(addr).Listen(addr) }

// Reaches reports whether a transport can reach an address at all: a pipe's only where its listener lives.
func Reaches(t Transport, addr string) bool {
	if !strings.HasPrefix(addr, PipePrefix) {
		return true
	}
	n, ok := t.(*Network)
	if !ok {
		return false
	}
	n.pipe.mu.Lock()
	defer n.pipe.mu.Unlock()
	return n.pipe.listeners[addr] != nil
}
