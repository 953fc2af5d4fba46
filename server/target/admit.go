package target

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/store"
)

// maxExports bounds the table of exports; past it a flood of connects would fill the target's memory.
const maxExports = 1 << 16

// admitLocked makes the export of a new client, or refuses it.
// Precondition: t.mu is held and no export has r's uuid.
func (t *Target) admitLocked(conn *rpc.Conn, r *wirepb.ConnectRequest) (*Export, error) {
	if r.Kind < rpc.KindClient || r.Kind > rpc.KindTool {
		return nil, status.Errorf(status.Protocol, "%s: a peer of kind %d", t.o.Name, r.Kind)
	}
	if t.exports.n >= maxExports {
		return nil, status.Errorf(status.Refused, "%s has %d clients and takes no more", t.o.Name, t.exports.n)
	}
	x := &Export{
		UUID: [16]byte(r.Uuid), Kind: r.Kind, Peer: string(trim(r.Peer)), ReadOnly: r.ReadOnly,
		Index: t.nextIdx, Since: time.Now(), t: t, alone: time.Now(),
	}
	if conn != nil {
		x.Peer = string(trim([]byte(conn.Peer()))) // The peer's own words, and its address.
	}
	if t.o.Admit != nil {
		if err := t.o.Admit(x, r); err != nil {
			return nil, err
		}
	}
	t.adopt(x)
	t.o.Log.Info("client connected", "target", t.o.Name, "peer", x.Peer, "kind", kindName(x.Kind), "readonly", x.ReadOnly)
	return x, nil
}

// predecessorLocked finds the dead export that a new mount takes the place of: the same mount point of the same host,
// without a connection. Its process has died, and nothing is gained by waiting for it.
// Precondition: t.mu is held.
func (t *Target) predecessorLocked(r *wirepb.ConnectRequest) *Export {
	if r.Kind != rpc.KindClient {
		return nil
	}
	for x := range t.exports.all() {
		if x.Kind == rpc.KindClient && x.namedBy(r.Peer) && x.aloneFor() > 0 {
			return x
		}
	}
	return nil
}

// namedBy reports whether the export's client called itself as peer does, but for the process id.
func (x *Export) namedBy(peer []byte) bool {
	words := string(peer)
	i := strings.LastIndex(words, " (pid ")
	if i < 0 {
		return false
	}
	words = words[:i]
	return words != "" && strings.HasPrefix(x.Peer, words+" (pid ")
}

// Evict ends an export against its client's will: its connections are cut, what runs of it is waited for, and the handler
// is told (ExportGone). The client finds out when it connects again: it gets a new export. why is for the log. It may
// wait for requests that run, which learn by their context; it must not be called from one of this export's. On a target
// that is stopping it does nothing: the client finds its export at the next start.
func (t *Target) Evict(x *Export, why string) {
	if t.serving() != nil {
		return
	}
	x.cut()
	if t.end(x, true, "evicted: "+why) {
		t.stats.evicted.Inc()
	}
	x.cut() // One that came in between.
}

// end ends an export: what runs is waited for, its records go, the handler is told. Only the first call does it.
func (t *Target) end(x *Export, evicted bool, why string) bool {
	if !x.finish() {
		return false
	}
	n, err := t.dropExport(x)
	if err == nil && evicted {
		// Before its locks go to others: after a crash it would hand them back, and what it had under them.
		err = t.o.Device.WaitCommitted(context.Background(), n)
	}
	if err != nil && !errors.Is(err, store.ErrStopped) {
		t.o.Log.Error("removing an export's records", "target", t.o.Name, "peer", x.Peer, "err", err)
	}
	t.mu.Lock()
	t.exports.remove(x)
	t.mu.Unlock()
	t.o.Handler.ExportGone(x)
	t.o.Log.Info("export ended", "target", t.o.Name, "peer", x.Peer, "why", why)
	t.recovery.gone(x)
	return true
}

// evictLoop ends the exports whose clients stay away, or are silent.
func (t *Target) evictLoop() {
	tick := time.NewTicker(max(t.o.EvictAfter/8, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-t.stop:
			return
		case <-tick.C:
		}
		for _, x := range t.Exports() {
			if x.aloneFor() >= t.o.EvictAfter {
				t.Evict(x, "no connection for "+t.o.EvictAfter.String())
			} else if x.silentFor(time.Now()) >= t.o.EvictAfter {
				t.Evict(x, "nothing heard of it for "+t.o.EvictAfter.String())
			}
		}
	}
}
