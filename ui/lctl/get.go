package lctl

import (
	"cmp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"

	"github.com/strakefs/strake/ui/param"
)

// getFlags are the flags of get_param.
type getFlags struct {
	noName, onlyName, classify, recursive, header, yaml bool
}

func newGet(h *host) *cobra.Command {
	f := &getFlags{}
	c := &cobra.Command{
		Use:     "get_param [-F] [-H] [-n|-N] [-R] [-y] PATTERN ...",
		Short:   "print the values of parameters",
		Example: "  lctl get_param osc.*.max_dirty_mb\n  lctl get_param -n 'mdt.*.stats'\n  lctl get_param -N 'ldlm.namespaces.*.lock_count'",
		RunE: run(h, func(s *session, args []string) error {
			if len(args) == 0 {
				return usagef("no pattern given; see lctl get_param --help")
			}
			return s.get(args, f)
		}),
	}
	flags := c.Flags()
	flags.BoolVarP(&f.noName, "no-name", "n", false, "values only")
	flags.BoolVarP(&f.onlyName, "only-name", "N", false, "names only")
	flags.BoolVarP(&f.classify, "classify", "F", false, "put '=' behind names that can be set and '/' behind folders")
	flags.BoolVarP(&f.recursive, "recursive", "R", false, "what is below the names that match, too")
	flags.BoolVarP(&f.header, "header", "H", false, "the name in front of each line of a value")
	flags.BoolVarP(&f.yaml, "yaml", "y", false, "a YAML mapping of names to values, texts of several lines as blocks")
	c.MarkFlagsMutuallyExclusive("no-name", "only-name", "yaml")
	return c
}

func (s *session) get(patterns []string, f *getFlags) error {
	var all []param.Node
	for _, pattern := range patterns {
		failed := s.code
		nodes := union(s.ask(func(p *param.Process) ([]param.Node, error) {
			if f.onlyName {
				return p.List(pattern, f.recursive)
			}
			return p.Get(pattern, f.recursive)
		}))
		if len(nodes) == 0 && s.code == failed {
			s.missing(pattern)
		}
		if f.yaml {
			all = append(all, nodes...)
			continue
		}
		for i := range nodes {
			s.print(&nodes[i], f)
		}
	}
	if f.yaml && len(all) > 0 {
		return s.printYAML(union(all))
	}
	return nil
}

// union sorts nodes by name and value and drops those that are there twice. A name that is a folder in one process and a
// value in another keeps both.
func union(nodes []param.Node) []param.Node {
	slices.SortFunc(nodes, func(a, b param.Node) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), compareValues(a.Text, b.Text), boolCompare(a.Folder, b.Folder), boolCompare(a.Writable, b.Writable))
	})
	return slices.CompactFunc(nodes, func(a, b param.Node) bool {
		return a.Name == b.Name && a.Text == b.Text && a.HasText == b.HasText && (a.HasText || a.Folder == b.Folder && a.Writable == b.Writable)
	})
}

// compareValues orders values, numbers without a sign by size.
func compareValues(a, b string) int {
	if digits(a) && digits(b) {
		a, b := strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	}
	return cmp.Compare(a, b)
}

func digits(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r < '0' || r > '9' })
}

func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// print prints one node in Lustre's form.
func (s *session) print(n *param.Node, f *getFlags) {
	name, text := n.Name+mark(n, f.classify), printable(n.Text)
	switch {
	case f.onlyName:
		s.printf("%s\n", name)
	case !n.HasText:
	case f.noName:
		s.printf("%s\n", text)
	case f.header:
		for line := range strings.SplitSeq(text, "\n") {
			s.printf("%s=%s\n", name, line)
		}
	case strings.Contains(text, "\n"):
		s.printf("%s=\n%s\n", name, text)
	default:
		s.printf("%s=%s\n", name, text)
	}
}

// printYAML prints names and values as one mapping. A name with several values has a sequence of them.
func (s *session) printYAML(nodes []param.Node) error {
	doc := &yaml.Node{Kind: yaml.MappingNode}
	for i := 0; i < len(nodes); {
		var values []*yaml.Node
		name := nodes[i].Name
		for ; i < len(nodes) && nodes[i].Name == name; i++ {
			if nodes[i].HasText {
				values = append(values, scalar(nodes[i].Text))
			}
		}
		if len(values) == 0 {
			continue
		}
		value := values[0]
		if len(values) > 1 {
			value = &yaml.Node{Kind: yaml.SequenceNode, Content: values}
		}
		doc.Content = append(doc.Content, scalar(name), value)
	}
	if len(doc.Content) == 0 {
		return nil
	}
	e := yaml.NewEncoder(s.out)
	e.SetIndent(2)
	if err := e.Encode(doc); err != nil {
		return err
	}
	return e.Close()
}

// scalar is a value as a YAML reader should get it: numbers as numbers, all else as text.
func scalar(text string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: printable(text)}
	switch {
	case digits(text) && (text == "0" || text[0] != '0'):
		n.Tag = "!!int"
	case strings.Contains(text, "\n"):
		n.Style = yaml.LiteralStyle
	}
	return n
}
