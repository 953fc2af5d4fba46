package rpc

import (
	"fmt"
	"strings"
	"time"
)

// text tells of the import in the form of Lustre's file of that name: what it has and this import does not know is left out.
func (i *Import) text() string {
	i.mu.Lock()
	state, addresses, why := i.state, strings.Join(i.addresses, ", "), i.lastErr
	i.mu.Unlock()
	var generation uint64
	ls := i.full.Load()
	if ls != nil {
		generation, why = ls.generation, nil
	}
	reads, mods := i.InFlight()
	var b strings.Builder
	fmt.Fprintf(&b, "import:\n    target: %s\n    state: %s\n", i.o.Target, state)
	fmt.Fprintf(&b, "    connection:\n       failover_nids: [ %s ]\n       generation: %d\n       instance: %#x\n       reconnects: %d\n       evictions: %d\n",
		addresses, generation, i.instance.Load(), i.stats.reconnects.Load(), i.evictions.Load())
	if at := i.LastHeard(); !at.IsZero() {
		fmt.Fprintf(&b, "       last_heard_msec: %d\n", time.Since(at).Milliseconds())
	}
	if why != nil {
		fmt.Fprintf(&b, "       last_error: %q\n", why)
	}
	fmt.Fprintf(&b, "    rpcs:\n       inflight: %d\n       max_rpcs_in_flight: %d\n       max_mod_rpcs_in_flight: %d\n       resends: %d\n",
		i.stats.inFlight.Load(), reads, mods, i.stats.resends.Load())
	fmt.Fprintf(&b, "    transactions:\n       peer_committed: %d", i.committed.Load())
	return b.String()
}
