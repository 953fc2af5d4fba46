package rpc

import "time"

// LastHeard is when the last frame of the target began to arrive, pings' answers included, also while it is away. The zero time says
// never.
func (i *Import) LastHeard() time.Time {
	if ls := i.full.Load(); ls != nil {
		i.heard.Store(ls.control.lastHeard.Load())
	}
	if n := i.heard.Load(); n != 0 {
		return time.Unix(0, n)
	}
	return time.Time{}
}
