package stats

import (
	"fmt"
	"slices"
	"strings"
)

// Node is a place in the tree that a pattern of lctl can mean: an entry, or a folder of entries, or both.
type Node struct {
	Path string
	// Folder says that there are paths below.
	Folder bool
	// Writable says that Set can succeed.
	Writable bool

	r *Registry
	e *Entry
}

// List returns the nodes that a pattern of Walk's form matches, folders among them, by path; recursive adds all that is
// below them. The error wraps [ErrPattern].
func (r *Registry) List(pattern string, recursive bool) ([]Node, error) {
	p, err := compile(pattern)
	if err != nil {
		return nil, err
	}
	at := map[string]int{}
	var nodes []Node
	for _, e := range r.snapshot() {
		inside := false
		for end := 0; end < len(e.slashed); {
			if i := strings.IndexByte(e.slashed[end+1:], '/'); i >= 0 {
				end += 1 + i
			} else {
				end = len(e.slashed)
			}
			inside = inside && recursive || p.match(e.slashed[:end])
			if !inside {
				continue
			}
			head := e.Path[:end]
			i, known := at[head]
			if !known {
				i = len(nodes)
				at[head] = i
				nodes = append(nodes, Node{Path: head, r: r})
			}
			if end < len(e.Path) {
				nodes[i].Folder = true
			} else {
				nodes[i].e, nodes[i].Writable = e, e.Writable()
			}
		}
	}
	slices.SortFunc(nodes, func(a, b Node) int { return strings.Compare(a.Path, b.Path) })
	return nodes, nil
}

// Shows reports whether Text has something to print, without making it.
func (n *Node) Shows() bool {
	return n.e != nil || strings.HasSuffix(n.Path, "stats") && n.r.hasFigures(n.Path)
}

// Text returns what `lctl get_param` prints for the node, and false for a folder, which has nothing to print. A folder of
// figures whose name ends in "stats" is a stats file in Lustre's form: a row for each histogram and counter that has
// counted something, times in microseconds, and a line for each other figure.
func (n *Node) Text() (string, bool) {
	switch {
	case n.e != nil:
		return n.e.Text(), true
	case !n.Shows():
		return "", false
	}
	var rows []Row
	var lines []string
	for _, e := range n.r.below(n.Path) {
		name := e.Path[len(n.Path)+1:]
		if strings.IndexByte(name, '.') >= 0 {
			continue
		}
		if s, ok := e.Histogram(); ok {
			if s.Count > 0 {
				rows = append(rows, Row{Name: name, Unit: Microseconds, Count: int64(s.Count),
					Min: s.MinNs / 1000, Max: s.MaxNs / 1000, Sum: s.SumNs / 1000, SumSq: s.SumSqUs})
			}
			continue
		}
		switch v, ok := e.Value(); {
		case !ok:
		case e.Kind == KindCounter && v > 0:
			rows = append(rows, Row{Name: name, Unit: Requests, Count: v})
		case e.Kind != KindCounter:
			lines = append(lines, fmt.Sprintf("%-25s %d", name, v))
		}
	}
	return rowsText(n.r.began, rows, lines), true
}

// hasFigures reports whether something is right below path that a stats file could show.
func (r *Registry) hasFigures(path string) bool {
	return slices.ContainsFunc(r.below(path), func(e *Entry) bool {
		return e.Metric != "" && strings.LastIndexByte(e.Path, '.') == len(path)
	})
}

// below returns the entries below a path, by path.
func (r *Registry) below(path string) []*Entry {
	all := r.snapshot()
	prefix := path + "."
	start, _ := slices.BinarySearchFunc(all, prefix, func(e *Entry, prefix string) int { return strings.Compare(e.Path, prefix) })
	end := start
	for end < len(all) && strings.HasPrefix(all[end].Path, prefix) {
		end++
	}
	return all[start:end]
}

// Set changes the node's parameter as [Entry.Set] does. A folder that is shown as a stats file is read-only.
func (n *Node) Set(value string) error {
	if n.e == nil {
		return ErrReadOnly
	}
	return n.e.Set(value)
}
