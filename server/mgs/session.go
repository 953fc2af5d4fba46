package mgs

import (
	"cmp"
	"slices"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// waitMax bounds how long a request for a newer configuration is held; the asker asks again.
const waitMax = 60 * time.Second

// session is one peer's connection.
type session struct {
	m    *MGS
	gen  uint64
	kind uint32
	peer string
	conn *rpc.Conn
	// mine are the targets that this peer has registered. guarded by m.mu
	mine []targetKey
}

// waiter is a held request for a newer configuration.
type waiter struct {
	s     *session
	c     *rpc.Call
	timer *time.Timer
}

// LastCommitted is 0: nothing that peers send is replayed.
func (s *session) LastCommitted() wire.Transno { return 0 }

// Generation of the session.
func (s *session) Generation() uint64 { return s.gen }

// Disconnected forgets the peer and ends its waiting.
func (s *session) Disconnected(*rpc.Conn) {
	m := s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range s.mine {
		if r := m.targets[k]; r != nil && r.owner == s {
			r.owner = nil
			r.state = "disconnected"
		}
	}
	for w := range m.waiting {
		if w.s == s {
			m.endLocked(w, status.NotConnected)
		}
	}
}

// Serve runs one request.
func (s *session) Serve(e *env.Env, c *rpc.Call) error {
	switch c.Header.Op {
	case wire.OpPing, wire.OpDisconnect:
		return nil
	case wire.OpRegister:
		var q wirepb.RegisterRequest
		if err := c.Decode(&q); err != nil {
			return err
		}
		r, err := s.m.register(c.Context(), e, s, &q)
		if err == nil {
			c.Reply = r
		}
		return err
	case wire.OpReport:
		var q wirepb.ReportRequest
		if err := c.Decode(&q); err != nil {
			return err
		}
		return s.m.report(s, &q)
	case wire.OpConfig:
		var q wirepb.ConfigRequest
		if err := c.Decode(&q); err != nil {
			return err
		}
		return s.m.config(s, c, &q)
	}
	return status.NotSystem
}

// config answers with the configuration when it is newer than what the asker has, or when it has waited long enough.
func (m *MGS) config(s *session, c *rpc.Call, q *wirepb.ConfigRequest) error {
	if err := m.checkName(q.Fsname); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return status.Stopping
	}
	if q.Known != m.version || q.WaitMsec == 0 {
		c.Reply = m.viewLocked()
		return nil
	}
	w := &waiter{s: s, c: c}
	m.waiting[w] = struct{}{}
	wait := min(time.Duration(q.WaitMsec)*time.Millisecond, waitMax)
	w.timer = time.AfterFunc(wait, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.endLocked(w, nil)
	})
	return rpc.ErrHeld
}

// wakeLocked answers every held request.
func (m *MGS) wakeLocked(err error) {
	for w := range m.waiting {
		m.endLocked(w, err)
	}
}

// endLocked answers one held request, unless it was answered before.
func (m *MGS) endLocked(w *waiter, err error) {
	if _, ok := m.waiting[w]; !ok {
		return
	}
	delete(m.waiting, w)
	w.timer.Stop()
	if err == nil {
		w.c.Reply = m.viewLocked()
	}
	// The answer goes out from a goroutine of its own: a peer that does not read must not hold the registry.
	go w.c.Finish(err)
}

// viewLocked is the configuration now, targets in order of kind and index.
func (m *MGS) viewLocked() *wirepb.Config {
	v := &wirepb.Config{Fsname: []byte(m.o.FSName), FsUuid: m.fsUUID[:], Version: m.version, Params: m.params}
	for _, r := range m.targets {
		t := &wirepb.Target{
			Name: r.pb.Name, Kind: r.pb.Kind, Index: r.pb.Index, Uuid: r.pb.Uuid, Addresses: r.pb.Addresses,
			Active: r.pb.Active, Server: r.pb.Server, State: []byte(r.state), Instance: r.instance,
		}
		if !r.reported.IsZero() {
			t.AgeMsec = uint64(time.Since(r.reported).Milliseconds())
			f := &r.statfs
			t.Statfs = &wirepb.StatfsReply{
				TotalBytes: f.TotalBytes, FreeBytes: f.FreeBytes, AvailBytes: f.AvailBytes,
				Inodes: f.Inodes, FreeInodes: f.FreeInodes, GrantedBytes: f.GrantedBytes,
			}
		}
		v.Targets = append(v.Targets, t)
	}
	slices.SortFunc(v.Targets, func(a, b *wirepb.Target) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Index, b.Index))
	})
	return v
}
