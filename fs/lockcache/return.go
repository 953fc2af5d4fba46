package lockcache

import (
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// Return gives back a lock that came with an answer nobody waits for any more, or that makes no sense. It was never
// entered, so nothing is cached under it.
func (c *Cache) Return(g *wirepb.LockGrant) {
	if h := ldlm.Handle(g.Lock); h != 0 {
		c.adoption.settled(h)
		c.cancels.push(0, h)
	}
}
