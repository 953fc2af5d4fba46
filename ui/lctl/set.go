package lctl

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/ui/param"
)

func newSet(h *host) *cobra.Command {
	var quiet, permanent, remove bool
	c := &cobra.Command{
		Use:   "set_param [-n] PATTERN=VALUE ...\n  lctl set_param -P [-d] PATTERN[=VALUE] ...",
		Short: "set parameters, here until the process ends or with -P for good",
		Long: `set_param sets every parameter that matches, in every process of this host, until it is set again or the process ends.

With -P the MGS keeps the value: every process of the file system, on all nodes, sets it when it hears of it (at once,
when it runs) and whenever it starts. It is run on the node of the MGS. -P -d removes a permanent value, spelled as it was
set; what runs keeps the value it has until it is started again. mgs.MGS.live.params lists them.`,
		Example: "  lctl set_param 'osc.*.max_dirty_mb=64' mdt.*.commit_on_sharing=1\n  lctl set_param -P 'osc.*.max_dirty_mb=64'\n  lctl set_param -P -d 'osc.*.max_dirty_mb'",
		RunE: run(h, func(s *session, args []string) error {
			settings, err := settingsOf(args, remove, permanent)
			if err != nil {
				return err
			}
			if permanent {
				return s.setPermanent(settings, remove)
			}
			for _, one := range settings {
				s.set(one, quiet)
			}
			return nil
		}),
	}
	flags := c.Flags()
	flags.BoolVarP(&quiet, "no-name", "n", false, "print nothing but errors")
	flags.BoolVarP(&permanent, "perm", "P", false, "permanently, by the MGS, for all nodes of the file system")
	flags.BoolVarP(&remove, "delete", "d", false, "with -P: remove the permanent value")
	return c
}

// setting is one argument.
type setting struct{ pattern, value string }

func settingsOf(args []string, remove, permanent bool) ([]setting, error) {
	if len(args) == 0 {
		return nil, usagef("no parameter given; see lctl set_param --help")
	}
	if remove && !permanent {
		return nil, usagef("-d removes permanent values: use it with -P")
	}
	var out []setting
	for _, a := range args {
		pattern, value, given := strings.Cut(a, "=")
		switch {
		case pattern == "":
			return nil, usagef("'%s' has no name; write NAME=VALUE", a)
		case remove && given && value != "":
			return nil, usagef("'%s': -d takes names alone", a)
		case !remove && !given:
			return nil, usagef("'%s' has no value; write %s=VALUE, without blanks", a, a)
		case permanent && !remove && value == "":
			return nil, usagef("'%s': a permanent value cannot be empty; -P -d removes one", a)
		}
		out = append(out, setting{pattern, value})
	}
	return out, nil
}

// set sets what matches in every process and prints each name once. Where one process took a value that another one
// refused, both is said.
func (s *session) set(one setting, quiet bool) {
	failed := s.code
	nodes := s.ask(func(p *param.Process) ([]param.Node, error) { return p.Set(one.pattern, one.value) })
	if len(nodes) == 0 && s.code == failed {
		s.missing(one.pattern)
	}
	slices.SortStableFunc(nodes, func(a, b param.Node) int { return strings.Compare(a.Name, b.Name) })
	said := map[string]bool{}
	for i := range nodes {
		line := nodes[i].Name + "=" + one.value
		if nodes[i].Err != nil {
			line = refusal(&nodes[i], one.value)
		}
		switch {
		case said[line]:
			continue
		case nodes[i].Err != nil:
			s.fail(codeOf(nodes[i].Err), "%s", line)
		case !quiet:
			s.printf("%s\n", printable(line))
		}
		said[line] = true
	}
}

// refusal is why a value was not taken, as Lustre says it with our reason behind.
func refusal(n *param.Node, value string) string {
	word := "Invalid argument"
	if status.Of(n.Err) == status.Access {
		word = "Permission denied"
	}
	return fmt.Sprintf("setting %s=%s: %s: %v", n.Name, value, word, n.Err)
}

// setPermanent hands settings to the MGS of this host.
func (s *session) setPermanent(settings []setting, remove bool) error {
	mgs, err := s.mgs()
	if err != nil {
		return err
	}
	for _, one := range settings {
		if err := mgs.SetPermanent(one.pattern, one.value); err != nil {
			s.fail(codeOf(err), "param_path '%s': %v", one.pattern, err)
			continue
		}
		if remove {
			continue
		}
		nodes := s.ask(func(p *param.Process) ([]param.Node, error) { return p.List(one.pattern, false) })
		if !slices.ContainsFunc(nodes, func(n param.Node) bool { return n.Writable }) {
			s.say("note: '%s' is kept, but no process of this host has such a parameter that can be set", one.pattern)
		}
	}
	return nil
}

// mgs is the process that hosts the MGS.
func (s *session) mgs() (*param.Process, error) {
	var found *param.Process
	for _, p := range s.procs {
		switch {
		case !p.MGS:
		case found != nil && found.FSName != p.FSName:
			return nil, usagef("this host has the MGS of %s and that of %s: choose one with --fsname", found.FSName, p.FSName)
		case found != nil:
			return nil, usagef("this host has two MGSs of %s: choose one with --sock", p.FSName)
		default:
			found = p
		}
	}
	if found == nil {
		return nil, status.Errorf(status.NoDevice, "no process of this host hosts the MGS: set permanent parameters on the MGS's node")
	}
	return found, nil
}
