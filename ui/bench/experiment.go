package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

// common are the flags of every experiment.
type common struct {
	dir    string // folder on the disk to measure
	rounds int
	check  bool // fail when a bar is missed
	json   bool
}

func (o *common) flags(f *pflag.FlagSet) {
	f.StringVar(&o.dir, "dir", "", "folder on the disk to measure (default: a new one in the temporary folder)")
	f.IntVar(&o.rounds, "rounds", 5, "rounds; figures are medians over them")
	f.BoolVar(&o.check, "check", false, "exit status 1 when a bar is missed")
	f.BoolVar(&o.json, "json", false, "print JSON instead of a table")
}

// example says where go-fuse's loopback comes from.
type example struct {
	module string // source tree to build it in
	binary string // built, empty to build it
}

func (e *example) flags(f *pflag.FlagSet) {
	f.StringVar(&e.module, "module", ".", "source tree to build go-fuse's loopback in")
	f.StringVar(&e.binary, "loopback", "", "built loopback binary (default: build it)")
}

// path returns the binary, built below target if it has to be.
func (e example) path(ctx context.Context, target string) (string, error) {
	if e.binary != "" {
		return e.binary, nil
	}
	return buildLoopback(ctx, e.module, target)
}

// atLeast1 says which of the values is below 1; values are pairs of a flag's name and its value.
func atLeast1(values map[string]int64) error {
	for name, v := range values {
		if v < 1 {
			return fmt.Errorf("bench: --%s is at least 1 (got %d)", name, v)
		}
	}
	return nil
}

// contest is who is compared with whom in what.
type contest struct {
	columns []string // systems in the order of the report
	base    string   // of the columns: the one that ratios are taken of
	judged  string   // of the columns: the one that has to hold the bars
	bars    []bar    // workloads in the order of the report
}

// experiment is one subcommand at work. A system may fill several columns of the report.
type experiment struct {
	common
	contest
	name       string
	conditions []string // printed above the table
	// starters start the systems below base, each in a folder of its own. What a starter returns with an error is closed
	// like the others.
	starters func(ctx context.Context, base string) ([]starter, error)
	// prepare runs once on every system before the rounds; nil for nothing.
	prepare func(ctx context.Context, s *system) error
	// round runs every workload once on a system. seed is the round's number.
	round func(ctx context.Context, s *system, seed uint64, found results) error
}

// starter starts one system.
type starter func() (*system, error)

// run starts the systems, runs the rounds in turn, stops everything and prints the report. It blocks until done; with
// --check it returns an error when a bar is missed.
func (e experiment) run(ctx context.Context, out io.Writer) error {
	base, err := os.MkdirTemp(e.dir, "strake-bench-")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	var list []*system
	found := results{}
	err = e.start(ctx, base, &list)
	if err == nil {
		err = e.measure(ctx, list, found)
	}
	done := report{Experiment: e.name, Machine: describe(ctx, base), Conditions: e.conditions, Rounds: e.rounds,
		Base: e.base, Judged: e.judged, Rows: found.rows(e.contest)}
	failed, kept := err != nil, false
	for _, s := range list {
		err = errors.Join(err, s.close(failed))
		kept = kept || failed && s.name != given
	}
	if kept {
		return fmt.Errorf("%w (data and logs stay in %s)", err, base)
	}
	if err != nil && !failed {
		return err // something may still be mounted below base
	}
	if err = errors.Join(err, os.RemoveAll(base)); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if e.json {
		err = done.printJSON(out)
	} else {
		done.header(out)
		err = done.print(out)
	}
	if missed := done.missed(); err == nil && e.check && len(missed) > 0 {
		err = fmt.Errorf("bench: below the bar: %v", missed)
	}
	return err
}

// start starts all systems into the list, which holds on an error what has to be stopped.
func (e experiment) start(ctx context.Context, base string, list *[]*system) error {
	starters, err := e.starters(ctx, base)
	for _, start := range starters {
		if err != nil {
			break
		}
		var s *system
		if s, err = start(); s != nil {
			*list = append(*list, s)
		}
	}
	return err
}

// measure runs all rounds; who comes first changes with the round.
func (e experiment) measure(ctx context.Context, list []*system, found results) error {
	for _, s := range list {
		if e.prepare == nil {
			break
		}
		if err := e.prepare(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	for round := range e.rounds {
		for i := range list {
			s := list[(i+round)%len(list)]
			if err := e.round(ctx, s, uint64(round), found); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	return nil
}

// machine is where and with what an experiment ran.
type machine struct {
	Version string    `json:"version"` // of the measured binary, its commit among it
	Go      string    `json:"go"`
	Linux   string    `json:"linux"`
	CPUs    int       `json:"cpus"`
	Disk    string    `json:"disk"` // file system type of the folder below --dir, as statfs(2) gives it
	Ended   time.Time `json:"ended"`
}

func describe(ctx context.Context, base string) machine {
	var uts unix.Utsname
	_ = unix.Uname(&uts)
	var fs unix.Statfs_t
	_ = unix.Statfs(base, &fs)
	return machine{Version: version(ctx), Go: runtime.Version(), Linux: unix.ByteSliceToString(uts.Release[:]),
		CPUs: runtime.NumCPU(), Disk: fmt.Sprintf("%#x", fs.Type), Ended: time.Now().UTC().Truncate(time.Second)}
}

// version is what the measured binary says of itself.
func version(ctx context.Context) string {
	binary, err := os.Executable()
	if err != nil {
		return "strake, version unknown"
	}
	out, err := exec.CommandContext(ctx, binary, "version").Output()
	line, _, _ := strings.Cut(string(out), "\n")
	if err != nil || line == "" {
		return "strake, version unknown"
	}
	return line
}

// header states commit, machine, sizes and rounds.
func (r report) header(w io.Writer) {
	m := r.Machine
	fmt.Fprintf(w, "%s, %s, Linux %s, %d CPUs, disk's file system type %s, %s\n",
		m.Version, m.Go, m.Linux, m.CPUs, m.Disk, m.Ended.Format(time.RFC3339))
	for _, line := range r.Conditions {
		fmt.Fprintln(w, line)
	}
	fmt.Fprintf(w, "medians of %d rounds in turn, ± half of what lies between the best round and the worst\n", r.Rounds)
	fmt.Fprintf(w, "ratio: to %s; bar: of %s\n", r.Base, r.Judged)
	fmt.Fprintln(w, strings.Repeat("-", 100))
}
