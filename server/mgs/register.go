package mgs

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// aliveTime is how long a target that has not reported is taken to be running, when another process claims its place.
// Targets report every two seconds.
const aliveTime = 15 * time.Second

// Bounds of what a peer may register.
const (
	addressesMax = 16
	addressMax   = 300
	serverMax    = 300
)

// register enters a target, or lets a known one come back. It waits for the disk.
func (m *MGS) register(ctx context.Context, e *env.Env, s *session, q *wirepb.RegisterRequest) (*wirepb.RegisterReply, error) {
	if err := m.checkRegister(q); err != nil {
		return nil, err
	}
	m.mu.Lock()
	key, rec, err := m.placeLocked(s, q)
	if err != nil {
		m.mu.Unlock()
		return nil, err
	}
	changed := rec.pb == nil || !slices.EqualFunc(rec.pb.Addresses, q.Addresses, bytes.Equal)
	pb := &wirepb.Target{
		Name: []byte(TargetName(m.o.FSName, key.kind, key.index)), Kind: key.kind, Index: key.index,
		Uuid: bytes.Clone(q.Uuid), Addresses: cloneAll(q.Addresses), Active: true, Server: bytes.Clone(q.Server),
	}
	value, err := pb.MarshalVT()
	if err != nil {
		m.mu.Unlock()
		return nil, err
	}
	tx := m.o.KV.Begin(e)
	tx.Put(m.o.Table, storeKey(key), value)
	n, err := m.o.KV.Publish(tx)
	if err != nil {
		m.mu.Unlock()
		return nil, err
	}
	rec.pb, rec.owner, rec.reported, rec.state = pb, s, time.Now(), "starting"
	m.targets[key] = rec
	if !slices.Contains(s.mine, key) {
		s.mine = append(s.mine, key)
	}
	version := m.version
	m.mu.Unlock()
	if err := m.o.KV.WaitCommitted(ctx, n); err != nil {
		return nil, err
	}
	if changed {
		m.mu.Lock()
		m.version++
		version = m.version
		m.wakeLocked(nil)
		m.mu.Unlock()
	}
	m.o.Log.Debug(string(pb.Name)+" has registered", "addresses", q.Addresses, "server", string(q.Server), "peer", s.peer)
	r := &wirepb.RegisterReply{Index: key.index, FsUuid: m.fsUUID[:], ConfigVersion: version}
	if key.kind == KindMDT {
		r.FsKey = m.fsKey[:]
	}
	return r, nil
}

func cloneAll(in [][]byte) [][]byte {
	out := make([][]byte, len(in))
	for i, b := range in {
		out[i] = bytes.Clone(b)
	}
	return out
}

func (m *MGS) checkRegister(q *wirepb.RegisterRequest) error {
	if err := m.checkName(q.Fsname); err != nil {
		return err
	}
	if len(q.FsUuid) != 0 && !bytes.Equal(q.FsUuid, m.fsUUID[:]) {
		return status.Errorf(status.Refused, "this data folder belongs to another file system named %q (%s, here %s): give the MGS it was made with, or an empty folder",
			q.Fsname, uuidText(q.FsUuid), uuidText(m.fsUUID[:]))
	}
	long := func(b []byte) bool { return len(b) > addressMax || len(b) == 0 }
	switch {
	case q.Kind != KindMDT && q.Kind != KindOST:
		return status.Errorf(status.Protocol, "mgs: a target of kind %d", q.Kind)
	case len(q.Uuid) != 16:
		return status.Errorf(status.Protocol, "mgs: a target's uuid of %d bytes, want 16", len(q.Uuid))
	case len(q.Addresses) > addressesMax || slices.ContainsFunc(q.Addresses, long) || len(q.Server) > serverMax:
		return status.Errorf(status.Protocol, "mgs: a target with %d addresses or one of bad length", len(q.Addresses))
	}
	return nil
}

// placeLocked finds or gives the place of a target, or says who has it.
func (m *MGS) placeLocked(s *session, q *wirepb.RegisterRequest) (targetKey, *record, error) {
	if m.closed {
		return targetKey{}, nil, status.Stopping
	}
	var next uint32
	for k, r := range m.targets {
		if k.kind != q.Kind {
			continue
		}
		next = max(next, k.index+1)
		if !bytes.Equal(r.pb.Uuid, q.Uuid) {
			continue
		}
		if q.Index >= 0 && uint32(q.Index) != k.index {
			return k, nil, status.Errorf(status.Refused, "this data folder is %s, not index %d", r.pb.Name, q.Index)
		}
		if r.owner != nil && r.owner != s && !bytes.Equal(r.pb.Server, q.Server) && time.Since(r.reported) < aliveTime {
			return k, nil, status.Errorf(status.Refused, "%s is served already by %s: stop that one first, and never run a copy of its data folder", r.pb.Name, r.pb.Server)
		}
		return k, r, nil
	}
	switch {
	case q.Index >= 0 && m.targets[targetKey{q.Kind, uint32(q.Index)}] != nil:
		r := m.targets[targetKey{q.Kind, uint32(q.Index)}]
		return targetKey{}, nil, status.Errorf(status.Refused, "index %d is taken: %s is another data folder, registered by %s", q.Index, r.pb.Name, r.pb.Server)
	case q.Index >= 0:
		next = uint32(q.Index)
	case q.Kind == KindMDT && next > 0:
		return targetKey{}, nil, status.Errorf(status.Refused, "the file system has its MDT already, and one is all it can have for now")
	case len(m.targets) >= targetsMax:
		return targetKey{}, nil, status.Errorf(status.Refused, "the file system has %d targets already, the most it can have", len(m.targets))
	}
	if next > 0xffff {
		return targetKey{}, nil, status.Errorf(status.Refused, "index %d is over 65535", next)
	}
	return targetKey{q.Kind, next}, &record{}, nil
}

// report keeps how a session's targets are. That a target serves under a new instance is news: those who wait for it hear at once,
// and try to connect (imperative recovery).
func (m *MGS) report(s *session, q *wirepb.ReportRequest) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	news := false
	defer func() {
		if news {
			m.version++
			m.wakeLocked(nil)
		}
	}()
	for _, t := range q.Targets {
		k := targetKey{t.Kind, t.Index}
		if !slices.Contains(s.mine, k) {
			return status.Errorf(status.Refused, "mgs: a report of %s from a peer that has not registered it", TargetName(m.o.FSName, t.Kind, t.Index))
		}
		r := m.targets[k]
		if r.owner != s {
			return status.Errorf(status.Refused, "mgs: a report of %s, which is served by %s now", r.pb.Name, r.pb.Server)
		}
		r.reported = time.Now()
		news = news || t.Instance != 0 && t.Instance != r.instance
		if t.Instance != 0 {
			r.instance = t.Instance
		}
		r.state = string(t.State[:min(len(t.State), 64)])
		if f := t.Statfs; f != nil {
			r.statfs = wirepb.StatfsReply{
				TotalBytes: f.TotalBytes, FreeBytes: f.FreeBytes, AvailBytes: f.AvailBytes,
				Inodes: f.Inodes, FreeInodes: f.FreeInodes, GrantedBytes: f.GrantedBytes,
			}
		}
	}
	return nil
}
