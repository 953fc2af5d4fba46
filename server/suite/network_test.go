package suite

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"testing"
)

// network is a bridge of the host with namespaces behind it, one for each server. Clients are the host's.
type network struct {
	name  string // of the bridge; namespaces are name-0, name-1, …
	net   string // the first three numbers of the addresses
	count int
}

// newNetwork makes namespaces with the addresses .1, .2, … of a network that nobody else has; the host has .254.
func newNetwork(count int) (n *network, err error) {
	if _, err := exec.LookPath("nsenter"); err != nil {
		return nil, fmt.Errorf("network namespaces: %w", err)
	}
	for range 20 {
		a, b := 200+rand.IntN(50), rand.IntN(256)
		n = &network{name: fmt.Sprintf("strk%d%03d", a, b), net: fmt.Sprintf("10.%d.%d", a, b), count: count}
		if err = n.make(); err == nil {
			return n, nil
		}
		n.remove()
	}
	return nil, err
}

func (n *network) make() error {
	if err := ip("link", "add", n.name, "type", "bridge"); err != nil {
		return err
	}
	err := errors.Join(ip("addr", "add", n.net+".254/24", "dev", n.name), ip("link", "set", n.name, "up"))
	for i := range n.count {
		space := n.space(i)
		err = errors.Join(err, ip("netns", "add", space),
			ip("link", "add", n.port(i), "type", "veth", "peer", "name", "eth0", "netns", space),
			ip("link", "set", n.port(i), "master", n.name, "up"),
			ip("-n", space, "addr", "add", fmt.Sprintf("%s.%d/24", n.net, i+1), "dev", "eth0"),
			ip("-n", space, "link", "set", "eth0", "up"), ip("-n", space, "link", "set", "lo", "up"))
	}
	return err
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %v: %w: %s", args, err, out)
	}
	return nil
}

func (n *network) space(i int) string { return fmt.Sprintf("%s-%d", n.name, i) }
func (n *network) port(i int) string  { return fmt.Sprintf("%sp%d", n.name, i) }

// hosts are the addresses of three servers.
func (n *network) hosts() (list [3]string) {
	for i := range list {
		list[i] = fmt.Sprintf("%s.%d", n.net, i+1)
	}
	return list
}

// enter is the command that runs the words behind it in the i-th namespace, in the same process.
func (n *network) enter(i int) []string {
	return []string{"nsenter", "--net=/run/netns/" + n.space(i), "--"}
}

// connect plugs the i-th namespace in, or pulls its plug: what is on its way then is lost, and nobody is told.
func (n *network) connect(i int, on bool) error {
	state := "down"
	if on {
		state = "up"
	}
	return ip("link", "set", n.port(i), state)
}

func (n *network) remove() {
	for i := range n.count {
		_ = ip("link", "del", n.port(i))
		_ = ip("netns", "del", n.space(i))
	}
	_ = ip("link", "del", n.name)
}

// cutOff pulls a server's plug and returns what plugs it in again.
func (c *cluster) cutOff(t testing.TB, name string) (connect func() error) {
	t.Helper()
	for i, n := range c.nodes {
		if n.name == name {
			must(t, c.net.connect(i, false))
			return func() error { return c.net.connect(i, true) }
		}
	}
	t.Fatalf("no node %s", name)
	return nil
}
