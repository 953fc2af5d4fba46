package suite

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/strakefs/strake/server/forgetfs"
)

// tortureFault is one kind of fault: what happens to which servers.
type tortureFault struct {
	how    string   // kill, stop, pause, cut or power
	nodes  []string // one of each of these
	choice int      // how many of the nodes, in random order
}

// tortureFaults are the kinds by name. STRAKE_TORTURE names those to run, all by default.
func tortureFaults() map[string]tortureFault {
	oss, mds := []string{"oss0", "oss1"}, []string{"mds"}
	all := []string{"mds", "oss0", "oss1"}
	return map[string]tortureFault{
		"stop-oss": {"stop", oss, 1}, "stop-mds": {"stop", mds, 1}, // in order
		"kill-oss": {"kill", oss, 1}, "kill-mds": {"kill", mds, 1}, "kill-osses": {"kill", oss, 2},
		"kill-both": {"kill", all, 2}, "kill-all": {"kill", all, 3},
		"pause-oss": {"pause", oss, 1}, "pause-mds": {"pause", mds, 1},
		"cut-oss": {"cut", oss, 1}, "cut-mds": {"cut", mds, 1},
		"power-oss": {"power", oss, 1}, "power-mds": {"power", mds, 1}, "power-osses": {"power", oss, 2},
		"power-both": {"power", all, 2}, "power-all": {"power", all, 3},
	}
}

// disksOf are the disks that a node's data folders lie on.
func (c *cluster) disksOf(node string) (list []*forgetfs.Disk) {
	for name, d := range c.disks {
		if strings.HasPrefix(name, node+"-") {
			list = append(list, d)
		}
	}
	return list
}

// killServers kills servers at once. One without its disk may have left by itself.
func (c *cluster) killServers(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		_ = c.node(t, name).cmd.Process.Kill()
	}
	for _, name := range names {
		n := c.node(t, name)
		<-n.done
		n.cmd = nil
	}
}

// powerCut takes the power of servers away, all at once, and leaves them down: of what was not flushed a random part is
// kept, or nothing. It tells what it did.
func (c *cluster) powerCut(t testing.TB, rnd *rand.Rand, names ...string) (what string) {
	t.Helper()
	c.killServers(t, names...) // first: a server without its disk could still answer
	grain := []int{0, 8, 512, 4096}[rnd.IntN(4)]
	for _, name := range names {
		for _, d := range c.disksOf(name) {
			if grain == 0 {
				must(t, d.Forget())
			} else {
				must(t, d.Tear(rnd.Int64(), grain))
			}
		}
	}
	if grain == 0 {
		return "what was not flushed is lost"
	}
	return fmt.Sprintf("what was not flushed is torn in pieces of %d bytes", grain)
}

// startServers starts servers that are down, all at once, and waits until they listen.
func (c *cluster) startServers(names ...string) error {
	var errs []error
	for _, name := range names {
		for _, n := range c.nodes {
			if n.name == name {
				errs = append(errs, n.start())
			}
		}
	}
	for _, name := range names {
		for _, n := range c.nodes {
			if n.name == name && name != "mds" && errors.Join(errs...) == nil {
				errs = append(errs, n.waitTargets())
			} else if n.name == name && errors.Join(errs...) == nil {
				errs = append(errs, n.waitListen(c.mgs))
			}
		}
	}
	return errors.Join(errs...)
}

// inflict makes one fault happen and ends it. It tells what it did, and how long the fault lasted.
func (c *cluster) inflict(t testing.TB, f tortureFault, rnd *rand.Rand) (what string) {
	t.Helper()
	names := slices.Clone(f.nodes)
	rnd.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	names = names[:f.choice]
	pause := time.Duration(rnd.IntN(1500)) * time.Millisecond
	what = fmt.Sprintf("%s %s", f.how, strings.Join(names, ", "))
	switch f.how {
	case "stop":
		for _, name := range names {
			must(t, c.node(t, name).stop(syscall.SIGTERM, time.Minute))
		}
		<-time.After(pause)
		must(t, c.startServers(names...))
	case "kill":
		c.killServers(t, names...)
		<-time.After(pause)
		must(t, c.startServers(names...))
	case "power":
		what += ": " + c.powerCut(t, rnd, names...)
		<-time.After(pause)
		must(t, c.startServers(names...))
	case "pause":
		pause *= 4
		for _, name := range names {
			c.node(t, name).signal(t, syscall.SIGSTOP)
		}
		<-time.After(pause)
		for _, name := range names {
			c.node(t, name).signal(t, syscall.SIGCONT)
		}
	case "cut":
		pause *= 6
		var connects []func() error
		for _, name := range names {
			connects = append(connects, c.cutOff(t, name))
		}
		<-time.After(pause)
		for _, connect := range connects {
			must(t, connect())
		}
	}
	return fmt.Sprintf("%s, for %v", what, pause.Round(time.Millisecond))
}
