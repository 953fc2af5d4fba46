package target

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/wire"
)

// opStats is count and service time of each operation, and how many failed.
type opStats struct {
	times           map[wire.Op]*stats.Histogram
	failed, evicted *stats.Counter
}

// register enters the figures of a target: <prefix>.<name>.stats.<operation>, .stats.errors, .num_exports, .exports.
func (s *opStats) register(o *Options, t *Target) {
	s.times, s.failed, s.evicted = map[wire.Op]*stats.Histogram{}, &stats.Counter{}, &stats.Counter{}
	if o.Stats == nil {
		return
	}
	base := o.Prefix + "." + o.Name
	for op := wire.Op(1); op < 0x400; op++ {
		if !op.Known() || op < wire.OpStatfs || (op >= 0x100 && op < 0x200) {
			continue // Connects and pings do not come here, the MGS has its own figures.
		}
		if mdt := op >= 0x200 && op < 0x300; op >= 0x100 && mdt != (o.Prefix == "mdt") {
			continue
		}
		s.times[op] = o.Stats.Histogram(base+".stats."+op.String(), "Service time of requests, by operation.",
			stats.Metric("strake_"+o.Prefix+"_op_seconds"),
			stats.Label{Name: "target", Value: o.Name}, stats.Label{Name: "op", Value: op.String()})
	}
	s.failed = o.Stats.Counter(base+".stats.errors", "Requests that ended with an error.")
	s.evicted = o.Stats.Counter(base+".evictions", "Clients whose export was ended against their will.")
	t.recovery.register(o, base)
	o.Stats.Func(base+".num_exports", "Clients that have an export.", func() int64 { return int64(t.Count()) })
	o.Stats.Text(base+".exports", "Clients: uuid, kind, since when, connected, who.", t.exportsText)
	o.Stats.Table(base+".exports", "Exports, by the uuid of their client.", t.exportsTable)
}

// observe adds one request. It does not allocate.
func (s *opStats) observe(op wire.Op, d time.Duration, err error) {
	if h := s.times[op]; h != nil {
		h.Observe(d)
	}
	if err != nil && !errors.Is(err, rpc.ErrHeld) {
		s.failed.Inc()
	}
}

func (t *Target) exportsText() string {
	var b strings.Builder
	for _, x := range t.Exports() {
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%x %s %s connected=%v %s", x.UUID, kindName(x.Kind), x.Since.Format(time.DateTime), x.Connected(), x.Peer)
	}
	return b.String()
}
