package lctl

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/ui/param"
)

// Classes of devices that a verb can be about.
const (
	servers = "{mdt,obdfilter}"
	imports = "{mdc,osc,osp,mgc}"
)

// newRecoveryStatus makes the verb that shows how a restarted target gets its clients back.
func newRecoveryStatus(h *host) *cobra.Command {
	return &cobra.Command{
		Use: "recovery_status [TARGET ...]", Short: "where targets are in getting their clients back after a restart",
		Long: `recovery_status shows of each target of this host, or of those named, where it is in recovery: which clients are back, which are
missing, what is queued and how much time is left. get_param '*.*.recovery_status' is the same.`,
		Example: "  lctl recovery_status\n  lctl recovery_status strake-MDT0000",
		RunE: run(h, func(s *session, args []string) error {
			if len(args) == 0 {
				args = []string{"*"}
			}
			return s.get(patterns(servers, args, "recovery_status"), &getFlags{})
		}),
	}
}

// patterns names a parameter of each target.
func patterns(class string, targets []string, name string) []string {
	out := make([]string, 0, len(targets))
	for _, t := range targets {
		out = append(out, class+"."+t+"."+name)
	}
	return out
}

// newAbortRecovery makes the verb that ends a recovery.
func newAbortRecovery(h *host) *cobra.Command {
	return &cobra.Command{
		Use: "abort_recovery TARGET ...", Short: "end a target's recovery now; clients that are not back are evicted",
		Example: "  lctl abort_recovery strake-MDT0000",
		RunE: run(h, func(s *session, args []string) error {
			if len(args) == 0 {
				return usagef("no target given; see lctl recovery_status")
			}
			for _, t := range args {
				s.steer(servers+"."+t+".abort_recovery", "1", t)
			}
			return nil
		}),
	}
}

// newEvictClient makes the verb that throws a client out.
func newEvictClient(h *host) *cobra.Command {
	return &cobra.Command{
		Use: "evict_client TARGET CLIENT", Short: "throw a client out of a target: its locks and open files there are gone",
		Long: `evict_client ends a client's export at a target of this host, or at all of them with TARGET '*'. CLIENT is its uuid, or its address with
or without the port, as get_param '*.*.exports' shows them. The client notices, drops what it has cached there and connects anew; what it
had written and not sent is lost, and its applications are told.`,
		Example: "  lctl evict_client strake-MDT0000 1f0c7a54e1b24c1d9d0a8d6a3f0a7b11\n  lctl evict_client '*' 10.0.0.17",
		RunE: run(h, func(s *session, args []string) error {
			if len(args) != 2 || args[1] == "" {
				return usagef("a target and a client are needed; see lctl evict_client --help")
			}
			s.steerOne(servers+"."+args[0]+".evict_client", clientName(args[1]), args[0])
			return nil
		}),
	}
}

// clientName is a client as the parameter evict_client takes it: a uuid, or an address behind "nid:".
func clientName(text string) string {
	digits := strings.ReplaceAll(text, "-", "")
	if strings.HasPrefix(text, "nid:") || strings.HasPrefix(text, "uuid:") || len(digits) == 32 && strings.Trim(strings.ToLower(digits), "0123456789abcdef") == "" {
		return text
	}
	return "nid:" + text
}

// newRecover makes the verb that connects an import anew.
func newRecover(h *host) *cobra.Command {
	return &cobra.Command{
		Use: "recover DEVICE ...", Short: "connect to a target anew, at once",
		Long: `recover drops the connections of this host's clients and servers to a target, where there are some, and connects anew without waiting
for the next try. DEVICE is a target's name, for all connections of this host to it, or a device's name or number as
device_list shows them.`,
		Example: "  lctl recover strake-OST0001\n  lctl recover strake-OST0001-osc-MDT0000",
		RunE: run(h, func(s *session, args []string) error {
			return s.eachDevice(args, func(pattern, name string) { s.steer(pattern+".recover", "1", name) })
		}),
	}
}

// newActivate makes activate and deactivate.
func newActivate(h *host, on bool) *cobra.Command {
	verb, value, short := "deactivate", "0", "stop using a target here: no new files there, and I/O fails at once instead of waiting"
	if on {
		verb, value, short = "activate", "1", "use a target again that was deactivated"
	}
	var permanent bool
	c := &cobra.Command{
		Use: verb + " [-P] DEVICE ...", Short: short,
		Long: `deactivate switches off the connections of this host's processes to a target. Where the MDT runs (osp), new files take no objects on
that OST any more; what is there stays, and is destroyed when its file is. Where a client runs (osc, mdc), requests to the
target fail at once with EIO instead of waiting for it, also those that wait now. activate is the opposite.

DEVICE is a target's name, for all connections of this host to it, or a device's name or number as device_list shows them. With -P, on
the node of the MGS, it is for all nodes and for good: set_param -P of the parameter active.`,
		Example: "  lctl " + verb + " strake-OST0001                # everything of this host\n  lctl " + verb + " strake-OST0001-osc-MDT0000    # the MDT alone: no new files\n  lctl " + verb + " -P strake-OST0001             # on all nodes",
		RunE: run(h, func(s *session, args []string) error {
			if permanent {
				return s.switchForGood(args, value)
			}
			return s.eachDevice(args, func(pattern, name string) { s.steer(pattern+".active", value, name) })
		}),
	}
	c.Flags().BoolVarP(&permanent, "perm", "P", false, "for good, on all nodes of the file system")
	return c
}

// switchForGood lets the MGS keep the switch of each target.
func (s *session) switchForGood(args []string, value string) error {
	if len(args) == 0 {
		return usagef("no device given; see lctl device_list")
	}
	var settings []setting
	for _, a := range args {
		for _, pattern := range importPatterns(a) {
			settings = append(settings, setting{pattern + ".active", value})
		}
	}
	return s.setPermanent(settings, false)
}

// importPatterns are the names of the imports that a target's or a device's name means.
func importPatterns(name string) []string {
	switch {
	case name == "MGS":
		return []string{"mgc.MGS"}
	case strings.Contains(name, "-osc-"), strings.HasSuffix(name, "-osc"), strings.HasSuffix(name, "-mdc"):
		return []string{"{mdc,osc,osp}." + name}
	case strings.Contains(name, "-MDT"):
		return []string{"mdc." + name + "-mdc"}
	}
	return []string{"{osc,osp}." + name + "-osc*"}
}

// eachDevice runs fn for the imports that each argument means: fn gets their pattern and the argument.
func (s *session) eachDevice(args []string, fn func(pattern, name string)) error {
	if len(args) == 0 {
		return usagef("no device given; see lctl device_list")
	}
	var all []device
	for _, a := range args {
		n, err := strconv.Atoi(a)
		if err != nil {
			for _, pattern := range importPatterns(a) {
				fn(pattern, a)
			}
			continue
		}
		if all == nil {
			if all, err = s.listDevices(); err != nil {
				return err
			}
		}
		switch {
		case n < 0 || n >= len(all):
			s.fail(int(status.NoDevice), "there is no device %d", n)
		case !all[n].imported():
			s.fail(int(status.Invalid), "device %d is %s, no connection to a target", n, all[n].name)
		default:
			fn(classes[all[n].class]+"."+all[n].name, a)
		}
	}
	return nil
}

// steer sets what matches in every process, and says which devices took it.
func (s *session) steer(pattern, value, name string) {
	nodes := s.setEach(pattern, value, name)
	for _, n := range nodes {
		if n.Err != nil {
			s.fail(codeOf(n.Err), "%s: %v", deviceOf(n.Name), n.Err)
		}
	}
}

// steerOne is steer where it is enough that one of the targets takes it: the others do not know what it is about.
func (s *session) steerOne(pattern, value, name string) {
	nodes := s.setEach(pattern, value, name)
	taken := false
	for i := range nodes {
		if nodes[i].Err == nil {
			s.printf("%s: evicted\n", printable(deviceOf(nodes[i].Name)))
			taken = true
		}
	}
	if !taken && len(nodes) > 0 {
		s.fail(codeOf(nodes[0].Err), "%s: %v", deviceOf(nodes[0].Name), nodes[0].Err)
	}
}

// setEach sets what matches in every process and returns the nodes by name. That nothing matches is said.
func (s *session) setEach(pattern, value, name string) []param.Node {
	failed := s.code
	nodes := s.ask(func(p *param.Process) ([]param.Node, error) { return p.Set(pattern, value) })
	if len(nodes) == 0 && s.code == failed {
		s.fail(int(status.NoDevice), "no process of this host has such a device: %s", name)
	}
	slices.SortStableFunc(nodes, func(a, b param.Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes
}

// deviceOf is the device in a parameter's name.
func deviceOf(name string) string {
	parts := strings.Split(name, ".")
	return parts[min(1, len(parts)-1)]
}
