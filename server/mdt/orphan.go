package mdt

import (
	"errors"
	"fmt"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
)

// orphanVersion is the one byte of an orphan's record; its key is the FID. A record is there for every inode without a
// name, and for no other.
const orphanVersion = 1

// putOrphan notes in the transaction that an inode has no name.
func (o *op) putOrphan(f fid.FID) {
	v := o.e.Alloc(1)
	v[0] = orphanVersion
	o.tx.Put(o.h.tables.Orphan, f.AppendKey(o.e.Alloc(fid.KeySize)[:0]), v)
	o.h.stats.orphans.Add(1)
}

func (o *op) deleteOrphan(f fid.FID) {
	o.tx.Delete(o.h.tables.Orphan, f.AppendKey(o.e.Alloc(fid.KeySize)[:0]))
	o.h.stats.orphans.Add(-1)
}

// unname puts what taking one name off n means: a link less, an orphan while somebody has it open, else its end.
// Precondition: lostName of n is held.
func (o *op) unname(n *inode, l parentLink) error {
	o.touch(n)
	if n.IsDir() {
		n.Nlink = 0
	} else {
		n.Nlink--
	}
	if n.Nlink > 0 {
		if err := o.dropLink(n, l); err != nil {
			return err
		}
		o.put(n, false)
		return nil
	}
	if o.h.opens.count(n.FID) == 0 && !o.again.on { // After a restart nobody knows yet who has it open.
		return o.destroy(n)
	}
	n.sec[secLinks] = nil
	o.put(n, false)
	o.putOrphan(n.FID)
	return nil
}

// destroy puts the end of an inode: its record, its xattrs, and the destroy records of its objects.
func (o *op) destroy(n *inode) error {
	o.died = append(o.died, n.FID)
	o.tx.Delete(o.h.tables.Inode, n.FID.AppendKey(o.e.Alloc(fid.KeySize)[:0]))
	if err := o.deleteLargeXattrs(n); err != nil {
		return err
	}
	return o.destroyObjects(n)
}

// destroyObjects puts the destroy records of a regular file's objects.
func (o *op) destroyObjects(n *inode) error {
	if !n.IsFile() || len(n.sec[secLayout]) == 0 {
		return nil
	}
	if err := o.tmpl.Decode(n.sec[secLayout]); err != nil {
		return fmt.Errorf("%w: layout of %v: %w", errFormat, n.FID, err)
	}
	o.h.o.Objects.Destroy(o.tx, o.e, &o.tmpl)
	return nil
}

// release counts an open less and puts the inode's end if it was the last and no name is left.
// Precondition: OPEN of the inode is held, UPDATE too if it has no name, and the transaction has begun.
func (o *op) release(f fid.FID) error {
	left := o.h.opens.close(f)
	o.h.stats.opens.Add(-1)
	if left > 0 {
		return nil
	}
	err := o.get(f, &o.other)
	if errors.Is(err, status.Stale) {
		return nil
	}
	if err != nil || o.other.Nlink > 0 {
		return err
	}
	o.deleteOrphan(f)
	return o.destroy(&o.other)
}

// orphanBatch is how many orphans one transaction removes at the end of recovery.
const orphanBatch = 128

// endReplay removes what an earlier life left without a name and nobody has handed back.
func (h *Handler) endReplay() error {
	e := env.New()
	var from []byte
	removed, kept := 0, 0
	for {
		e.Reset()
		var batch []fid.FID
		var bad error
		seen := 0
		err := h.dev.Scan(e, h.tables.Orphan, from, nil, func(key, _ []byte) bool {
			f, err := fid.FromKey(key)
			if err != nil {
				bad = fmt.Errorf("%w: orphan: %w", errFormat, err)
				return false
			}
			from = append(append(from[:0], key...), 0)
			seen++
			if h.opens.count(f) > 0 {
				kept++
			} else {
				batch = append(batch, f)
			}
			return seen < orphanBatch
		})
		if err = errors.Join(err, bad); err != nil {
			return err
		}
		if len(batch) > 0 {
			if err := h.removeBatch(e, batch); err != nil {
				return err
			}
			removed += len(batch)
		}
		if seen < orphanBatch {
			break
		}
	}
	h.stats.orphans.Set(int64(kept))
	if removed+kept > 0 {
		h.log.Info("removed what was unlinked while open", "target", h.o.Name, "inodes", removed, "open", kept)
	}
	return nil
}

// removeBatch removes orphans that nobody has open.
func (h *Handler) removeBatch(e *env.Env, batch []fid.FID) error {
	o := h.begin(e, nil, nil)
	defer o.end()
	o.locks.reset()
	for _, f := range batch {
		o.locks.child(f, ldlm.EX, opened, false)
	}
	if err := o.lockAll(); err != nil {
		return err
	}
	o.beginTx()
	for _, f := range batch {
		err := o.get(f, &o.child)
		if err != nil && !stale(err) {
			return err
		}
		if err == nil && h.opens.count(f) > 0 {
			continue // A client that is being evicted had it; its eviction removes it.
		}
		o.tx.Delete(h.tables.Orphan, f.AppendKey(e.Alloc(fid.KeySize)[:0]))
		if err == nil && o.child.Nlink == 0 {
			if err := o.destroy(&o.child); err != nil {
				return err
			}
		}
	}
	if o.tx.Empty() {
		return nil
	}
	_, err := h.dev.Publish(o.tx)
	o.finish(err)
	return err
}

// makeRoot makes the root folder at the first start, and reads its default layout at every one.
func (h *Handler) makeRoot(e *env.Env) error {
	o := h.begin(e, nil, nil)
	err := o.get(rootFID, &o.child)
	if err == nil {
		h.setRootDefault(o.child.sec[secDefault])
		return nil
	}
	if !errors.Is(err, status.Stale) {
		return err
	}
	n := &o.child
	*n = inode{}
	n.FID, n.Mode, n.Nlink, n.SizeValid = rootFID, attr.TypeDir|0o755, 2, true
	n.Atime, n.Mtime, n.Ctime, n.Btime = o.now, o.now, o.now, o.now
	o.beginTx()
	o.put(n, true)
	last, err := h.dev.Publish(o.tx)
	if err != nil {
		return err
	}
	return h.dev.WaitCommitted(h.life, last) // It is nobody's, so the first client would depend on it.
}
