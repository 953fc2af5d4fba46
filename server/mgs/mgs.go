package mgs

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/store"
)

// Name is what a client connects to.
const Name = "MGS"

// Spec is the table that the MGS needs on its device.
func Spec() store.Spec { return store.Spec{Name: "mgs"} }

// Target kinds on the wire.
const (
	KindMDT = 1
	KindOST = 2
)

// targetsMax keeps a configuration well under one frame: each target takes some 120 bytes.
const targetsMax = 1500

// Options of a new MGS.
type Options struct {
	FSName string
	KV     store.KV
	Table  store.Table
	Log    *slog.Logger
}

// MGS implements rpc.Target.
type MGS struct {
	o      Options
	fsUUID [16]byte
	fsKey  [16]byte

	mu      sync.Mutex
	version uint64                // guarded by mu
	targets map[targetKey]*record // guarded by mu
	params  []*wirepb.Param       // guarded by mu
	waiting map[*waiter]struct{}  // guarded by mu
	nextGen uint64                // guarded by mu
	closed  bool                  // guarded by mu
}

type targetKey struct {
	kind, index uint32
}

// record is one registered target. Its pb is what is stored; the rest is how it is now.
type record struct {
	pb       *wirepb.Target
	owner    *session
	instance uint64 // the target's start, as it has reported; 0 before
	reported time.Time
	statfs   wirepb.StatfsReply
	state    string
}

// Open reads the registry, or makes the file system's identity at the first start. It waits for the disk.
func Open(ctx context.Context, o Options) (*MGS, error) {
	// Versions are compared for equality only. One that starts at the clock is none that a peer has from an earlier life.
	m := &MGS{
		o: o, version: uint64(time.Now().UnixMicro()), targets: make(map[targetKey]*record), waiting: make(map[*waiter]struct{}),
	}
	e := env.New()
	b, err := o.KV.Get(e, o.Table, []byte("fs"))
	switch {
	case errors.Is(err, store.ErrNotFound):
		return m, m.format(ctx, e)
	case err != nil:
		return nil, fmt.Errorf("mgs: identity: %w", err)
	case len(b) != 32:
		return nil, fmt.Errorf("mgs: identity record has %d bytes, want 32", len(b))
	}
	copy(m.fsUUID[:], b)
	copy(m.fsKey[:], b[16:])
	return m, m.load(e)
}

func (m *MGS) format(ctx context.Context, e *env.Env) error {
	var b [32]byte
	if _, err := rand.Read(b[:]); err != nil {
		return fmt.Errorf("mgs: identity: %w", err)
	}
	copy(m.fsUUID[:], b[:])
	copy(m.fsKey[:], b[16:])
	tx := m.o.KV.Begin(e)
	tx.Put(m.o.Table, []byte("fs"), b[:])
	return m.publish(ctx, tx)
}

func (m *MGS) publish(ctx context.Context, tx *store.Tx) error {
	n, err := m.o.KV.Publish(tx)
	if err == nil {
		err = m.o.KV.WaitCommitted(ctx, n)
	}
	if err != nil {
		return fmt.Errorf("mgs: %w", err)
	}
	return nil
}

func (m *MGS) load(e *env.Env) error {
	var bad error
	err := m.o.KV.Scan(e, m.o.Table, []byte("p"), []byte("u"), func(k, v []byte) bool {
		switch k[0] {
		case 'p':
			m.params = append(m.params, &wirepb.Param{Name: append([]byte(nil), k[1:]...), Value: append([]byte(nil), v...)})
		case 't':
			t := new(wirepb.Target)
			if bad = t.UnmarshalVT(v); bad != nil {
				return false
			}
			m.targets[targetKey{t.Kind, t.Index}] = &record{pb: t}
		}
		return true
	})
	if err = errors.Join(err, bad); err != nil {
		return fmt.Errorf("mgs: registry: %w", err)
	}
	return nil
}

// UUID is the file system's identity, 16 bytes.
func (m *MGS) UUID() [16]byte { return m.fsUUID }

// Key is the key of the hash of names, 16 bytes.
func (m *MGS) Key() [16]byte { return m.fsKey }

// Close ends the waiting of every held request. New requests are refused with kind Stopping.
func (m *MGS) Close() {
	m.mu.Lock()
	m.closed = true
	m.wakeLocked(status.Stopping)
	m.mu.Unlock()
}

// Connect admits everybody who speaks of this file system.
func (m *MGS) Connect(_ context.Context, conn *rpc.Conn, r *wirepb.ConnectRequest) (rpc.Session, *wirepb.ConnectReply, error) {
	if err := m.checkName(r.Fsname); err != nil {
		return nil, nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, nil, status.Stopping
	}
	m.nextGen++
	s := &session{m: m, gen: m.nextGen, kind: r.Kind, peer: string(r.Peer), conn: conn}
	return s, &wirepb.ConnectReply{
		Version: wire.Version, Generation: s.gen, Instance: 1, Fsname: []byte(m.o.FSName),
		// An export here holds nothing that a lost connection could lose: every request may be resent.
		MaxRpcsInFlight: 16, BrwSize: wire.BulkMax, Recovered: true,
	}, nil
}

func (m *MGS) checkName(name []byte) error {
	if string(name) != m.o.FSName {
		return status.Errorf(status.Refused, "this MGS serves file system %q, not %q: check --fsname", m.o.FSName, name)
	}
	return nil
}

// TargetName is the field's name of a target: strake-OST0003.
func TargetName(fsname string, kind, index uint32) string {
	word := "OST"
	if kind == KindMDT {
		word = "MDT"
	}
	return fmt.Sprintf("%s-%s%04x", fsname, word, index)
}

func storeKey(k targetKey) []byte {
	return binary.BigEndian.AppendUint32([]byte{'t', byte(k.kind)}, k.index)
}

func uuidText(b []byte) string { return hex.EncodeToString(b) }
