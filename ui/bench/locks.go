package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// The workloads that the caches under locks add to those of the foundation.
const (
	Stats       Workload = "stat of cached files"
	SmallWrites Workload = "4 KiB buffered writes"
	Lists       Workload = "ls -l, cold, files listed"
)

// locksBars are what a client alone has to reach beside the loopback.
func locksBars() []bar {
	return []bar{{Creates, 1.4, false}, {Stats, 0.9, false}, {SmallWrites, 0.8, false}, {Writes, 0.7, true}, {WritesSync, 0, true},
		{Reads, 0.9, true}, {Random, 0.8, false}, {Lists, 0.7, false}}
}

// The ways to make a listing cold.
const (
	coldRemount = "remount" // the client's process and its mount are new; the kernel keeps what is behind the loopback
	coldDrop    = "drop"    // besides, the kernel of this machine drops all clean caches, those of the servers among them
)

// locksOptions are the flags of `strake bench locks`.
type locksOptions struct {
	common
	example
	sizes
	stats       int      // stats of cached files
	writes      int      // small writes
	files       int      // listed
	bytes       int      // of a listed file
	cold        string   // coldRemount or coldDrop
	passthrough bool     // measure the loopback with passthrough as well
	mounts      []string // given mount points; empty to start strake
	remount     string   // command that mounts the first of them anew
}

func newLocks() *cobra.Command {
	o := locksOptions{}
	cmd := &cobra.Command{
		Use:   "locks",
		Short: "Compare the caches of one client with go-fuse's loopback on the same disk",
		Long: `Starts strake as one MDS, two OSS and one client (TCP on loopback), and go-fuse's loopback example without FUSE
passthrough, on one disk. Runs each workload on each in turn, several rounds, and prints medians, ratios to the loopback and the
bars that a client alone has to hold. Needs root, /dev/fuse and setpriv.

Cold, for the listing, is a new mount by a new process on both sides; with --cold drop (the default) the kernel drops all its
clean caches after that as well (/proc/sys/vm/drop_caches), on both sides again. The folder is filled once, before the rounds.

--mounts DIR[,DIR] measures a file system that is mounted already in place of strake; one client alone is its first folder.
Its listing is cold by what --remount CMD does, and by drop_caches.

What the environment of a request costs a server is measured beside the code, by the benchmarks of server/ost and server/lockd.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.valid(); err != nil {
				return err
			}
			return o.experiment().run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	o.common.flags(f)
	o.example.flags(f)
	f.IntVar(&o.creates, "creates", 10_000, "files created in a round")
	f.IntVar(&o.stats, "stats", 200_000, fmt.Sprintf("stats in a round, of %d files", StatFiles))
	f.IntVar(&o.writes, "writes", 32_768, "4 KiB writes in a round")
	f.Int64Var(&o.sizeMiB, "size", 512, "streamed file in MiB")
	f.IntVar(&o.reads, "reads", 20_000, "random reads in a round")
	f.IntVar(&o.files, "files", 100_000, "files of the listed folder")
	f.IntVar(&o.bytes, "bytes", 1, "size of a listed file; 0 for empty ones")
	f.StringVar(&o.cold, "cold", coldDrop, "how a listing is made cold: remount, or drop (a remount and drop_caches)")
	f.BoolVar(&o.passthrough, "passthrough", false, "measure the loopback with FUSE passthrough as well")
	f.StringSliceVar(&o.mounts, "mounts", nil, "folders of a file system mounted already, to measure in place of strake")
	f.StringVar(&o.remount, "remount", "", "shell command that mounts the first of --mounts anew")
	return cmd
}

func (o locksOptions) valid() error {
	switch {
	case o.bytes < 0:
		return fmt.Errorf("bench: --bytes is at least 0 (got %d)", o.bytes)
	case o.cold != coldRemount && o.cold != coldDrop:
		return fmt.Errorf("bench: --cold is %s or %s (got %q)", coldRemount, coldDrop, o.cold)
	case len(o.mounts) > 2:
		return fmt.Errorf("bench: --mounts takes one folder or two (got %d)", len(o.mounts))
	case o.remount != "" && len(o.mounts) == 0:
		return errors.New("bench: --remount is for --mounts")
	case o.cold == coldRemount && o.remount == "" && len(o.mounts) > 0:
		return errors.New("bench: --cold remount of --mounts needs --remount")
	}
	return atLeast1(map[string]int64{"rounds": int64(o.rounds), "creates": int64(o.creates), "stats": int64(o.stats),
		"writes": int64(o.writes), "size": o.sizeMiB, "reads": int64(o.reads), "files": int64(o.files)})
}

// judged is the name of what is compared with the loopback.
func (o locksOptions) judged() string {
	if len(o.mounts) > 0 {
		return given
	}
	return processes
}

func (o locksOptions) experiment() experiment {
	columns := []string{loopback}
	if o.passthrough {
		columns = append(columns, passthrough)
	}
	what := "1 MDT, 2 OSTs, default layout, one client"
	if len(o.mounts) > 0 {
		what = "one client of the file system mounted on " + o.mounts[0]
	}
	return experiment{
		common:  o.common,
		contest: contest{append(columns, o.judged()), loopback, o.judged(), locksBars()},
		name:    "locks",
		conditions: []string{
			what + "; the loopback without FUSE passthrough",
			fmt.Sprintf("a round: %d creates, %d stats of %d files, %d writes of 4 KiB, %d MiB streamed, %d random reads",
				o.creates, o.stats, StatFiles, o.writes, o.sizeMiB, o.reads),
			fmt.Sprintf("listed: %d files of %d bytes, cold by %s", o.files, o.bytes, o.coldness()),
		},
		starters: o.starters,
		prepare:  o.prepare,
		round:    o.round,
	}
}

// coldness says in words what is done before a listing.
func (o locksOptions) coldness() string {
	how := "a new mount and client process on both sides"
	if len(o.mounts) > 0 {
		how = "a new mount of the loopback and nothing for " + o.mounts[0]
		if o.remount != "" {
			how = fmt.Sprintf("a new mount of the loopback and by %q", o.remount)
		}
	}
	if o.cold == coldDrop {
		how += ", then drop_caches"
	}
	return how
}

func (o locksOptions) starters(ctx context.Context, base string) ([]starter, error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	example, err := o.example.path(ctx, base)
	if err != nil {
		return nil, err
	}
	list := []starter{func() (*system, error) { return startLoopback(filepath.Join(base, "loopback"), example) }}
	if o.passthrough {
		list = append(list, func() (*system, error) { return startPassthrough(ctx, filepath.Join(base, "passthrough"), example) })
	}
	if len(o.mounts) > 0 {
		return append(list, func() (*system, error) {
			s, err := startGiven(o.mounts)
			if err == nil && o.remount != "" {
				s.attach = func() error { return shell(ctx, o.remount) }
			}
			return s, err
		}), nil
	}
	return append(list, func() (*system, error) { return startProcesses(ctx, filepath.Join(base, "processes"), binary, 1) }), nil
}

// listed is the folder that is listed.
func listed(s *system) string { return filepath.Join(s.mnts[0], "listed") }

// prepare fills the folder that is listed.
func (o locksOptions) prepare(ctx context.Context, s *system) error {
	if err := os.Mkdir(listed(s), 0o755); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return createFiles(ctx, fileNames(listed(s), "f", o.files), block(o.bytes))
}

// round runs every workload once on a system, the listing first.
func (o locksOptions) round(ctx context.Context, s *system, seed uint64, found results) error {
	if err := o.chill(ctx, s); err != nil {
		return err
	}
	list, err := ListLong(ctx, listed(s), o.files, int64(o.bytes))
	if err != nil {
		return err
	}
	found.add(s.name, Lists, list)
	stats, err := StatCached(ctx, s.mnts[0], o.stats)
	if err != nil {
		return err
	}
	found.add(s.name, Stats, stats)
	path := filepath.Join(s.mnts[0], "small")
	unix.Sync()
	small, err := SmallWrite(ctx, path, o.writes)
	if err != nil {
		return err
	}
	found.add(s.name, SmallWrites, small)
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return o.sizes.round(ctx, s, seed, found)
}

// chill makes the next listing of a system cold. The program ls and what it loads stay warm.
func (o locksOptions) chill(ctx context.Context, s *system) error {
	unix.Sync() // only clean caches are dropped
	if s.attach != nil {
		if err := s.remount(); err != nil {
			return err
		}
	}
	if o.cold != coldDrop {
		return nil
	}
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil {
		return fmt.Errorf("bench: drop the kernel's caches (--cold remount does without): %w", err)
	}
	return shell(ctx, "ls -ld /")
}

// shell runs a command line and returns its output with an error.
func shell(ctx context.Context, line string) error {
	out, err := exec.CommandContext(ctx, "sh", "-c", line).CombinedOutput()
	if err != nil {
		return fmt.Errorf("bench: %s: %w: %s", line, err, strings.TrimSpace(string(out)))
	}
	return nil
}
