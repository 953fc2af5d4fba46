package server

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
)

// openPorts takes the node's place in the process's network, and its TCP port if it has one.
func (n *Node) openPorts() error {
	l, err := n.net.Listen(n.pipeAddress())
	if err != nil {
		return err
	}
	n.listen = append(n.listen, l)
	addr := n.o.Config.Listen
	if addr == "" {
		return nil
	}
	l, err = n.net.Listen(addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("listen on %s: the port is in use: stop what uses it, or choose another with --listen", addr)
	case err != nil:
		return fmt.Errorf("listen on %s: %w: check --listen", addr, err)
	}
	n.listen = append(n.listen, l)
	n.log.Info("listening", "address", l.Addr().String())
	return nil
}

// addresses are where this node's targets are reached: inside the process first.
func (n *Node) addresses() [][]byte {
	out := [][]byte{[]byte(n.pipeAddress())}
	for _, l := range n.listen[1:] {
		host, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			continue
		}
		if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
			for _, h := range n.hosts() {
				out = append(out, []byte(net.JoinHostPort(h, port)))
			}
			continue
		}
		out = append(out, []byte(net.JoinHostPort(host, port)))
	}
	return out
}

// hosts are the addresses of this machine that others can use: the one that faces the MGS first, then every other global
// one; loopback only if there is nothing else.
func (n *Node) hosts() []string {
	var out []string
	add := func(ip net.IP) {
		s := ip.String()
		for _, have := range out {
			if have == s {
				return
			}
		}
		out = append(out, s)
	}
	for _, m := range n.o.Config.MGS {
		// A UDP socket finds the route and sends nothing.
		c, err := net.Dial("udp", m)
		if err != nil {
			continue
		}
		if a, ok := c.LocalAddr().(*net.UDPAddr); ok {
			add(a.IP)
		}
		_ = c.Close()
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		n.log.Warn("this machine's addresses are not known", "err", err)
	}
	for _, a := range all {
		if p, ok := a.(*net.IPNet); ok && p.IP.IsGlobalUnicast() {
			add(p.IP)
		}
	}
	if len(out) == 0 {
		out = append(out, "127.0.0.1")
	}
	return out[:min(len(out), 8)]
}

// place is where a target is, for people: its TCP address, or "in-process".
func place(addresses [][]byte) string {
	for _, b := range addresses {
		if a := string(b); !strings.HasPrefix(a, "pipe:") {
			return a
		}
	}
	return "in-process"
}
