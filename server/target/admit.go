package target

import (
	"context"
	"errors"
	"strings"
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
		if dead, err := t.soleWriterLocked(r.Peer); dead != nil || err != nil {
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

// graceError says that the holder is dead and that its grace has not passed yet.
type graceError struct {
	left time.Duration
	text error
}

func (e *graceError) Error() string { return e.text.Error() }
func (e *graceError) Unwrap() error { return e.text }

// soleWriterLocked refuses a writer while another one holds the file system. A holder without a connection is returned when
// it must end first: Grace has passed, or who asks is its successor, the same mount point of the same host. Before that it is a *graceError.
func (t *Target) soleWriterLocked(peer []byte) (dead *Export, err error) {
	for _, h := range t.exports {
		if !h.writer() {
			continue
		}
		alone := h.aloneFor()
		if alone >= t.o.Grace || alone > 0 && h.namedBy(peer) {
			return h, nil
		}
		if alone > 0 {
			left := t.o.Grace - alone
			return nil, &graceError{left: left, text: status.Errorf(status.Refused,
				"%s: %s, connected since %s, went away without unmounting: try again in %v",
				t.o.Name, h.Peer, h.Since.Format(time.DateTime), left.Round(time.Second)+time.Second)}
		}
		return nil, status.Errorf(status.Refused,
			"%s: mounted read-write by %s since %s: only one read-write mount is admitted; unmount it there, or mount with -o ro",
			t.o.Name, h.Peer, h.Since.Format(time.DateTime))
	}
	return nil, nil
}

// namedBy reports whether the export's client called itself as peer does, but for the process id.
func (x *Export) namedBy(peer []byte) bool {
	words := string(peer)
	if i := strings.LastIndex(words, " (pid "); i >= 0 {
		words = words[:i]
	}
	return words != "" && (x.Peer == words || strings.HasPrefix(x.Peer, words+" ("))
}

// connectWait is how long Connect waits for a dead writer's grace to pass. It is below the time that an import gives one
// connect, 10 s; who would have to wait longer is told so.
const connectWait = 6 * time.Second

// waitGrace waits for a grace that is short enough; else it returns the refusal.
func (t *Target) waitGrace(ctx context.Context, err error) error {
	var g *graceError
	if !errors.As(err, &g) || g.left > connectWait {
		return err
	}
	timer := time.NewTimer(g.left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return err
	case <-t.stop:
		return status.Errorf(status.Stopping, "%s is stopping", t.o.Name)
	}
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
