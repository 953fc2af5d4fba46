package rpc

import (
	"fmt"
	"time"

	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// connect takes the first request of a connection, which must be CONNECT.
func (cn *Conn) connect() error {
	if err := cn.l.nc.SetReadDeadline(time.Now().Add(cn.s.o.ConnectTimeout)); err != nil {
		return err
	}
	c := &Call{Conn: cn, owner: cn, pool: cn.s.pool, start: time.Now()}
	h := &c.Header
	if err := cn.l.header(h); err != nil {
		return fmt.Errorf("rpc: waiting for CONNECT: %w", err)
	}
	if h.Op != wire.OpConnect || h.Flags&(wire.FlagReply|wire.FlagCallback) != 0 || h.BulkLen > 0 {
		return status.Errorf(status.Protocol, "rpc: a connection that starts with %v", h)
	}
	var err error
	if c.Body, err = cn.l.body(&c.buf, h); err != nil {
		return err
	}
	cn.l.frameDone()
	var r wirepb.ConnectRequest
	if err := c.Decode(&r); err != nil {
		return err
	}
	cn.target = string(r.Target)
	if cn.failConnect() {
		return errInjected
	}
	session, reply, err := cn.join(&r)
	var generation uint64
	if err == nil {
		c.Reply, generation = reply, reply.Generation
	} else {
		cn.s.stats.refused.Inc()
	}
	c.encode(err, wire.Transno(reply.GetLastCommitted()), generation)
	if err := cn.l.nc.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	if sendErr := cn.l.send(c.out, nil, 0); sendErr != nil || err != nil {
		if session != nil {
			session.Disconnected(cn)
		}
		return fmt.Errorf("rpc: connect: %w", firstError(err, sendErr))
	}
	cn.session = session
	return nil
}

func firstError(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// join finds the target and lets it admit the peer.
func (cn *Conn) join(r *wirepb.ConnectRequest) (Session, *wirepb.ConnectReply, error) {
	switch {
	case r.Version+1 < wire.Version || r.Version > wire.Version+1:
		return nil, nil, status.Errorf(status.Refused, "rpc: this server speaks protocol version %d, the peer %d: upgrade the older one", wire.Version, r.Version)
	case len(r.Uuid) != 16:
		return nil, nil, status.Errorf(status.Protocol, "rpc: a CONNECT with a uuid of %d bytes", len(r.Uuid))
	case len(r.Peer) > 256 || len(r.Target) > 256:
		return nil, nil, status.Errorf(status.Protocol, "rpc: a CONNECT with names over 256 bytes")
	case cn.s.draining.Load():
		return nil, nil, status.Stopping
	}
	target, err := cn.s.o.Find(string(r.Target))
	if err != nil {
		return nil, nil, err
	}
	if len(r.Peer) > 0 {
		cn.peer = fmt.Sprintf("%s (%s)", r.Peer, cn.peer)
	}
	cn.bulk = r.Bulk
	session, reply, err := target.Connect(cn.ctx, cn, r)
	if err != nil {
		return nil, nil, err
	}
	if reply.Version == 0 {
		reply.Version = wire.Version
	}
	if reply.MaxRpcsInFlight == 0 {
		reply.MaxRpcsInFlight = DefaultInFlightMetadata
	}
	reply.MaxRpcsInFlight = min(reply.MaxRpcsInFlight, MaxInFlightLimit)
	if reply.BrwSize == 0 {
		reply.BrwSize = wire.BulkMax
	}
	cn.limit, cn.brwSize = int(reply.MaxRpcsInFlight), min(reply.BrwSize, wire.BulkMax)
	return session, reply, nil
}
