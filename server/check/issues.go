package check

import (
	"encoding/binary"
	"fmt"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/server/mdt"
	"github.com/strakefs/strake/server/osp"
	"github.com/strakefs/strake/server/ost"
	"github.com/strakefs/strake/store"
)

// mdtIssue takes a problem of the MDT's own records.
func (r *round) mdtIssue(p *mdt.Problem) {
	i := &issue{key: p.Key(), settled: p.Settled, figure: !p.Structural(), f: p.FID, problem: p, finding: Finding{
		Kind: string(p.Kind), Target: r.s.mdt.name, Detail: p.Detail,
	}}
	if !p.FID.IsZero() {
		i.finding.FID = p.FID.String()
	}
	if !p.Folder.IsZero() {
		i.f = p.Folder
		i.finding.Path = p.Name // Its folder's is put before it.
	}
	if p.RecordKey != "" && p.FID.IsZero() {
		i.finding.Detail = fmt.Sprintf("record %x: %s", clip(p.RecordKey), p.Detail)
	}
	i.fix = func(f *repairer) (string, error) { return f.mdt.Fix(f.ctx, p) }
	r.add(i)
}

// clip bounds what is shown of a key.
func clip(s string) string { return s[:min(len(s), 48)] }

func (r *round) ostIssues(o *ostSide, problems []*ost.Problem) {
	for _, p := range problems {
		detail := p.Detail
		if p.Kind == ost.ProblemRecord {
			detail = fmt.Sprintf("record %x: %s", clip(p.RecordKey), p.Detail)
		}
		r.add(&issue{key: o.name + " " + p.Key(), settled: p.Settled, figure: p.Kind == ost.ProblemUsage, finding: Finding{
			Kind: string(p.Kind), Target: o.name, Detail: detail,
		}, fix: func(f *repairer) (string, error) { return f.ost(o).Fix(f.ctx, p) }})
	}
}

// badLog reports a record that goes.
func (r *round) badLog(t store.Table, key []byte, kind, detail string, settled bool) {
	k := string(key)
	r.add(&issue{key: fmt.Sprintf("log %d %q %s", t, k, kind), settled: settled, finding: Finding{Kind: kind, Target: r.s.mdt.name, Detail: detail},
		fix: func(f *repairer) (string, error) { return "record removed", f.mdt.Delete(f.ctx, t, []byte(k)) }})
}

// logKey is the key of a record of either log.
func logKey(i layout.OSTIndex, id fid.ObjectID) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(i))
	b = binary.BigEndian.AppendUint32(b, id.Group)
	return binary.BigEndian.AppendUint64(b, id.ID)
}

// lastIDs holds the last ids of MDT and OSTs against the objects listed.
func (r *round) lastIDs() {
	m := r.s.mdt
	for index, o := range r.osts {
		if o.side == nil {
			if r.known == nil || r.known[index] {
				r.summary.Missing = append(r.summary.Missing, fmt.Sprintf("%s-OST%04x", r.s.FSName, uint32(index)))
			}
			continue
		}
		if len(o.refs) == 0 {
			continue
		}
		highest := o.refs[len(o.refs)-1].id
		if highest > o.lastUsed {
			r.add(&issue{key: fmt.Sprintf("last used %d", index), settled: true, finding: Finding{
				Kind: KindLastUsed, Target: m.name, Detail: fmt.Sprintf("the last used object of %s is %d, a file lists %d", o.side.name, o.lastUsed, highest),
			}, fix: func(f *repairer) (string, error) {
				k, v := osp.PutLastUsed(index, highest)
				return fmt.Sprintf("set to %d", highest), f.mdt.Put(f.ctx, m.tables.osp.LastUsed, k, v)
			}})
		}
		if last := o.state.Groups[m.index].Last; highest > last {
			r.add(&issue{key: fmt.Sprintf("last object %d", index), settled: true, finding: Finding{
				Kind: KindLastObject, Target: o.side.name, Detail: fmt.Sprintf("its last object is %d, a file lists %d", last, highest),
			}, fix: func(f *repairer) (string, error) {
				return fmt.Sprintf("set to %d", highest), f.ost(o.side).SetLast(f.ctx, m.index, highest)
			}})
		}
	}
}
