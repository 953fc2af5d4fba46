package target

import (
	"time"

	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// maxExports bounds the table of exports; past it a flood of connects would fill the target's memory.
const maxExports = 1 << 16

// admitLocked makes the export of a new client, or refuses it, or names a dead export that must end first.
// Precondition: t.mu is held and no export has r's uuid.
func (t *Target) admitLocked(conn *rpc.Conn, r *wirepb.ConnectRequest) (x, dead *Export, err error) {
	if r.Kind < rpc.KindClient || r.Kind > rpc.KindTool {
		return nil, nil, status.Errorf(status.Protocol, "%s: a peer of kind %d", t.o.Name, r.Kind)
	}
	if len(t.exports) >= maxExports {
		return nil, nil, status.Errorf(status.Refused, "%s has %d clients and takes no more", t.o.Name, len(t.exports))
	}
	x = &Export{
		UUID: [16]byte(r.Uuid), Kind: r.Kind, Peer: string(trim(r.Peer)), ReadOnly: r.ReadOnly,
		Index: t.nextIdx, Since: time.Now(), t: t, alone: time.Now(),
	}
	if conn != nil {
		x.Peer = string(trim([]byte(conn.Peer()))) // The peer's own words, and its address.
	}
	if t.o.SoleWriter && x.writer() {
		if dead, err := t.soleWriterLocked(); dead != nil || err != nil {
			return nil, dead, err
		}
	}
	if t.o.Admit != nil {
		if err := t.o.Admit(x, r); err != nil {
			return nil, nil, err
		}
	}
	t.adopt(x)
	t.o.Log.Info("client connected", "target", t.o.Name, "peer", x.Peer, "kind", kindName(x.Kind), "readonly", x.ReadOnly)
	return x, nil, nil
}

// soleWriterLocked refuses a writer while another one holds the file system. A holder whose connections have been gone for
// Grace is returned: it is dead and must end first.
func (t *Target) soleWriterLocked() (dead *Export, err error) {
	for _, h := range t.exports {
		if !h.writer() {
			continue
		}
		alone := h.aloneFor()
		if alone >= t.o.Grace {
			return h, nil
		}
		if alone > 0 {
			return nil, status.Errorf(status.Refused,
				"%s: %s, connected since %s, went away without unmounting: try again in %v",
				t.o.Name, h.Peer, h.Since.Format(time.DateTime), (t.o.Grace-alone).Round(time.Second)+time.Second)
		}
		return nil, status.Errorf(status.Refused,
			"%s: mounted read-write by %s since %s: only one read-write mount is admitted; unmount it there, or mount with -o ro",
			t.o.Name, h.Peer, h.Since.Format(time.DateTime))
	}
	return nil, nil
}

// evictLoop ends the exports whose clients stay away.
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
			if x.aloneFor() >= t.o.EvictAfter && t.serving() == nil {
				t.end(x, "evicted: no connection for "+t.o.EvictAfter.String())
			}
		}
	}
}
