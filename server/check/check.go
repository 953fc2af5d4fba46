package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/server/mdt"
	"github.com/strakefs/strake/server/ost"
	"github.com/strakefs/strake/server/target"
)

// Options of a check.
type Options struct {
	// Repair mends what is found. The set must have been opened to write.
	Repair bool
	// Settle is the time between two rounds on a running file system; 0 is 1.5 s: three txgs.
	Settle time.Duration
	// Report is called for each finding when it is all over, in the order in which they were found.
	Report func(Finding)
}

// Rounds: a repair mends what the one before has brought to light; a running file system is looked at until what is left is
// certain.
const (
	repairRounds = 12
	onlineRounds = 6
)

// Check checks the set's targets, and mends them with Repair. The error is one of reading or writing; findings are none.
func (s *Set) Check(ctx context.Context, o Options) (Summary, error) {
	if s.mdt == nil && len(s.osts) == 0 {
		return Summary{}, errors.New("no target to check")
	}
	if o.Settle == 0 {
		o.Settle = 1500 * time.Millisecond
	}
	run := &run{s: s, o: o, found: map[string]*issue{}}
	var err error
	switch {
	case s.online && o.Repair:
		return Summary{}, status.Errorf(status.NotSupport, "a running file system is not repaired: stop its targets and give their data folders")
	case s.online:
		err = run.online(ctx)
	default:
		err = run.offline(ctx)
	}
	if err != nil {
		return run.last, err
	}
	return run.report(ctx), nil
}

// run is one check.
type run struct {
	s     *Set
	o     Options
	found map[string]*issue
	order []*issue
	last  Summary
	n     int
}

func (r *run) pass(ctx context.Context) (*round, error) {
	p, err := r.s.pass(ctx)
	if err != nil {
		return nil, err
	}
	r.n++
	r.last = p.summary
	return p, nil
}

// note keeps a finding, with its path while there is one.
func (r *run) note(ctx context.Context, i *issue) *issue {
	if had := r.found[i.key]; had != nil {
		had.finding.Repaired = false
		return had
	}
	r.found[i.key] = i
	r.order = append(r.order, i)
	r.path(ctx, i)
	return i
}

// path completes the path of a finding: of the inode, or of the entry in its folder.
func (r *run) path(ctx context.Context, i *issue) {
	m := r.s.mdt
	if m == nil || i.f.IsZero() {
		return
	}
	path, _ := mdt.PathOf(ctx, m.records, m.tables.mdt, i.f)
	if name := i.finding.Path; name != "" {
		path = strings.TrimSuffix(path, "/") + "/" + name
	}
	if path != i.f.String() {
		i.finding.Path = path
	}
}

func (r *run) offline(ctx context.Context) error {
	var fixer *repairer
	for {
		p, err := r.pass(ctx)
		if err != nil {
			return err
		}
		for _, i := range r.order {
			i.finding.Repaired = r.o.Repair
		}
		for _, i := range p.issues {
			r.note(ctx, i)
		}
		if !r.o.Repair || len(p.issues) == 0 || r.n == repairRounds {
			return nil
		}
		if fixer == nil {
			if fixer, err = newRepairer(ctx, r.s); err != nil {
				return err
			}
		}
		fixer.ctx = ctx
		progress, err := fixer.mend(r, p)
		if err != nil || !progress {
			return err
		}
	}
}

// online repeats rounds until what one found is what the next finds, settled, or nothing is left.
func (r *run) online(ctx context.Context) error {
	var before map[string]*issue
	for {
		p, err := r.pass(ctx)
		if err != nil {
			return err
		}
		now := map[string]*issue{}
		open := 0
		for _, i := range p.issues {
			now[i.key] = i
			if before[i.key] == nil || !i.settled {
				open++
			}
		}
		if open == 0 || r.n == onlineRounds {
			for _, i := range p.issues {
				if before[i.key] != nil && i.settled {
					r.note(ctx, i)
				} else {
					r.last.Busy++
				}
			}
			return nil
		}
		before = now
		select {
		case <-time.After(r.o.Settle):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// report gives the findings out and sums up.
func (r *run) report(_ context.Context) Summary {
	s := r.last
	s.FSName, s.Rounds, s.Online, s.Repair = r.s.FSName, r.n, r.s.online, r.o.Repair
	if r.s.mdt != nil {
		s.Targets = append(s.Targets, r.s.mdt.name)
	}
	for _, o := range r.s.osts {
		s.Targets = append(s.Targets, o.name)
	}
	slices.Sort(s.Missing)
	for _, i := range r.order {
		s.Findings++
		if !i.finding.Repaired {
			s.Left++
		} else if i.finding.Done == "" {
			i.finding.Done = "went with another repair"
		}
		if r.o.Report != nil {
			r.o.Report(i.finding)
		}
	}
	return s
}

// repairer mends.
type repairer struct {
	ctx  context.Context
	mdt  *mdt.Repairer
	osts map[layout.OSTIndex]*ost.Repairer
	sets []*ostSide
	m    *mdtSide
}

func newRepairer(ctx context.Context, s *Set) (*repairer, error) {
	r := &repairer{osts: map[layout.OSTIndex]*ost.Repairer{}, m: s.mdt}
	if s.mdt != nil {
		var err error
		if r.mdt, err = mdt.NewRepairer(s.mdt.dev, s.mdt.tables.mdt, s.mdt.key); err != nil {
			return nil, fmt.Errorf("%s: %w", s.mdt.name, err)
		}
		if err := target.KeepReplayPoint(ctx, s.mdt.dev, s.mdt.tables.clients); err != nil {
			return nil, fmt.Errorf("%s: %w", s.mdt.name, err)
		}
	}
	for _, o := range s.osts {
		r.osts[o.index] = ost.NewRepairer(o.dev)
		r.sets = append(r.sets, o)
	}
	return r, nil
}

func (r *repairer) ost(o *ostSide) *ost.Repairer { return r.osts[o.index] }

// mend mends the issues of a round: figures only when there is nothing else. It reports whether it did anything.
func (r *repairer) mend(run *run, p *round) (progress bool, err error) {
	var problems []*mdt.Problem
	figures := true
	for _, i := range p.issues {
		if i.problem != nil {
			problems = append(problems, i.problem)
		}
		if had := run.found[i.key]; i.fix != nil && !i.figure && had.finding.Problem == "" {
			figures = false
		}
	}
	if r.mdt != nil {
		if err := r.mdt.Prepare(problems); err != nil {
			return false, err
		}
	}
	slices.SortStableFunc(p.issues, func(a, b *issue) int { return order(a) - order(b) })
	for _, i := range p.issues {
		had := run.found[i.key]
		if i.fix == nil || i.figure != figures || had.finding.Problem != "" {
			continue
		}
		done, err := i.fix(r)
		switch {
		case errors.Is(err, mdt.ErrNotRepaired):
			had.finding.Problem = err.Error()
			continue
		case err != nil:
			return progress, fmt.Errorf("%s: mending %s: %w", i.finding.Target, i.finding.Kind, err)
		}
		had.finding.Done = done
		progress = true
	}
	return progress, r.flush()
}

// order puts first what others build on: folders that are made anew, last ids.
func order(i *issue) int {
	switch i.finding.Kind {
	case string(mdt.ProblemRoot), KindLastUsed, KindLastObject:
		return 0
	case string(mdt.ProblemRecord):
		return 1
	case string(mdt.ProblemNoFolder):
		return 2
	case string(mdt.ProblemDangling), string(mdt.ProblemEntry):
		return 3
	case KindOrphanObject:
		return 5
	}
	return 4
}

// flush makes what was mended durable.
func (r *repairer) flush() error {
	for _, o := range r.sets {
		if err := o.dev.Objects().Flush(r.ctx); err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
		if err := o.dev.WaitCommitted(r.ctx, o.dev.Last()); err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
	}
	if r.m == nil {
		return nil
	}
	if err := r.m.dev.WaitCommitted(r.ctx, r.m.dev.Last()); err != nil {
		return fmt.Errorf("%s: %w", r.m.name, err)
	}
	return nil
}

// setObject makes an object's record say what its file says.
func (r *repairer) setObject(o *ostSide, id fid.ObjectID, f *mdt.File, stripe uint32) error {
	var bad error
	err := o.stat(r.ctx, id.Group, []uint64{id.ID}, func(_ int, there bool, size, blocks int64) {
		bad = r.ost(o).SetObject(r.ctx, ost.Object{ID: id, Owner: f.FID, Stripe: stripe, Owned: true, UID: f.UID, GID: f.GID,
			Project: f.Project, Size: uint64(size), Blocks: uint64(blocks)})
	})
	return errors.Join(err, bad)
}

// remake makes a missing object, empty.
func (r *repairer) remake(o *ostSide, id fid.ObjectID, f *mdt.File, stripe uint32) error {
	if err := r.ost(o).Create(id); err != nil {
		return err
	}
	return r.setObject(o, id, f, stripe)
}

// adopt gives an object that has lost its file a file of its own, or destroys it if it is empty.
func (r *repairer) adopt(o *ostSide, x ost.Object) (string, error) {
	if x.Size == 0 {
		return "destroyed, it was empty", r.ost(o).Destroy(r.ctx, x.ID)
	}
	name := fmt.Sprintf("%s-%d-%d", o.name, x.ID.Group, x.ID.ID)
	if !x.Owner.IsZero() {
		name += fmt.Sprintf("-%#x:%#x-stripe%d", uint64(x.Owner.Seq), x.Owner.OID, x.Stripe)
	}
	found := mdt.File{UID: x.UID, GID: x.GID, Project: x.Project, Size: x.Size}
	f, err := r.mdt.Adopt(r.ctx, name, layout.Stripe{OST: o.index, Object: x.ID}, found)
	if err != nil {
		return "", err
	}
	found.FID = f
	return "its bytes are in /lost+found/" + name, r.setObject(o, x.ID, &found, 0)
}
