package ldlm

import (
	"slices"
	"sync"
)

// waitGraph is who waits for whom among the owners of Posix locks of a namespace. A node is an owner; an edge leads from
// an owner to one that holds what a request of it waits for. An owner with threads can wait in several requests at
// once; as on Linux, it counts as stuck if any of them is.
//
// Invariant: there is no circle: an edge that would close one is refused.
type waitGraph struct {
	mu    sync.Mutex
	nodes map[FlockOwner]*waitNode // guarded by mu
	epoch uint64                   // guarded by mu
	stack []*waitNode              // guarded by mu; scratch
}

type waitNode struct {
	owner FlockOwner
	out   []waitEdge
	in    int // edges that lead here
	seen  uint64
}

// waitEdge belongs to the waiting request by.
type waitEdge struct {
	by Handle
	to *waitNode
}

// set makes blockers what the request by of owner waits for, in place of what it was. It returns false, and takes the
// request out, when owner would then wait for itself.
func (g *waitGraph) set(by Handle, owner FlockOwner, blockers []FlockOwner) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.node(owner)
	g.cut(n, by)
	if g.reaches(blockers, n) {
		g.tidy(n)
		return false
	}
	for _, o := range blockers {
		to := g.node(o)
		to.in++
		n.out = append(n.out, waitEdge{by: by, to: to})
	}
	g.tidy(n)
	return true
}

// clear takes a request out.
func (g *waitGraph) clear(by Handle, owner FlockOwner) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.nodes[owner]; n != nil {
		g.cut(n, by)
		g.tidy(n)
	}
}

func (g *waitGraph) node(o FlockOwner) *waitNode {
	n := g.nodes[o]
	if n == nil {
		if g.nodes == nil {
			g.nodes = make(map[FlockOwner]*waitNode)
		}
		n = &waitNode{owner: o}
		g.nodes[o] = n
	}
	return n
}

// tidy forgets a node without edges.
func (g *waitGraph) tidy(n *waitNode) {
	if n.in == 0 && len(n.out) == 0 {
		delete(g.nodes, n.owner)
	}
}

// cut takes the edges of a request off its node.
func (g *waitGraph) cut(n *waitNode, by Handle) {
	n.out = slices.DeleteFunc(n.out, func(e waitEdge) bool {
		if e.by != by {
			return false
		}
		e.to.in--
		if e.to != n {
			g.tidy(e.to)
		}
		return true
	})
}

// reaches reports whether one of the owners is target or waits, over any number of others, for it.
func (g *waitGraph) reaches(from []FlockOwner, target *waitNode) bool {
	g.epoch++
	g.stack = g.stack[:0]
	for _, o := range from {
		if n := g.nodes[o]; n != nil {
			g.stack = append(g.stack, n)
		}
	}
	for len(g.stack) > 0 {
		n := g.stack[len(g.stack)-1]
		g.stack = g.stack[:len(g.stack)-1]
		if n == target {
			return true
		}
		if n.seen == g.epoch {
			continue
		}
		n.seen = g.epoch
		for _, e := range n.out {
			g.stack = append(g.stack, e.to)
		}
	}
	return false
}
