package check

import (
	"context"
	"fmt"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/server/mdt"
	"github.com/strakefs/strake/server/ost"
)

// statBatch is how many objects are asked for at once.
const statBatch = 1024

// ost reads an OST: records, counters, and whether the objects that files list are there.
func (r *round) ost(ctx context.Context, o *ostRound) error {
	group := r.s.mdt.index
	state, problems, err := ost.Check(ctx, o.side.records, func(x ost.Object) {
		if x.ID.Group != group {
			return
		}
		ref := o.find(x.ID.ID)
		if ref == nil {
			if !has(o.destroy, x.ID.ID) {
				o.unlisted = append(o.unlisted, x)
			}
			return
		}
		ref.flags |= refRecorded
		ref.size = x.Size
		if !x.Owner.IsZero() && (x.Owner != fid.FromIno(ref.ino) || x.Stripe != uint32(ref.stripe)) {
			ref.flags |= refOwner
		}
		if x.Owned && idsOf(x.UID, x.GID, x.Project) != ref.ids {
			ref.flags |= refIDs
		}
	})
	if err != nil {
		return fmt.Errorf("%s: %w", o.side.name, err)
	}
	if state.Clients, err = clients(ctx, o.side.records, ostClients); err != nil {
		return fmt.Errorf("%s: %w", o.side.name, err)
	}
	o.state = state
	r.ostIssues(o.side, problems)
	r.summary.Objects += state.Objects
	if err := r.stat(ctx, o); err != nil {
		return fmt.Errorf("%s: %w", o.side.name, err)
	}
	if err := r.orphans(ctx, o); err != nil {
		return fmt.Errorf("%s: %w", o.side.name, err)
	}
	return r.spares(o)
}

// stat asks for the objects that files list.
func (r *round) stat(ctx context.Context, o *ostRound) error {
	ids := make([]uint64, 0, statBatch)
	for at := 0; at < len(o.refs); at += len(ids) {
		ids = ids[:0]
		for i := at; i < min(at+statBatch, len(o.refs)); i++ {
			ids = append(ids, o.refs[i].id)
		}
		err := o.side.stat(ctx, r.s.mdt.index, ids, func(i int, there bool, size, _ int64) {
			ref := &o.refs[at+i]
			if !there {
				return
			}
			ref.flags |= refThere
			if ref.flags&refRecorded != 0 && o.state.Clean && !r.s.online && ref.size != uint64(size) {
				ref.flags |= refSizeWrong
			}
			ref.size = uint64(size)
		})
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// orphans judges the records of objects that no file lists.
func (r *round) orphans(ctx context.Context, o *ostRound) error {
	for _, x := range o.unlisted {
		there, good := r.checker.Known(x.Owner)
		switch {
		case o.keeps(x.ID.ID):
			r.summary.Kept++
			continue
		case x.ID.ID > o.lastUsed && r.s.online:
			continue // Given to a file that was made meanwhile, or that the MDT is about to say is none.
		case x.ID.ID > o.lastUsed:
			r.summary.Waiting++ // Given to a file that did not reach the disk: replays list it, or the end of recovery removes it.
			continue
		case there && !good:
			continue // Its file's record cannot be read, which is said.
		case r.waits() && (x.Owner.IsZero() || there || !r.checker.Used(x.Owner)):
			r.summary.Waiting++
			continue
		}
		err := o.side.stat(ctx, x.ID.Group, []uint64{x.ID.ID}, func(_ int, found bool, size, blocks int64) {
			x.Size, x.Blocks = uint64(size), uint64(blocks)
			r.orphan(o, x, there, found)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// orphan reports one. x has the size and blocks of its file, if found says that it has one.
func (r *round) orphan(o *ostRound, x ost.Object, ownerThere, found bool) {
	f := Finding{Kind: KindOrphanObject, Target: o.side.name, Object: objectText(x.ID)}
	i := &issue{key: fmt.Sprintf("orphan %s %v", o.side.name, x.ID), settled: true}
	if !x.Owner.IsZero() {
		f.FID, i.f = x.Owner.String(), x.Owner
	}
	switch {
	case !found:
		f.Kind, f.Detail = KindObjectRecord, "a record of an object that is not there"
		i.fix = func(p *repairer) (string, error) { return "record removed", p.ost(o.side).Destroy(p.ctx, x.ID) }
	case ownerThere:
		f.Detail = fmt.Sprintf("its file does not list it as stripe %d; %d bytes", x.Stripe, x.Size)
	default:
		f.Detail = fmt.Sprintf("its file is not there, stripe %d of it; %d bytes", x.Stripe, x.Size)
	}
	if found {
		i.fix = func(p *repairer) (string, error) { return p.adopt(o.side, x) }
	}
	i.finding = f
	r.add(i)
}

// spares counts the objects without a record that no file lists: they were never written. Those of a repair go.
func (r *round) spares(o *ostRound) error {
	if o.side.dev == nil {
		return nil
	}
	var records map[uint64]bool // few: unlisted ones with a record are findings
	for _, x := range o.unlisted {
		if records == nil {
			records = map[uint64]bool{}
		}
		records[x.ID.ID] = true
	}
	return o.side.dev.Objects().Walk(r.s.mdt.index, func(id fid.ObjectID) bool {
		if id.ID <= o.lastUsed && o.find(id.ID) == nil && !has(o.destroy, id.ID) && !records[id.ID] && !o.keeps(id.ID) {
			r.summary.Spare++
		}
		return true
	})
}

// again holds a file whose record stood still against its objects.
func (r *round) again(f *mdt.File) {
	size, whole := uint64(0), len(f.Layout.Components) > 0
	for i := range f.Layout.Components {
		c := &f.Layout.Components[i]
		if c.Pattern == layout.OnMDT {
			whole = false
		}
		for k, st := range c.Stripes {
			o := r.osts[st.OST]
			if o == nil || o.side == nil {
				whole = false
				r.noOST(f, st)
				continue
			}
			ref := o.find(st.Object.ID)
			if ref == nil || st.Object.Group != r.s.mdt.index {
				whole = false
				continue
			}
			if ref.flags&refThere == 0 {
				whole = false
			} else if ref.size > 0 {
				size = max(size, c.FileSize(layout.StripeIndex(k), ref.size))
			}
			r.stripe(f, o, ref, st)
		}
	}
	if !whole || !f.SizeValid || size == f.Size {
		return
	}
	if r.waits() || !r.s.online && r.unsure(f) {
		r.summary.Waiting++
		return
	}
	found := *f
	r.add(&issue{key: fmt.Sprintf("size %v", f.FID), settled: true, f: f.FID, finding: Finding{
		Kind: KindSize, Target: r.s.mdt.name, FID: f.FID.String(),
		Detail: fmt.Sprintf("the MDT's size of %d counts, the objects say %d", f.Size, size),
	}, fix: func(p *repairer) (string, error) {
		return "the objects are asked from now on", p.mdt.Unsize(p.ctx, found.FID)
	}})
}

// unsure reports whether an OST of the file may get writes again that it lost in a crash.
func (r *round) unsure(f *mdt.File) bool {
	for i := range f.Layout.Components {
		for _, st := range f.Layout.Components[i].Stripes {
			if o := r.osts[st.OST]; o != nil && !o.state.Clean && o.state.Clients > 0 {
				return true
			}
		}
	}
	return false
}

// noOST notes an object on an OST that is not there.
func (r *round) noOST(f *mdt.File, st layout.Stripe) {
	if r.known == nil || r.known[st.OST] {
		return // Not given: the summary says so.
	}
	r.add(&issue{key: fmt.Sprintf("no OST %v %v", f.FID, st), settled: true, f: f.FID, finding: Finding{
		Kind: KindNoOST, Target: r.s.mdt.name, FID: f.FID.String(), Object: objectText(st.Object),
		Detail: fmt.Sprintf("an object on OST%04x, which the file system does not have", uint32(st.OST)),
	}})
}

// stripe judges one object of a file.
func (r *round) stripe(f *mdt.File, o *ostRound, x *ref, st layout.Stripe) {
	file := *f // without the layout, which is the checker's
	file.Layout = nil
	stripe := uint32(x.stripe)
	report := func(kind, detail string, fix func(p *repairer) (string, error)) {
		r.add(&issue{key: fmt.Sprintf("%s %s %v %v", kind, o.side.name, st.Object, f.FID), settled: true, f: f.FID, fix: fix,
			finding: Finding{Kind: kind, Target: o.side.name, FID: f.FID.String(), Object: objectText(st.Object), Detail: detail}})
	}
	set := func(p *repairer) (string, error) { return "set", p.setObject(o.side, st.Object, &file, stripe) }
	switch {
	case x.flags&refShared != 0:
		report(KindShared, "another file lists it too", nil)
		return
	case x.flags&refThere == 0:
		report(KindMissingObject, fmt.Sprintf("stripe %d is not there", stripe), func(p *repairer) (string, error) {
			return "made anew, empty", p.remake(o.side, st.Object, &file, stripe)
		})
		return
	case x.flags&refOwner != 0:
		report(KindObjectOwner, fmt.Sprintf("it says that it is not stripe %d of this file", stripe), set)
	case x.flags&refIDs != 0 && !has(o.setattr, st.Object.ID) && !r.waits():
		report(KindObjectIDs, fmt.Sprintf("it is not charged to uid %d, gid %d, project %d", f.UID, f.GID, f.Project), set)
	case x.flags&refSizeWrong != 0:
		report(KindObjectSize, fmt.Sprintf("its record does not say %d bytes, its file has them", x.size), set)
	}
	if has(o.destroy, st.Object.ID) {
		m := r.s.mdt
		r.badLog(m.tables.osp.Destroy, logKey(o.side.index, st.Object), KindLog, fmt.Sprintf("it would destroy object %s of %v", objectText(st.Object), f.FID), true)
	}
}
