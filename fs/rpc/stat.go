package rpc

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/wire"
)

// opTimes is a histogram of times for each operation that has occurred. An operation's histogram is made at its first use.
type opTimes struct {
	registry *stats.Registry
	prefix   string
	help     string
	// of has a row for each kind of target and a place for each operation, as package wire numbers them.
	of [5][32]atomic.Pointer[stats.Histogram]
}

func (o *opTimes) observe(op wire.Op, d time.Duration) {
	row, i := int(op>>8), int(op&0xff)
	if row >= len(o.of) || i >= len(o.of[0]) {
		return
	}
	h := o.of[row][i].Load()
	if h == nil {
		if !op.Known() {
			return
		}
		h = histogram(o.registry, o.prefix+"."+op.String(), o.help)
		if !o.of[row][i].CompareAndSwap(nil, h) {
			h = o.of[row][i].Load()
		}
	}
	h.Observe(d)
}

// The registry may be nil; the figures are then kept where nobody reads them.

func counter(r *stats.Registry, path, help string) *stats.Counter {
	if r == nil {
		return new(stats.Counter)
	}
	return r.Counter(path, help)
}

func gauge(r *stats.Registry, path, help string) *stats.Gauge {
	if r == nil {
		return new(stats.Gauge)
	}
	return r.Gauge(path, help)
}

func histogram(r *stats.Registry, path, help string) *stats.Histogram {
	if r == nil {
		return new(stats.Histogram)
	}
	return r.Histogram(path, help)
}

// importStats are the figures of one import. Imports of one process to the same target and of the same kind share them.
type importStats struct {
	inFlight   *stats.Gauge
	resends    *stats.Counter
	reconnects *stats.Counter
	evictions  *stats.Counter
	checksums  *stats.Counter
	replays    *stats.Counter
	refused    *stats.Counter
	recoveries *stats.Counter
	timeouts   *stats.Counter
	sent       *stats.Counter
	received   *stats.Counter
	times      opTimes
}

// importPath is where the figures of an import stand: under the client's layer that uses it.
func importPath(kind uint32, target string) string {
	element := stats.Element(target)
	switch {
	case target == "MGS":
		return "mgc.MGS"
	case kind == KindMDT && strings.Contains(target, "-OST"):
		return "osp." + element + "-osc-MDT0000"
	case strings.Contains(target, "-OST"):
		return "osc." + element + "-osc"
	case strings.Contains(target, "-MDT"):
		return "mdc." + element + "-mdc"
	}
	return "rpc." + element
}

func newImportStats(r *stats.Registry, path string) *importStats {
	return &importStats{
		inFlight:   gauge(r, path+".rpcs_in_flight", "Requests sent and not answered yet."),
		resends:    counter(r, path+".resends", "Requests sent again after a lost connection or a checksum error."),
		reconnects: counter(r, path+".reconnects", "Connects after the first one."),
		evictions:  counter(r, path+".evictions", "Times that the target had thrown this client out."),
		checksums:  counter(r, path+".checksum_errors", "Bulk transfers that did not match their crc32c."),
		replays:    counter(r, path+".replays", "Requests replayed after restarts of the target."),
		refused:    counter(r, path+".replays_refused", "Requests that were answered and that the target has lost for good."),
		recoveries: counter(r, path+".recoveries", "Recoveries begun after restarts of the target."),
		timeouts:   counter(r, path+".timeouts_count", "Connections given up because the target was silent."),
		sent:       counter(r, path+".bytes_sent", "Bytes of bodies and bulk sent in requests."),
		received:   counter(r, path+".bytes_received", "Bytes of bodies and bulk received in replies."),
		times:      opTimes{registry: r, prefix: path + ".stats", help: "Time from sending a request to its reply."},
	}
}

// serverStats are the figures of one server.
type serverStats struct {
	connections *stats.Gauge
	active      *stats.Gauge
	workers     *stats.Gauge
	held        *stats.Gauge
	refused     *stats.Counter
	protocol    *stats.Counter
	resent      *stats.Counter
	checksums   *stats.Counter
	received    *stats.Counter
	sent        *stats.Counter
	times       opTimes
}

func newServerStats(r *stats.Registry, path string) *serverStats {
	return &serverStats{
		connections: gauge(r, path+".connections", "Connections open."),
		active:      gauge(r, path+".req_active", "Requests that a worker is serving."),
		workers:     gauge(r, path+".threads_started", "Workers, idle ones included."),
		held:        gauge(r, path+".req_held", "Requests that are answered later and hold no worker."),
		refused:     counter(r, path+".refused", "Connections refused, for their number or by a target."),
		protocol:    counter(r, path+".protocol_errors", "Peers cut off because they broke the protocol."),
		resent:      counter(r, path+".req_resent", "Requests received that had been sent before."),
		checksums:   counter(r, path+".checksum_errors", "Bulk received that did not match its crc32c."),
		received:    counter(r, path+".bytes_received", "Bytes of bodies and bulk received."),
		sent:        counter(r, path+".bytes_sent", "Bytes of bodies and bulk sent."),
		times:       opTimes{registry: r, prefix: path + ".stats", help: "Time from a request's arrival to its reply, held requests included."},
	}
}
