package mdt

import (
	"sync"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/server/lockd"
	"github.com/strakefs/strake/server/target"
)

// handlesMax bounds the opens of one client.
const handlesMax = 1 << 20

// handle is one open of one client.
type handle struct {
	fid   fid.FID
	flags uint32
}

// export is what the MDT keeps for one client: its opens and its sequences. The files it writes are in the open table.
type export struct {
	mu      sync.Mutex
	handles map[uint64]handle    // guarded by mu
	folders map[fid.FID]int      // open folders, how often; guarded by mu
	last    uint64               // the newest handle; guarded by mu
	seqs    []*seqUse            // guarded by mu
	writing map[fid.FID]struct{} // files this client is a writer of; guarded by mu

	// locks is the client in the namespace; nil for exports that are no mounts. sent are the locks that went with answers.
	locks *lockd.Client
	sent  sentGrants
}

// newExport gives a new export its state.
func (h *Handler) newExport(x *target.Export) {
	s := &export{
		handles: map[uint64]handle{}, folders: map[fid.FID]int{}, writing: map[fid.FID]struct{}{},
		// Handles of an earlier start of the target are none of this one.
		last: uint64(h.o.Clock().UnixNano()) << 1 >> 21 << 20,
	}
	if x.Kind == rpc.KindClient {
		s.locks = h.ldlm.Join(x.Peer)
	}
	h.seqMu.Lock()
	s.seqs = h.restored[x.UUID]
	delete(h.restored, x.UUID)
	h.seqMu.Unlock()
	x.State = s
}

// addHandle makes a handle; the open is counted in the open table by the caller.
func (s *export) addHandle(f fid.FID, flags uint32, dir bool) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.handles) >= handlesMax {
		return 0, status.Errorf(status.NoMemory, "mdt: the client has %d files open", len(s.handles))
	}
	for s.last++; ; s.last++ { // One that was handed back may have any number.
		if _, taken := s.handles[s.last]; !taken {
			break
		}
	}
	s.handles[s.last] = handle{f, flags}
	if dir {
		s.folders[f]++
	}
	return s.last, nil
}

// restoreHandle makes a handle of an earlier start again; had says that it is there already. The open is counted by the caller.
func (s *export) restoreHandle(id uint64, f fid.FID, flags uint32, dir bool) (had bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v, ok := s.handles[id]; ok {
		if v.fid != f {
			return false, status.BadHandle
		}
		return true, nil
	}
	if len(s.handles) >= handlesMax {
		return false, status.Errorf(status.NoMemory, "mdt: the client has %d files open", len(s.handles))
	}
	s.handles[id] = handle{f, flags}
	if dir {
		s.folders[f]++
	}
	return false, nil
}

// handleOf finds a handle of f.
func (s *export) handleOf(id uint64, f fid.FID) (handle, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.handles[id]
	return v, ok && v.fid == f
}

// dropHandle forgets a handle of f and returns it; false if there is none.
func (s *export) dropHandle(id uint64, f fid.FID) (handle, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.handles[id]
	if !ok || v.fid != f {
		return handle{}, false
	}
	delete(s.handles, id)
	if n := s.folders[f]; n > 1 {
		s.folders[f] = n - 1
	} else if n == 1 {
		delete(s.folders, f)
	}
	return v, true
}

// hasFolder reports whether the client has the folder open.
func (s *export) hasFolder(f fid.FID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.folders[f] > 0
}

func (s *export) setWriting(f fid.FID, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if on {
		s.writing[f] = struct{}{}
	} else {
		delete(s.writing, f)
	}
}

// connected and disconnected give the namespace the connection that callbacks go to.
func (h *Handler) connected(x *target.Export, conn *rpc.Conn) {
	if s, ok := x.State.(*export); ok && s.locks != nil && conn != nil {
		s.locks.Connected(conn)
		h.callBack(s.sent.takeSlots())
	}
}

func (h *Handler) disconnected(x *target.Export, conn *rpc.Conn) {
	if s, ok := x.State.(*export); ok && s.locks != nil && conn != nil {
		s.locks.Disconnected(conn)
	}
}

// evict ends the export of a client that does not give a lock back.
func (h *Handler) evict(cl *lockd.Client, why string) {
	for _, x := range h.target.Exports() {
		if s, ok := x.State.(*export); ok && s.locks == cl {
			h.target.Evict(x, why)
			return
		}
	}
}

// ExportGone implements target.Handler: it frees the client's locks and closes what it had open. A file that it was writing
// keeps its size unknown, since nobody can say what it had written.
func (h *Handler) ExportGone(x *target.Export) {
	s, ok := x.State.(*export)
	if !ok {
		return
	}
	s.mu.Lock()
	handles, writing := s.handles, s.writing
	s.handles, s.folders, s.writing = map[uint64]handle{}, map[fid.FID]int{}, map[fid.FID]struct{}{}
	s.mu.Unlock()
	for f := range writing {
		h.opens.evictWriter(f, s)
	}
	if s.locks != nil {
		s.locks.Gone()
	}
	e := env.New()
	for _, v := range handles {
		e.Reset()
		if err := h.closeEvicted(e, v.fid); err != nil {
			h.log.Error("closing a file of a client that is gone", "target", h.o.Name, "fid", v.fid.String(), "err", err)
		}
	}
	h.forgetSequences(s)
}

// closeEvicted takes one open off an inode and removes it if it was the last and no name is left.
func (h *Handler) closeEvicted(e *env.Env, f fid.FID) error {
	o := h.begin(e, nil, nil)
	defer o.end()
	err := o.lockOne(f, ldlm.EX, ldlm.Open)
	if err == nil && o.child.Nlink == 0 {
		o.locks.release()
		err = o.lockOne(f, ldlm.EX, opened)
	}
	if err != nil && !stale(err) {
		return err
	}
	o.beginTx()
	if err := o.release(f); err != nil {
		return err
	}
	if o.tx.Empty() {
		return nil
	}
	_, err = h.dev.Publish(o.tx)
	o.finish(err)
	return err
}
