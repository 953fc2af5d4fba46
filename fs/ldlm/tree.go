package ldlm

import "github.com/strakefs/strake/fs/extent"

// tree is an interval tree of locks by granted extent: an AVL tree in the order of (Start, End, seq), each node knowing
// the largest End below it. The nodes are the locks themselves, so nothing is allocated.
//
// Precondition of every change: a lock's ext does not change while it is in a tree.
type tree struct{ root *lock }

func before(a, b *lock) bool {
	switch {
	case a.ext.Start != b.ext.Start:
		return a.ext.Start < b.ext.Start
	case a.ext.End != b.ext.End:
		return a.ext.End < b.ext.End
	}
	return a.seq < b.seq
}

func (t *tree) insert(l *lock) {
	l.left, l.right = nil, nil
	t.root = insertAt(t.root, l)
}

func (t *tree) remove(l *lock) {
	t.root = removeAt(t.root, l)
	l.left, l.right = nil, nil
}

func insertAt(n, l *lock) *lock {
	if n == nil {
		fix(l)
		return l
	}
	if before(l, n) {
		n.left = insertAt(n.left, l)
	} else {
		n.right = insertAt(n.right, l)
	}
	return balance(n)
}

func removeAt(n, l *lock) *lock {
	switch {
	case n == nil:
		panic("ldlm: lock " + l.handle.String() + " is not in its interval tree")
	case n == l:
		if n.left == nil {
			return n.right
		}
		if n.right == nil {
			return n.left
		}
		next, rest := takeFirst(n.right)
		next.left, next.right = n.left, rest
		return balance(next)
	case before(l, n):
		n.left = removeAt(n.left, l)
	default:
		n.right = removeAt(n.right, l)
	}
	return balance(n)
}

// takeFirst cuts the first node off a subtree.
func takeFirst(n *lock) (first, rest *lock) {
	if n.left == nil {
		return n, n.right
	}
	first, n.left = takeFirst(n.left)
	return first, balance(n)
}

func height(n *lock) int8 {
	if n == nil {
		return 0
	}
	return n.height
}

// fix recomputes what a node knows about its subtree.
func fix(n *lock) {
	n.height = 1 + max(height(n.left), height(n.right))
	n.max = n.ext.End
	if n.left != nil {
		n.max = max(n.max, n.left.max)
	}
	if n.right != nil {
		n.max = max(n.max, n.right.max)
	}
}

func balance(n *lock) *lock {
	switch d := height(n.left) - height(n.right); {
	case d > 1:
		if height(n.left.left) < height(n.left.right) {
			n.left = rotateLeft(n.left)
		}
		return rotateRight(n)
	case d < -1:
		if height(n.right.right) < height(n.right.left) {
			n.right = rotateRight(n.right)
		}
		return rotateLeft(n)
	}
	fix(n)
	return n
}

func rotateLeft(n *lock) *lock {
	r := n.right
	n.right, r.left = r.left, n
	fix(n)
	fix(r)
	return r
}

func rotateRight(n *lock) *lock {
	l := n.left
	n.left, l.right = l.right, n
	fix(n)
	fix(l)
	return l
}

// anyOverlap returns a lock that overlaps e, nil when none does.
func (t *tree) anyOverlap(e extent.Extent) *lock {
	for n := t.root; n != nil; {
		switch {
		case n.ext.Overlaps(e):
			return n
		case n.left != nil && n.left.max > e.Start:
			// If nothing on the left overlaps, every lock on the right starts even further behind e.
			n = n.left
		default:
			n = n.right
		}
	}
	return nil
}

// overlapping calls fn for each lock that overlaps e, in order, until fn returns false. fn does not change the tree.
func (t *tree) overlapping(e extent.Extent, fn func(*lock) bool) { walkOverlap(t.root, e, fn) }

func walkOverlap(n *lock, e extent.Extent, fn func(*lock) bool) bool {
	if n == nil || n.max <= e.Start {
		return true
	}
	if !walkOverlap(n.left, e, fn) {
		return false
	}
	if n.ext.Start >= e.End {
		return true
	}
	if n.ext.Overlaps(e) && !fn(n) {
		return false
	}
	return walkOverlap(n.right, e, fn)
}

// firstFrom returns the lock with the smallest Start that is at least x, nil when there is none.
func (t *tree) firstFrom(x uint64) *lock {
	var found *lock
	for n := t.root; n != nil; {
		if n.ext.Start >= x {
			found, n = n, n.left
		} else {
			n = n.right
		}
	}
	return found
}

// containing returns the first lock that contains e and that ok accepts.
func (t *tree) containing(e extent.Extent, ok func(*lock) bool) *lock {
	return findContaining(t.root, e, ok)
}

func findContaining(n *lock, e extent.Extent, ok func(*lock) bool) *lock {
	if n == nil || n.max < e.End {
		return nil
	}
	if l := findContaining(n.left, e, ok); l != nil {
		return l
	}
	if n.ext.Start > e.Start {
		return nil
	}
	if n.ext.Contains(e) && ok(n) {
		return n
	}
	return findContaining(n.right, e, ok)
}
