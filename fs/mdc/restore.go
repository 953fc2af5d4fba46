package mdc

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// opens is every open that the MDT has answered and whose close it has not: an MDT that was started again gets them back. It is
// changed with the answers, before a recovery of the import can begin.
type opens struct {
	mu      sync.Mutex
	handles map[uint64]opened // guarded by mu
	// closing are the files of the reports on their way that end this client's part as a writer. guarded by mu
	closing []Mark
	// recoveries counts what was handed back. guarded by mu
	recoveries int
}

type opened struct {
	fid   fid.FID
	flags uint32
}

// Mark is a file that this client is a writer of. SetattrGen is the newest that it knows.
type Mark struct {
	FID        fid.FID
	SetattrGen uint32
}

func (o *opens) init() { o.handles = map[uint64]opened{} }

// answered is Request.Answered of what may open: the open is noted.
func (o *opens) answered(r *rpc.Request) {
	p := r.Reply.(*wirepb.EntryReply)
	if p.Handle == 0 || p.Attr == nil {
		return
	}
	var flags uint32
	switch m := r.Body.(type) {
	case *wirepb.OpenRequest:
		flags = m.Flags
	case *wirepb.CreateRequest:
		flags = m.Flags
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.handles[p.Handle] = opened{fid.FID{Seq: fid.Seq(p.Attr.Seq), OID: p.Attr.Oid}, flags}
}

// reported is Request.Answered of reports: what they close is closed.
func (o *opens) reported(r *rpc.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range r.Body.(*wirepb.ReportSizesRequest).Reports {
		o.endLocked(p.Handle, fid.FID{Seq: fid.Seq(p.Seq), OID: p.Oid})
	}
}

func (o *opens) endLocked(handle uint64, f fid.FID) {
	if handle != 0 {
		delete(o.handles, handle)
	}
	if i := slices.IndexFunc(o.closing, func(m Mark) bool { return m.FID == f }); i >= 0 {
		o.closing = slices.Delete(o.closing, i, i+1)
	}
}

// sending notes a batch on its way, and returns how often opens were handed back before.
func (o *opens) sending(batch []Report) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range batch {
		if r := &batch[i]; r.Done {
			o.closing = append(o.closing, Mark{r.FID, r.SetattrGen})
		}
	}
	return o.recoveries
}

// sent notes the end of a batch, answered or given up. It reports whether opens were handed back meanwhile.
func (o *opens) sent(batch []Report, before int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range batch {
		o.endLocked(batch[i].Handle, batch[i].FID)
	}
	return o.recoveries != before
}

// Opens tells how many opens the MDT knows of this client.
func (m *MDC) Opens() int {
	m.opens.mu.Lock()
	defer m.opens.mu.Unlock()
	return len(m.opens.handles)
}

func writable(flags uint32) bool {
	return flags&syscall.O_ACCMODE != syscall.O_RDONLY || flags&syscall.O_TRUNC != 0
}

// held lists what is handed back: opens, and files without one that this client may have written, writers among them.
func (m *MDC) held(writers []Mark) []*wirepb.Reopen {
	q := &m.closes
	q.mu.Lock()
	for i := range q.queue {
		if r := &q.queue[i]; r.Done {
			writers = append(writers, Mark{r.FID, r.SetattrGen})
		}
	}
	q.mu.Unlock()
	o := &m.opens
	o.mu.Lock()
	defer o.mu.Unlock()
	o.recoveries++
	list := make([]*wirepb.Reopen, 0, len(o.handles)+len(writers)+len(o.closing))
	for h, v := range o.handles {
		list = append(list, &wirepb.Reopen{Seq: uint64(v.fid.Seq), Oid: v.fid.OID, Handle: h, Flags: v.flags, Writer: writable(v.flags)})
	}
	slices.SortFunc(list, func(a, b *wirepb.Reopen) int { return int(int64(a.Handle) - int64(b.Handle)) })
	for _, w := range append(writers, o.closing...) {
		list = append(list, &wirepb.Reopen{Seq: uint64(w.FID.Seq), Oid: w.FID.OID, Writer: true, SetattrGen: w.SetattrGen})
	}
	return list
}

// reopenBatch is how many opens one request hands back.
const reopenBatch = 128

// Restore hands the opens back to an MDT that was started again, and tells of which files this client is a writer, besides those
// whose reports are queued. refused hears of each file that the MDT does not take back. It is for rpc.ImportOptions.Restore.
func (m *MDC) Restore(ctx context.Context, v *rpc.Recovery, writers []Mark, refused func(f fid.FID, err error)) error {
	list := m.held(writers)
	if len(list) == 0 {
		return nil
	}
	m.log.Info("opens are handed back to the MDT", "opens", m.Opens(), "entries", len(list))
	for batch := range slices.Chunk(list, reopenBatch) {
		p := &wirepb.ReopenReply{}
		if err := v.Do(ctx, &rpc.Request{Op: wire.OpReopen, Body: &wirepb.ReopenRequest{Opens: batch}, Reply: p}); err != nil {
			return fmt.Errorf("mdc: handing %d opens back: %w", len(batch), err)
		}
		if len(p.Status) != len(batch) && len(p.Status) != 0 {
			return status.Errorf(status.Protocol, "mdc: %d opens handed back, %d answers", len(batch), len(p.Status))
		}
		for i, k := range p.Status {
			if k != 0 {
				refused(fid.FID{Seq: fid.Seq(batch[i].Seq), OID: batch[i].Oid}, status.Kind(k))
			}
		}
	}
	return nil
}

// Files lists the files that a modifying request names, from its body: what its refusal in a replay is about.
func Files(op wire.Op, body []byte) (list []fid.FID) {
	add := func(seq uint64, oid uint32) {
		if f := (fid.FID{Seq: fid.Seq(seq), OID: oid}); f.IsFile() && !slices.Contains(list, f) {
			list = append(list, f)
		}
	}
	switch op {
	case wire.OpOpen:
		var q wirepb.OpenRequest
		if q.UnmarshalVT(body) == nil {
			add(q.Seq, q.Oid)
		}
	case wire.OpCreate:
		var q wirepb.CreateRequest
		if q.UnmarshalVT(body) == nil {
			add(q.Seq, q.Oid)
			add(q.ParentSeq, q.ParentOid)
		}
	case wire.OpLink:
		var q wirepb.LinkRequest
		if q.UnmarshalVT(body) == nil {
			add(q.Seq, q.Oid)
			add(q.ParentSeq, q.ParentOid)
		}
	case wire.OpUnlink:
		var q wirepb.UnlinkRequest
		if q.UnmarshalVT(body) == nil {
			add(q.ParentSeq, q.ParentOid)
		}
	case wire.OpRename:
		var q wirepb.RenameRequest
		if q.UnmarshalVT(body) == nil {
			add(q.FromSeq, q.FromOid)
			add(q.ToSeq, q.ToOid)
		}
	case wire.OpSetattr, wire.OpSetLayout, wire.OpSetxattr, wire.OpRemovexattr, wire.OpReportSizes:
		return attrFiles(op, body)
	}
	return list
}

// attrFiles is Files of what changes attributes.
func attrFiles(op wire.Op, body []byte) (list []fid.FID) {
	one := func(err error, seq uint64, oid uint32) {
		if f := (fid.FID{Seq: fid.Seq(seq), OID: oid}); err == nil && f.IsFile() {
			list = append(list, f)
		}
	}
	switch op {
	case wire.OpSetattr:
		var q wirepb.SetattrRequest
		err := q.UnmarshalVT(body)
		one(err, q.Seq, q.Oid)
	case wire.OpSetLayout:
		var q wirepb.LayoutRequest
		err := q.UnmarshalVT(body)
		one(err, q.Seq, q.Oid)
	case wire.OpReportSizes:
		var q wirepb.ReportSizesRequest
		err := q.UnmarshalVT(body)
		for _, r := range q.Reports {
			one(err, r.Seq, r.Oid)
		}
	default:
		var q wirepb.XattrRequest
		err := q.UnmarshalVT(body)
		one(err, q.Seq, q.Oid)
	}
	return list
}
