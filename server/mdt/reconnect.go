package mdt

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/store"
)

// newFID takes a FID for an inode that a repair makes, out of a sequence of its own that nobody gets after it.
func (r *Repairer) newFID() (fid.FID, error) {
	if r.seq == 0 || r.oid+1 >= fid.Width {
		next := fid.SeqFirst
		err := r.dev.Scan(r.o.e, r.o.h.tables.Sequence, nil, nil, func(k, v []byte) bool {
			if len(k) == 8 && len(v) >= 16 {
				if s := fid.Seq(binary.BigEndian.Uint64(k)); s != 0 {
					next = max(next, s+1)
				} else {
					next = max(next, fid.Seq(binary.BigEndian.Uint64(v[8:])))
				}
			}
			return true
		})
		if err != nil {
			return fid.FID{}, err
		}
		r.seq, r.oid, r.unsaved = next, 0, true
		r.putNextSequence(next + 1)
	}
	r.oid++
	return fid.FID{Seq: r.seq, OID: r.oid}, nil
}

// newNode makes an inode of root's that nobody else may read, without names.
func (r *Repairer) newNode(f fid.FID, mode uint32) inode {
	now := r.o.now
	n := inode{}
	n.FID, n.Mode, n.Nlink, n.SizeValid = f, mode, 1, true
	if n.IsDir() {
		n.Nlink = 2
	}
	n.Atime, n.Mtime, n.Ctime, n.Btime = now, now, now, now
	return n
}

// lostFolder gives the FID of lost+found, which it makes in a transaction of its own when it is not there.
func (r *Repairer) lostFolder(ctx context.Context) (fid.FID, error) {
	if !r.lost.IsZero() {
		return r.lost, nil
	}
	o := r.o
	d, slot, err := o.find(rootFID, []byte(lostFound))
	if err == nil && uint32(d.kind) == attr.DirentType(attr.TypeDir) {
		r.lost = d.child
		return r.lost, nil
	}
	if err == nil {
		return fid.FID{}, fmt.Errorf("mdt: %w: /%s is no folder: give it another name", ErrNotRepaired, lostFound)
	}
	if !errors.Is(err, status.NotExist) {
		return fid.FID{}, err
	}
	if err := o.get(rootFID, &o.folder); err != nil {
		return fid.FID{}, fmt.Errorf("mdt: the root folder: %w", err)
	}
	f, err := r.newFID()
	if err != nil {
		return fid.FID{}, err
	}
	n := r.newNode(f, attr.TypeDir|0o700)
	o.addLink(&n, parentLink{rootFID, []byte(lostFound)})
	o.put(&n, true)
	if err := o.putNew(rootFID, &dirent{kind: uint8(attr.DirentType(n.Mode)), child: f, name: []byte(lostFound)}, &slot); err != nil {
		return fid.FID{}, err
	}
	o.delta(&o.folder, 1, 1)
	if err := r.publish(); err != nil {
		return fid.FID{}, err
	}
	r.lost = f
	return f, r.begin(ctx)
}

// enter gives an inode a name in lost+found. n's record is put with it.
func (r *Repairer) enter(ctx context.Context, n *inode, name []byte) error {
	lost, err := r.lostFolder(ctx)
	if err != nil {
		return err
	}
	o := r.o
	_, slot, err := o.find(lost, name)
	if err == nil {
		return fmt.Errorf("mdt: %w: /%s/%s is there already", ErrNotRepaired, lostFound, name)
	}
	if !errors.Is(err, status.NotExist) {
		return err
	}
	if err := o.get(lost, &o.folder); err != nil {
		return err
	}
	n.sec[secLinks] = nil
	o.addLink(n, parentLink{lost, name})
	o.put(n, false)
	if err := o.putNew(lost, &dirent{kind: uint8(attr.DirentType(n.Mode)), child: n.FID, name: name}, &slot); err != nil {
		return err
	}
	nlink := int32(0)
	if n.IsDir() {
		nlink = 1
	}
	o.delta(&o.folder, nlink, 1)
	return nil
}

// reconnect gives an inode without a name one in lost+found.
func (r *Repairer) reconnect(ctx context.Context, f fid.FID) (string, error) {
	if _, err := r.lostFolder(ctx); err != nil {
		return "", err
	}
	o := r.o
	if err := o.get(f, &o.child); err != nil {
		return "", err
	}
	n := o.child
	if !n.IsDir() {
		n.Nlink = 1
	}
	name := foundName(f)
	return fmt.Sprintf("named /%s/%s", lostFound, name), r.enter(ctx, &n, name)
}

// cut takes a folder out of the circle that it is in.
func (r *Repairer) cut(ctx context.Context, f fid.FID) (string, error) {
	if _, err := r.lostFolder(ctx); err != nil {
		return "", err
	}
	for _, l := range r.names[f] {
		d, _, err := r.o.find(l.folder, l.name)
		if err != nil || d.child != f {
			continue
		}
		if err := r.remove(l.folder, &d); err != nil {
			return "", err
		}
	}
	if err := r.publish(); err != nil {
		return "", err
	}
	if err := r.begin(ctx); err != nil {
		return "", err
	}
	return r.reconnect(ctx, f)
}

// oneName leaves a folder the name that its parent link has, or else the first.
func (r *Repairer) oneName(f fid.FID) error {
	o := r.o
	names := r.names[f]
	if err := o.get(f, &o.child); err != nil || len(names) < 2 {
		return err
	}
	keep := 0
	if own, ok := o.child.parent(); ok {
		for i, l := range names {
			if l.folder == own.folder && bytes.Equal(l.name, own.name) {
				keep = i
			}
		}
	}
	for i, l := range names {
		if i == keep {
			continue
		}
		d, _, err := o.find(l.folder, l.name)
		if err != nil || d.child != f {
			continue
		}
		if err := r.remove(l.folder, &d); err != nil {
			return err
		}
	}
	return nil
}

// makeFolder makes a folder whose entries are there, or the root, anew.
func (r *Repairer) makeFolder(p *Problem) (string, error) {
	o := r.o
	if err := o.get(p.FID, &o.child); !errors.Is(err, status.Stale) {
		if err == nil && p.Kind == ProblemRoot {
			return "", fmt.Errorf("mdt: %w: the root's record is not a folder's: restore a backup", ErrNotRepaired)
		}
		return "there meanwhile", err
	}
	n := r.newNode(p.FID, attr.TypeDir|0o700)
	if p.FID == rootFID {
		n.Mode = attr.TypeDir | 0o755
	}
	n.Nlink, n.entries = 2+uint32(p.subdirs), p.want
	r.relink(&n)
	if len(n.sec[secLinks]) > 0 {
		for _, l := range r.names[p.FID] {
			if d, _, err := o.find(l.folder, l.name); err == nil && uint32(d.kind) != attr.DirentType(attr.TypeDir) {
				d.kind = uint8(attr.DirentType(attr.TypeDir))
				o.putRaw(l.folder, &d)
			}
		}
	}
	o.put(&n, true)
	return "made anew, for root alone", nil
}

// Unsize clears the mark that says that a file's size is the whole truth: it is asked from the objects from then on.
func (r *Repairer) Unsize(ctx context.Context, f fid.FID) error {
	return r.change(ctx, f, func(n *inode) error {
		n.SizeValid = false
		return nil
	})
}

// change puts an inode's record with a change.
func (r *Repairer) change(ctx context.Context, f fid.FID, fn func(*inode) error) error {
	if err := r.begin(ctx); err != nil {
		return err
	}
	if err := r.o.get(f, &r.o.child); err != nil {
		return err
	}
	if err := fn(&r.o.child); err != nil {
		return err
	}
	r.o.put(&r.o.child, false)
	return r.publish()
}

// Adopt makes a file of one stripe in lost+found, under the name given, for an object that has lost its file, and returns its FID.
func (r *Repairer) Adopt(ctx context.Context, name string, s layout.Stripe, found File) (fid.FID, error) {
	if err := r.begin(ctx); err != nil {
		return fid.FID{}, err
	}
	if _, err := r.lostFolder(ctx); err != nil {
		return fid.FID{}, err
	}
	f, err := r.newFID()
	if err != nil {
		return f, err
	}
	n := r.newNode(f, attr.TypeFile|0o600)
	n.UID, n.GID, n.ProjID, n.Size = found.UID, found.GID, found.Project, found.Size
	n.flags |= recWritten
	l := layout.Plain(1, layout.StripeSizeDefault)
	c := &l.Components[0]
	c.Stripes, c.StripeCount, c.StripeOffset = []layout.Stripe{s}, 1, int32(s.OST)
	c.Flags |= layout.FlagInit
	l.Gen = 1
	n.sec[secLayout] = l.Append(nil)
	if err := r.enter(ctx, &n, []byte(name)); err != nil {
		return f, err
	}
	return f, r.publish()
}

// Delete removes a record of any table of the device in a transaction of its own.
func (r *Repairer) Delete(ctx context.Context, t store.Table, key []byte) error {
	if err := r.begin(ctx); err != nil {
		return err
	}
	r.o.tx.Delete(t, key)
	return r.publish()
}

// Put puts a record of any table of the device in a transaction of its own.
func (r *Repairer) Put(ctx context.Context, t store.Table, key, value []byte) error {
	if err := r.begin(ctx); err != nil {
		return err
	}
	r.o.tx.Put(t, key, value)
	return r.publish()
}
