package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/strakefs/strake/ui/param"
)

// The arms of the experiment: what runs in a slice.
const (
	armBase       = "base"
	armOff        = "COS=0"
	armOn         = "COS=1"
	armSharedBase = "shared, COS=0"
	armShared     = "shared, COS=1"
)

// arm is one way to run a slice.
type arm struct {
	name   string
	level  string // of commit_on_sharing
	shared bool   // each thread changes what the other one made
}

// cosArms are the arms in the order of the report. base and COS=0 are one configuration: what lies between them is the noise
// of the machine.
func cosArms() []arm {
	return []arm{{armBase, "0", false}, {armOff, "0", false}, {armOn, "1", false}, {armSharedBase, "0", true}, {armShared, "1", true}}
}

// What commit on share may cost clients that do not share.
const (
	cosSlices   = 40 // of each arm, at least, for a verdict
	cosEstimate = 0.99
	cosLow      = 0.97
)

// cosOptions are the flags of `strake bench cos`.
type cosOptions struct {
	dir    string
	slices int
	slice  time.Duration
	seed   uint64
	check  bool
	json   bool
}

func newCOS() *cobra.Command {
	o := cosOptions{}
	cmd := &cobra.Command{
		Use:   "cos",
		Short: "Measure what commit on share costs",
		Long: `Starts strake as one MDS, two OSS and two clients (TCP on loopback). Two threads, one on each mount, create files for a
fixed time, each in a folder of its own, in slices that take turns: base (commit_on_sharing=0), COS=0 (the same once more, which shows
the noise) and COS=1. Then the same while each thread also changes the mode of the files that the other one has made, with
commit on share off and on. An operation is a create or a change.

Prints for each arm the median rate, the CPU time of the servers for an operation, the commits that sharing forced, and the ratio
of the medians to its base with 95 % limits (bootstrap over the turns). COS=1 holds when its estimate is at least 0.99 and its
lower limit at least 0.97, from 40 slices of each arm on.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := atLeast1(map[string]int64{"slices": int64(o.slices), "slice": int64(o.slice / time.Millisecond)})
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.dir, "dir", "", "folder on the disk to measure (default: a new one in the temporary folder)")
	f.IntVar(&o.slices, "slices", cosSlices, "slices of each arm")
	f.DurationVar(&o.slice, "slice", 3*time.Second, "length of a slice")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the bootstrap")
	f.BoolVar(&o.check, "check", false, "exit status 1 when COS=1 does not hold")
	f.BoolVar(&o.json, "json", false, "print JSON instead of a table")
	return cmd
}

// run starts the system, runs the slices, stops it and prints the report. It blocks until done.
func (o cosOptions) run(ctx context.Context, out io.Writer) error {
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	base, err := os.MkdirTemp(o.dir, "strake-bench-")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	s, err := startProcesses(ctx, filepath.Join(base, "processes"), binary, 2)
	var found cosSamples
	if err == nil {
		found, err = o.measure(ctx, s)
	}
	machine := describe(ctx, base)
	if s != nil {
		if failed := err; failed != nil {
			return fmt.Errorf("%w (data and logs stay in %s)", errors.Join(failed, s.close(true)), base)
		}
		if err := s.close(false); err != nil {
			return err // something may still be mounted below base
		}
	}
	if err := errors.Join(err, os.RemoveAll(base)); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	r := found.report(o)
	r.Machine = machine
	if o.json {
		err = r.printJSON(out)
	} else {
		err = r.print(out)
	}
	if err == nil && o.check && r.Verdict != verdictHolds {
		err = fmt.Errorf("bench: commit on share: %s", r.Verdict)
	}
	return err
}

// measure runs all slices, the arms in turn; which one comes first changes with the turn.
func (o cosOptions) measure(ctx context.Context, s *system) (cosSamples, error) {
	p, err := paramsOf(ctx, s.list[0].cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	found, arms := cosSamples{}, cosArms()
	warm, err := newCOSSlice(s.mnts, min(o.slice, time.Second), false)
	if err == nil {
		_, err = warm.run(ctx) // sequences, objects made ahead, maps that grow
	}
	if err != nil {
		return nil, err
	}
	for turn := range o.slices {
		for i := range arms {
			a := arms[(i+turn)%len(arms)]
			if err := o.one(ctx, s, p, a, found); err != nil {
				return nil, fmt.Errorf("slice %d of %s: %w", turn, a.name, err)
			}
		}
	}
	return found, nil
}

// one runs one slice of an arm.
func (o cosOptions) one(ctx context.Context, s *system, p *param.Process, a arm, found cosSamples) error {
	if err := setLevel(p, a.level); err != nil {
		return err
	}
	work, err := newCOSSlice(s.mnts, o.slice, a.shared)
	if err != nil {
		return err
	}
	forced, err := countOf(p, "async_commit_count")
	if err != nil {
		return err
	}
	servers := s.list[:3] // the MDS and two OSS
	before, err := cpuOf(servers)
	if err != nil {
		return err
	}
	rate, err := work.run(ctx)
	if err != nil {
		return err
	}
	after, err := cpuOf(servers)
	if err != nil {
		return err
	}
	now, err := countOf(p, "async_commit_count")
	if err != nil {
		return err
	}
	if !a.shared && now != forced {
		return fmt.Errorf("bench: %d commits were forced between threads that share nothing: %w", now-forced, errShares)
	}
	found[a.name] = append(found[a.name], cosSample{
		rate: rate.PerSecond(), cpu: (after - before).Seconds() / float64(max(rate.Count, 1)), forced: float64(now-forced) / rate.Elapsed.Seconds(),
	})
	return nil
}

// errShares says that what was measured is not what the report would say.
var errShares = errors.New("the threads depend on each other")
