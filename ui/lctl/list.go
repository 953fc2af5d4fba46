package lctl

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/strakefs/strake/ui/param"
)

func newList(h *host) *cobra.Command {
	var classify, recursive, folders, noLinks bool
	c := &cobra.Command{
		Use:     "list_param [-D] [-F] [-L] [-R] PATTERN ...",
		Short:   "print the names of parameters and folders",
		Example: "  lctl list_param '*'\n  lctl list_param -F 'osc.*.*'\n  lctl list_param -R mdt",
		RunE: run(h, func(s *session, args []string) error {
			if len(args) == 0 {
				return usagef("no pattern given; see lctl list_param --help")
			}
			for _, pattern := range args {
				s.list(pattern, recursive, folders, classify)
			}
			return nil
		}),
	}
	flags := c.Flags()
	flags.BoolVarP(&classify, "classify", "F", false, "put '=' behind names that can be set and '/' behind folders")
	flags.BoolVarP(&recursive, "recursive", "R", false, "what is below the names that match, too")
	flags.BoolVarP(&folders, "directory-only", "D", false, "folders only")
	flags.BoolVarP(&noLinks, "no-links", "L", false, "accepted; there are no links here")
	return c
}

func (s *session) list(pattern string, recursive, folders, classify bool) {
	failed := s.code
	nodes := merged(s.ask(func(p *param.Process) ([]param.Node, error) { return p.List(pattern, recursive) }))
	if folders {
		nodes = slices.DeleteFunc(nodes, func(n param.Node) bool { return !n.Folder })
	}
	if len(nodes) == 0 && s.code == failed {
		s.missing(pattern)
	}
	for i := range nodes {
		s.printf("%s%s\n", nodes[i].Name, mark(&nodes[i], classify))
	}
}

// merged makes one node of all of a name.
func merged(nodes []param.Node) []param.Node {
	nodes = union(nodes)
	out := nodes[:0]
	for _, n := range nodes {
		if last := len(out) - 1; last >= 0 && out[last].Name == n.Name {
			out[last].Folder = out[last].Folder || n.Folder
			out[last].Writable = out[last].Writable || n.Writable
			continue
		}
		out = append(out, n)
	}
	return out
}
