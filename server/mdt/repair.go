package mdt

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/store"
)

// lostFound is the folder in the root that takes what has lost its name.
const lostFound = "lost+found"

// ErrNotRepaired says that a problem is left as it is; the error's text says why.
var ErrNotRepaired = errors.New("not repaired")

// Repairer mends the records of a target that does not run. Each problem is one transaction, built on what the records say
// then, so that a problem that is gone is no harm. What a repair brings to light the next check finds.
type Repairer struct {
	dev   store.Device
	o     *op
	names map[fid.FID][]parentLink // of those whose names matter
	lost  fid.FID                  // lost+found, zero while it is not there
	seq   fid.Seq                  // for new inodes, 0 while none is taken
	oid   uint32
	// unsaved says that the transaction being built takes the sequence.
	unsaved bool
}

// NewRepairer makes one for a device. key is that of the hash of names, 16 bytes.
func NewRepairer(dev store.Device, tables Tables, key []byte) (*Repairer, error) {
	if len(key) != 16 {
		return nil, fmt.Errorf("mdt: the key of names has %d bytes, want 16", len(key))
	}
	h := &Handler{dev: dev, tables: tables, key: hashKeyOf(key), o: Options{Clock: time.Now}}
	h.registerStats()
	return &Repairer{dev: dev, o: h.begin(env.New(), nil, nil)}, nil
}

// begin starts a transaction.
func (r *Repairer) begin(ctx context.Context) error {
	if r.unsaved {
		r.seq, r.unsaved = 0, false
	}
	r.o.e.Reset()
	r.o.now = attr.TimeOf(time.Now())
	if err := r.dev.Throttle(ctx, true); err != nil {
		return fmt.Errorf("mdt: repair: %w", err)
	}
	r.o.beginTx()
	return nil
}

func (r *Repairer) publish() error {
	if r.o.tx.Empty() {
		return nil
	}
	if _, err := r.dev.Publish(r.o.tx); err != nil {
		return fmt.Errorf("mdt: repair: %w", err)
	}
	r.unsaved = false
	return nil
}

// Prepare finds out what the problems need to know: the names of the inodes whose links are to be made anew.
func (r *Repairer) Prepare(problems []*Problem) error {
	r.names = map[fid.FID][]parentLink{}
	for _, p := range problems {
		switch p.Kind {
		case ProblemLinks, ProblemNames, ProblemNoFolder, ProblemCircle, ProblemRecord:
			if !p.FID.IsZero() {
				r.names[p.FID] = nil
			}
		}
	}
	if len(r.names) == 0 {
		return nil
	}
	size := map[fid.FID]int{}
	return r.dev.Scan(env.New(), r.o.h.tables.Dirent, nil, nil, func(k, v []byte) bool {
		var d dirent
		if d.decode(k, v) != nil || len(d.name) == 0 {
			return true
		}
		links, wanted := r.names[d.child]
		if folder, err := fid.FromKey(k); wanted && err == nil && size[d.child] < linksMax {
			size[d.child] += linkSlack
			r.names[d.child] = append(links, parentLink{folder, bytes.Clone(d.name)})
		}
		return true
	})
}

// Fix mends one problem and says what it did. The error wraps ErrNotRepaired for what it leaves alone; another one is the
// device's.
// Precondition: Prepare had the problem.
func (r *Repairer) Fix(ctx context.Context, p *Problem) (done string, err error) {
	if err := r.begin(ctx); err != nil {
		return "", err
	}
	done, err = r.fix(ctx, p)
	if err == nil {
		err = r.publish()
	}
	if errors.Is(err, status.Stale) || errors.Is(err, status.NotExist) {
		return "gone meanwhile", nil
	}
	return done, err
}

func (r *Repairer) fix(ctx context.Context, p *Problem) (string, error) {
	switch p.Kind {
	case ProblemRecord:
		return r.fixRecord(p)
	case ProblemDangling, ProblemEntry:
		return "entry removed", r.dropEntry(p)
	case ProblemPlace:
		return "entry moved", r.moveEntry(p)
	case ProblemEntryType:
		return "type set", r.retype(p)
	case ProblemNoFolder, ProblemRoot:
		return r.makeFolder(p)
	case ProblemNotFolder:
		return r.dropEntries(p.FID)
	case ProblemLost:
		return r.reconnect(ctx, p.FID)
	case ProblemCircle:
		return r.cut(ctx, p.FID)
	case ProblemNames:
		return "names but one removed", r.oneName(p.FID)
	case ProblemXattr:
		return r.fixXattr(p)
	case ProblemOrphan:
		return r.fixOrphan(p)
	case ProblemSequence:
		return "counted as used", r.fixSequence(p)
	case ProblemNlink, ProblemEntries, ProblemLinks, ProblemStamp:
		return r.fixInode(p)
	}
	return "", fmt.Errorf("mdt: %w: a problem of kind %q", ErrNotRepaired, p.Kind)
}

// fixRecord keeps what can be read of an inode, and removes any other record.
func (r *Repairer) fixRecord(p *Problem) (string, error) {
	o := r.o
	v, err := r.dev.Get(o.e, p.Table, []byte(p.RecordKey))
	if errors.Is(err, store.ErrNotFound) {
		return "gone meanwhile", nil
	}
	if err != nil {
		return "", err
	}
	version := byte(1) // of every record here
	if isLater(v, version) && (p.Table == o.h.tables.Inode || p.Table == o.h.tables.Dirent) {
		return "", fmt.Errorf("%w: %w", ErrNotRepaired, errNewer)
	}
	if p.Table == o.h.tables.Inode && !p.FID.IsZero() && salvage(p.FID, v, &o.child) {
		o.put(&o.child, false)
		return "kept what can be read", nil
	}
	o.tx.Delete(p.Table, []byte(p.RecordKey))
	return "record removed", nil
}

// salvage reads a record as far as it goes: sections that cannot be read are dropped, and parent links are made anew by the
// next round of checks.
func salvage(f fid.FID, v []byte, n *inode) bool {
	if len(v) < recordFixed || v[0] != recordVersion {
		return false
	}
	fixed := bytes.Clone(v[:recordFixed])
	fixed[1] &= recFlagsEnd - 1
	if n.decode(f, fixed) != nil {
		return false
	}
	switch n.Type() {
	case attr.TypeFile, attr.TypeDir, attr.TypeLink, attr.TypeChar, attr.TypeBlock, attr.TypeFifo, attr.TypeSocket:
	default:
		return false
	}
	rest := bytes.Clone(v[recordFixed:])
	_ = n.decodeSections(rest) // Those before the damage are in place.
	var l layout.Layout
	for _, s := range [...]int{secLayout, secDefault} {
		if l.Decode(n.sec[s]) != nil {
			n.sec[s] = nil
		}
	}
	if _, err := tallyXattrs(n.sec[secXattrs]); err != nil {
		n.sec[secXattrs] = nil
	}
	links := n.sec[secLinks]
	for at := links; ; {
		_, next, ok, err := nextLink(at)
		if err != nil {
			n.sec[secLinks] = links[:len(links)-len(at)]
		}
		if err != nil || !ok {
			break
		}
		at = next
	}
	return true
}

// entryOf reads the entry that a problem is about.
func (r *Repairer) entryOf(p *Problem) (dirent, error) {
	var d dirent
	key := appendDirentKey(r.o.e.Alloc(direntKeySize)[:0], p.Folder, p.Cookie)
	v, err := r.dev.Get(r.o.e, r.o.h.tables.Dirent, key)
	if errors.Is(err, store.ErrNotFound) {
		return d, status.NotExist
	}
	if err != nil {
		return d, err
	}
	if err := d.decode(key, v); err != nil {
		return d, err
	}
	if string(d.name) != p.Name || d.child != p.FID {
		return d, status.NotExist
	}
	return d, nil
}

// dropEntry removes an entry and counts it out.
func (r *Repairer) dropEntry(p *Problem) error {
	d, err := r.entryOf(p)
	if err != nil {
		return err
	}
	return r.remove(p.Folder, &d)
}

func (r *Repairer) remove(folder fid.FID, d *dirent) error {
	o := r.o
	named, isDir := len(d.name) > 0, uint32(d.kind) == attr.DirentType(attr.TypeDir)
	if err := o.get(d.child, &o.other); err == nil {
		isDir = o.other.IsDir()
	}
	o.deleteEntry(folder, d)
	if err := o.get(folder, &o.folder); err != nil || !named || !o.folder.IsDir() {
		return nil //nolint:nilerr // Without a folder there is nothing to count out of.
	}
	nlink := int32(0)
	if isDir {
		nlink = -1
	}
	o.delta(&o.folder, nlink, -1)
	return nil
}

// moveEntry puts an entry where a lookup finds it.
func (r *Repairer) moveEntry(p *Problem) error {
	d, err := r.entryOf(p)
	if err != nil {
		return err
	}
	o := r.o
	if h := o.h.key.name(d.name); uint64(h) == d.cookie/ordinals {
		// Only ordinal 0 of its run has to be told.
		first := dirent{cookie: h.cookie(0)}
		key := appendDirentKey(o.e.Alloc(direntKeySize)[:0], p.Folder, first.cookie)
		if v, err := r.dev.Get(o.e, o.h.tables.Dirent, key); err == nil {
			if err := first.decode(key, v); err != nil {
				return err
			}
		}
		first.run = true
		o.putRaw(p.Folder, &first)
		return nil
	}
	_, slot, err := o.find(p.Folder, d.name)
	if err == nil {
		return r.remove(p.Folder, &d) // The name is there already.
	}
	if !errors.Is(err, status.NotExist) {
		return err
	}
	o.deleteEntry(p.Folder, &d)
	return o.putNew(p.Folder, &dirent{kind: d.kind, child: d.child, name: d.name}, &slot)
}

func (r *Repairer) retype(p *Problem) error {
	d, err := r.entryOf(p)
	if err != nil {
		return err
	}
	o := r.o
	if err := o.get(d.child, &o.child); err != nil {
		return err
	}
	d.kind = uint8(attr.DirentType(o.child.Mode))
	o.putRaw(p.Folder, &d)
	return nil
}

// dropEntries removes the entries of what is no folder; the inodes that they led to are lost then.
func (r *Repairer) dropEntries(f fid.FID) (string, error) {
	n := 0
	err := r.dev.Scan(env.New(), r.o.h.tables.Dirent, f.AppendKey(nil), nil, func(k, _ []byte) bool {
		if !bytes.HasPrefix(k, f.AppendKey(nil)) {
			return false
		}
		r.o.tx.Delete(r.o.h.tables.Dirent, bytes.Clone(k))
		n++
		return n < 10_000 // A next round takes the rest.
	})
	return fmt.Sprintf("%d entries removed", n), err
}

// fixXattr removes what is on one side only.
func (r *Repairer) fixXattr(p *Problem) (string, error) {
	o := r.o
	if p.RecordKey != "" {
		o.tx.Delete(p.Table, []byte(p.RecordKey))
		return "value removed", nil
	}
	if err := o.get(p.FID, &o.child); err != nil {
		return "", err
	}
	if err := o.removeStored(&o.child, []byte(p.Name)); err != nil {
		return "", err
	}
	o.put(&o.child, false)
	return "name removed", nil
}

func (r *Repairer) fixOrphan(p *Problem) (string, error) {
	if p.want == 0 {
		r.o.deleteOrphan(p.FID)
		return "orphan record removed", nil
	}
	r.o.putOrphan(p.FID)
	return "orphan record made: the target's next start removes it", nil
}

// fixSequence counts a FID as used, or moves the next sequence on.
func (r *Repairer) fixSequence(p *Problem) error {
	o := r.o
	if p.want == 0 {
		o.used(p.FID)
		return nil
	}
	next := fid.Seq(p.want)
	if v, err := r.dev.Get(o.e, o.h.tables.Sequence, o.seqKey(0)); err == nil && len(v) == 16 {
		next = max(next, fid.Seq(binary.BigEndian.Uint64(v[8:])))
	}
	r.putNextSequence(next)
	return nil
}

func (r *Repairer) putNextSequence(next fid.Seq) {
	v := r.o.e.Alloc(16)
	clear(v)
	v[0] = seqVersion
	binary.BigEndian.PutUint64(v[8:], uint64(next))
	r.o.tx.Put(r.o.h.tables.Sequence, r.o.seqKey(0), v)
}

// fixInode sets what an inode's record has to say.
func (r *Repairer) fixInode(p *Problem) (string, error) {
	o := r.o
	n := &o.child
	if err := o.get(p.FID, n); err != nil {
		return "", err
	}
	done := ""
	switch p.Kind {
	case ProblemNlink:
		n.Nlink, done = uint32(p.want), fmt.Sprintf("set to %d", p.want)
	case ProblemEntries:
		n.entries, done = p.want, fmt.Sprintf("set to %d", p.want)
	case ProblemLinks:
		r.relink(n)
		done = "made anew"
	case ProblemStamp:
		o.put(n, true)
		return "folder stamped", nil
	}
	o.put(n, false)
	return done, nil
}

// relink makes an inode's parent links from its names.
func (r *Repairer) relink(n *inode) {
	n.sec[secLinks] = nil
	for _, l := range r.names[n.FID] {
		r.o.addLink(n, l)
	}
}
