package osc

// grant is the space that the OST has promised to this client, in bytes. It is a step function: no clock, no lock.
//
// Invariant: every byte gathered in the cache is charged until its write is answered or it is dropped.
type grant struct {
	// avail is promised and unused; charged stands behind dirty and unanswered data.
	avail, charged uint64
}

// take charges n bytes, or nothing and false.
func (g *grant) take(n uint64) bool {
	if g.avail < n {
		return false
	}
	g.avail -= n
	g.charged += n
	return true
}

// refund takes back the charge of n bytes that were dropped unsent: the promise stands.
func (g *grant) refund(n uint64) {
	g.charged -= n
	g.avail += n
}

// answered ends the charge of n bytes that were sent; the reply promised more bytes.
func (g *grant) answered(n, more uint64) {
	g.charged -= n
	g.avail += more
}

// connected replaces everything by what a connect's reply promises in all. Data gathered before keeps its charge.
func (g *grant) connected(total uint64) {
	g.avail = 0
	if total > g.charged {
		g.avail = total - g.charged
	}
}

// want is how much more to ask for, so that target bytes can be dirty.
func (g *grant) want(target uint64) uint64 {
	if have := g.avail + g.charged; have < target {
		return target - have
	}
	return 0
}
