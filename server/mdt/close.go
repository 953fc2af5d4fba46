package mdt

import (
	"errors"
	"slices"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// close ends an open, with what the client knows of the file's size. A handle that is not known, of an earlier life of the
// target, is closed already.
func (o *op) close() error {
	m := &o.req.close
	if err := o.decode(m); err != nil {
		return err
	}
	r := m.Report
	if r == nil {
		r = &wirepb.SizeReport{}
	}
	if err := o.cancels(m.Cancels); err != nil {
		return err
	}
	r.Seq, r.Oid, r.Handle = m.Seq, m.Oid, m.Handle
	o.req.oneSize[0] = r
	return o.report(o.req.oneSize[:])
}

// reportSizes takes the reports and closes of many files.
func (o *op) reportSizes() error {
	m := &o.req.reports
	if err := o.decode(m); err != nil {
		return err
	}
	return o.report(m.Reports)
}

// reportBatch bounds the files of one report: their locks are all held at once, and they are one transaction, so that one replay brings
// them all back.
const reportBatch = 128

// report applies size reports.
func (o *op) report(reports []*wirepb.SizeReport) error {
	if len(reports) > reportBatch {
		return status.Errorf(status.TooBig, "mdt: reports of %d files at once, %d are the most", len(reports), reportBatch)
	}
	if err := o.throttle(true); err != nil {
		return err
	}
	if o.again.on {
		return o.replayReports()
	}
	if err := o.reportLocked(reports); err != nil {
		return err
	}
	return o.commitReport()
}

// commitReport publishes with the outcomes, if anything has changed.
func (o *op) commitReport() error {
	if o.tx.Empty() {
		return o.commit(nil)
	}
	o.rep.report.Recovery = nil
	return o.commit(&o.rep.report)
}

// reportBits is what a report locks of its file: UPDATE only if it changes the size, the times or what ends with the last
// close, so that a close takes no lock from those who cache attributes.
func (o *op) reportBits(f fid.FID, r *wirepb.SizeReport) (ldlm.Bits, error) {
	if r.Done {
		return opened, nil
	}
	n := &o.other
	err := o.get(f, n)
	switch {
	case errors.Is(err, status.Stale):
		return ldlm.Open, nil
	case err != nil:
		return 0, err
	case n.Nlink == 0, n.IsFile() && !o.x.ReadOnly && o.applyReport(n, r, o.h.opens.standing(f, o.xs)):
		return opened, nil
	}
	return ldlm.Open, nil
}

// lockReported locks the files of a batch.
func (o *op) lockReported(reports []*wirepb.SizeReport) error {
	bits := ldlm.Open
	for {
		o.locks.reset()
		for _, r := range reports {
			f, err := o.fid(r.Seq, r.Oid)
			if err != nil {
				return err
			}
			b := bits
			if r.Done {
				b = opened
			}
			o.locks.child(f, ldlm.EX, b, false)
		}
		if err := o.lockAll(); err != nil {
			return err
		}
		if bits == opened {
			return nil
		}
		enough := true
		for _, r := range reports {
			f := fid.FID{Seq: fid.Seq(r.Seq), OID: r.Oid}
			b, err := o.reportBits(f, r)
			if err != nil {
				return err
			}
			enough = enough && b&^o.locks.find(f).bits == 0
		}
		if enough {
			return nil
		}
		bits = opened // Of all: the next attempt is the last.
		o.locks.release()
	}
}

// reportLocked locks the files of a batch and builds their transaction.
func (o *op) reportLocked(reports []*wirepb.SizeReport) error {
	if err := o.lockReported(reports); err != nil {
		return err
	}
	o.beginTx()
	o.reported, o.outcomes = o.reported[:0], o.outcomes[:0]
	for _, r := range reports {
		f := fid.FID{Seq: fid.Seq(r.Seq), OID: r.Oid}
		if slices.Contains(o.reported, f) {
			return status.Errorf(status.Protocol, "mdt: two reports of %v in one request", f)
		}
		o.reported = append(o.reported, f)
		if err := o.reportOne(f, r); err != nil {
			return err
		}
	}
	return nil
}

// reportOne applies the report of one file, and closes its handle.
func (o *op) reportOne(f fid.FID, r *wirepb.SizeReport) error {
	closed, closes := o.xs.dropHandle(r.Handle, f)
	if closes && writes(closed.flags) {
		o.h.opens.closeWrite(f, o.xs)
	}
	st := o.h.opens.standing(f, o.xs)
	if r.Done {
		st = o.h.opens.doneWriter(f, o.xs, r.SetattrGen)
	}
	n := &o.child
	err := o.get(f, n)
	if errors.Is(err, status.Stale) {
		if closes {
			return o.release(f)
		}
		return nil // Unlinked meanwhile, and what was written to it is gone.
	}
	if err != nil {
		return err
	}
	if closes && n.Nlink == 0 && o.h.opens.count(f) == 1 {
		return o.release(f)
	}
	if closes {
		o.h.opens.close(f)
		o.h.stats.opens.Add(-1)
	}
	// Without UPDATE the report changed nothing when it was looked at, and others may have changed the record since.
	if n.IsFile() && !o.x.ReadOnly && o.locks.find(f).bits&ldlm.Update != 0 {
		if o.applyReport(n, r, st) {
			o.put(n, false)
			o.outcome(n)
		}
		if st.writer && attr.Valid(r.Valid).Has(attr.ValidSize) {
			o.h.opens.sized(f)
		}
	}
	return nil
}

// applyReport moves size and times to what a writer says, and reports whether anything changed. Once nobody else has bytes
// that the size does not count, it is the file's. Of several writers each reports what it has seen in the end; the
// greatest of these is right, unless one of them has truncated it.
func (o *op) applyReport(n *inode, r *wirepb.SizeReport, st standing) (changed bool) {
	valid := attr.Valid(r.Valid)
	was := n.Attr
	switch {
	case !valid.Has(attr.ValidSize) || r.Size > attr.SizeMax:
	case !n.SizeValid && !st.writer: // nothing that it knows counts any more
	case !n.SizeValid && st.several:
		if r.Size >= n.Size || !st.reported {
			n.Size, n.Blocks = r.Size, r.Blocks
		}
		n.SizeValid = st.last && st.whole
	case !n.SizeValid:
		n.Size, n.Blocks = r.Size, r.Blocks
		n.SizeValid = st.last && st.whole
	case r.Size != n.Size:
		// A writer that this target does not know: its open was lost with a crash. What it wrote is on the OSTs, so they
		// are asked from now on.
		n.SizeValid = false
	}
	if r.SetattrGen == n.SetattrGen && r.MtimeNsec < 1e9 && r.AtimeNsec < 1e9 {
		o.reportTimes(n, r, valid)
	}
	return n.Attr != was
}

// reportTimes moves the times. A report that follows an older setattr generation never comes here. Between reports mtime
// only grows, since writers report in any order; after utimes the first report may move it back.
func (o *op) reportTimes(n *inode, r *wirepb.SizeReport, valid attr.Valid) {
	if valid.Has(attr.ValidMtime) {
		t := attr.Time{Sec: r.MtimeSec, Nsec: r.MtimeNsec}
		if n.flags&recMtimeSet != 0 || n.Mtime.Compare(t) < 0 {
			n.Mtime = t
			n.flags &^= recMtimeSet
		}
		n.Ctime = n.Ctime.Later(t)
	}
	if valid.Has(attr.ValidAtime) {
		n.Atime = n.Atime.Later(attr.Time{Sec: r.AtimeSec, Nsec: r.AtimeNsec})
	}
}
