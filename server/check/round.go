package check

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/mdt"
	"github.com/strakefs/strake/server/mgs"
	"github.com/strakefs/strake/server/osp"
	"github.com/strakefs/strake/server/ost"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
)

// ref is an object that a file lists.
type ref struct {
	id, ino uint64
	size    uint64
	ids     uint32 // hash of the file's uid, gid and project
	stripe  uint16
	flags   uint16
}

// Flags of a ref.
const (
	refThere     = 1 << iota // has a file
	refRecorded              // has a record
	refOwner                 // the record names another file or stripe
	refIDs                   // and other ids
	refShared                // another file lists it
	refSizeWrong             // the record's size is not the file's
)

// ostRound is what a round knows of one OST.
type ostRound struct {
	side     *ostSide // nil for one that is not there
	refs     []ref
	destroy  []uint64 // in the MDT's destroy log, sorted
	setattr  []uint64
	lastUsed uint64
	kept     []osp.Kept // what an administrator has still to decide about, after a restore
	state    ost.State
	unlisted []ost.Object
}

func (o *ostRound) find(id uint64) *ref {
	i, ok := slices.BinarySearchFunc(o.refs, id, func(r ref, id uint64) int { return cmp.Compare(r.id, id) })
	if !ok {
		return nil
	}
	return &o.refs[i]
}

// keeps reports whether an object without a file is kept after a restore.
func (o *ostRound) keeps(id uint64) bool {
	return slices.ContainsFunc(o.kept, func(k osp.Kept) bool { return k.First <= id && id <= k.Last })
}

func has(sorted []uint64, id uint64) bool {
	_, ok := slices.BinarySearch(sorted, id)
	return ok
}

// round is one pass over all records.
type round struct {
	s          *Set
	checker    *mdt.Checker
	osts       map[ostKey]*ostRound
	known      map[ostKey]bool // the OSTs of the registry, nil without it
	mdtClients int
	issues     []*issue
	summary    Summary
}

// pass makes a round.
func (s *Set) pass(ctx context.Context) (*round, error) {
	r := &round{s: s, osts: map[ostKey]*ostRound{}}
	for _, o := range s.osts {
		r.osts[o.index] = &ostRound{side: o}
	}
	if s.mdt == nil {
		return r, r.ostsAlone(ctx)
	}
	m := s.mdt
	r.checker = mdt.NewChecker(mdt.CheckOptions{Records: m.records, Tables: m.tables.mdt, Key: m.key, File: r.file, Again: r.again})
	if err := r.checker.Inodes(ctx); err != nil {
		return nil, err
	}
	if err := r.checker.Names(ctx); err != nil {
		return nil, err
	}
	if err := r.logs(ctx); err != nil {
		return nil, err
	}
	for _, o := range s.osts {
		if err := r.ost(ctx, r.osts[o.index]); err != nil {
			return nil, err
		}
	}
	problems, err := r.checker.Finish(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range problems {
		r.mdtIssue(p)
	}
	r.lastIDs()
	r.summary.Inodes, r.summary.Files = r.checker.Count()
	return r, nil
}

// ostsAlone checks OSTs without their MDT.
func (r *round) ostsAlone(ctx context.Context) error {
	for _, o := range r.s.osts {
		state, problems, err := ost.Check(ctx, o.records, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
		r.ostIssues(o, problems)
		r.summary.Objects += state.Objects
	}
	return nil
}

func (r *round) add(i *issue) { r.issues = append(r.issues, i) }

// idsOf is a hash of whom a file belongs to.
func idsOf(uid, gid, project uint32) uint32 {
	var b [12]byte
	binary.BigEndian.PutUint32(b[:], uid)
	binary.BigEndian.PutUint32(b[4:], gid)
	binary.BigEndian.PutUint32(b[8:], project)
	h := fnv.New32a()
	_, _ = h.Write(b[:]) // a hash does not fail
	return h.Sum32()
}

// file notes the objects of a file.
func (r *round) file(f *mdt.File) {
	ids := idsOf(f.UID, f.GID, f.Project)
	for i := range f.Layout.Components {
		for k, st := range f.Layout.Components[i].Stripes {
			o := r.osts[st.OST]
			if o == nil {
				o = &ostRound{}
				r.osts[st.OST] = o
			}
			if st.Object.Group != r.s.mdt.index {
				r.add(&issue{key: fmt.Sprintf("group %v %v", f.FID, st), settled: true, f: f.FID, finding: Finding{
					Kind: KindMissingObject, Target: r.s.mdt.name, FID: f.FID.String(), Object: objectText(st.Object),
					Detail: fmt.Sprintf("stripe %d is in a group of objects that is not this MDT's", k)}})
				continue
			}
			o.refs = append(o.refs, ref{id: st.Object.ID, ino: f.FID.Ino(), ids: ids, stripe: uint16(k)})
		}
	}
}

func objectText(id fid.ObjectID) string { return fmt.Sprintf("%d:%d", id.Group, id.ID) }

// logs reads what the MDT keeps of its OSTs, and of its clients.
func (r *round) logs(ctx context.Context) error {
	m := r.s.mdt
	if err := r.registry(ctx); err != nil {
		return err
	}
	for i, t := range [...]store.Table{m.tables.osp.Destroy, m.tables.osp.Setattr} {
		err := m.records.Scan(ctx, t, nil, func(k, v []byte) bool {
			l, err := osp.DecodeLog(k, v)
			if err != nil {
				r.badLog(t, k, KindLog, err.Error(), true)
				return true
			}
			o := r.osts[l.OST]
			if o == nil && r.known != nil && !r.known[l.OST] {
				r.badLog(t, k, KindNoOST, fmt.Sprintf("a log record for OST%04x, which the file system does not have", uint32(l.OST)), true)
				return true
			}
			if o == nil || l.Object.Group != m.index {
				return true
			}
			if i == 0 {
				o.destroy = append(o.destroy, l.Object.ID)
			} else {
				o.setattr = append(o.setattr, l.Object.ID)
			}
			return true
		})
		if err != nil {
			return fmt.Errorf("%s: logs: %w", m.name, err)
		}
	}
	err := m.records.Scan(ctx, m.tables.osp.LastUsed, nil, func(k, v []byte) bool {
		i, last, err := osp.DecodeLastUsed(k, v)
		if err != nil {
			r.badLog(m.tables.osp.LastUsed, k, KindLog, err.Error(), true)
		} else if o := r.osts[i]; o != nil {
			o.lastUsed = last
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("%s: last used ids: %w", m.name, err)
	}
	err = m.records.Scan(ctx, m.tables.osp.Kept, nil, func(k, v []byte) bool {
		kept, ok, err := osp.DecodeKept(k, v)
		if err != nil {
			r.badLog(m.tables.osp.Kept, k, KindLog, err.Error(), true)
		} else if o := r.osts[kept.OST]; ok && o != nil {
			o.kept = append(o.kept, kept)
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("%s: kept objects: %w", m.name, err)
	}
	r.mdtClients, err = clients(ctx, m.records, m.tables.clients)
	for _, o := range r.osts {
		slices.SortFunc(o.refs, func(a, b ref) int { return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.ino, b.ino)) })
		for i := 1; i < len(o.refs); i++ {
			if o.refs[i].id == o.refs[i-1].id {
				o.refs[i].flags |= refShared
				o.refs[i-1].flags |= refShared
			}
		}
	}
	return err
}

// registry reads which OSTs there are, where the MGS is on this MDT.
func (r *round) registry(ctx context.Context) error {
	m := r.s.mdt
	if m.dev == nil {
		return nil
	}
	return m.records.Scan(ctx, m.tables.mgs, []byte("t"), func(k, v []byte) bool {
		t := &wirepb.Target{}
		if k[0] != 't' || t.UnmarshalVT(v) != nil {
			return k[0] == 't'
		}
		if r.known == nil {
			r.known = map[ostKey]bool{}
		}
		if t.Kind == mgs.KindOST {
			r.known[layout.OSTIndex(t.Index)] = true
		}
		return true
	})
}

// clients counts the mounts that a target waits for after a restart.
func clients(ctx context.Context, records target.Records, t store.Table) (n int, err error) {
	err = target.Clients(ctx, records, t, func(c target.Client, err error) {
		if err == nil && c.Kind == rpc.KindClient {
			n++
		}
	})
	return n, err
}

// waits reports whether something is judged only after recovery: on targets that do not run, while clients have still to come back.
func (r *round) waits() bool { return !r.s.online && r.mdtClients > 0 }
