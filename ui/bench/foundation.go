package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// NewCommand returns `strake bench` with its experiments as subcommands.
func NewCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure whole systems through their mounts",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newFoundation(), newLocks(), newHard(), newCOS(), newRank())
	return cmd
}

// The workloads of the foundation.
const (
	Creates    Workload = "file creates"
	Writes     Workload = "1 MiB streaming writes"
	WritesSync Workload = "1 MiB writes and fsync"
	Reads      Workload = "1 MiB streaming reads"
	Random     Workload = "4 KiB direct random reads"
)

// foundationBars are what the foundation asks of four processes beside the loopback.
func foundationBars() []bar {
	return []bar{{Creates, 1.0, false}, {Writes, 0.6, true}, {WritesSync, 0, true}, {Reads, 0.6, true}, {Random, 0.6, false}}
}

// sizes are how much the workloads of one client do in a round.
type sizes struct {
	creates int   // files created
	sizeMiB int64 // of the streamed file
	reads   int   // random reads
}

// foundationOptions are the flags of `strake bench foundation`.
type foundationOptions struct {
	common
	example
	sizes
}

func newFoundation() *cobra.Command {
	o := foundationOptions{}
	cmd := &cobra.Command{
		Use:   "foundation",
		Short: "Compare one mount with go-fuse's loopback on the same disk",
		Long: `Starts strake as one MDS, two OSS and one client (TCP on loopback), strake as one process, and go-fuse's loopback
example, all on one disk. Runs each workload on each in turn, several rounds, and prints medians, ratios to the loopback and
the bars that the four processes have to reach. The loopback runs twice: without FUSE passthrough, which is what ratios are
taken of, and with it where the kernel has it (its reads and writes then never reach the process). Needs root, /dev/fuse and
setpriv.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := atLeast1(map[string]int64{"rounds": int64(o.rounds), "files": int64(o.creates), "size": o.sizeMiB, "reads": int64(o.reads)})
			if err != nil {
				return err
			}
			return o.experiment().run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	o.common.flags(f)
	o.example.flags(f)
	f.IntVar(&o.creates, "files", 10_000, "files created in a round")
	f.Int64Var(&o.sizeMiB, "size", 512, "streamed file in MiB")
	f.IntVar(&o.reads, "reads", 20_000, "random reads in a round")
	return cmd
}

func (o foundationOptions) experiment() experiment {
	return experiment{
		common:  o.common,
		contest: contest{[]string{loopback, passthrough, processes, single}, loopback, processes, foundationBars()},
		name:    "foundation",
		conditions: []string{fmt.Sprintf("1 MDT, 2 OSTs, default layout; %d files, %d MiB streamed, %d random reads a round",
			o.creates, o.sizeMiB, o.reads)},
		starters: o.starters,
		round:    o.sizes.round,
	}
}

func (o foundationOptions) starters(ctx context.Context, base string) ([]starter, error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	example, err := o.example.path(ctx, base)
	if err != nil {
		return nil, err
	}
	return []starter{
		func() (*system, error) { return startLoopback(filepath.Join(base, "loopback"), example) },
		func() (*system, error) { return startPassthrough(ctx, filepath.Join(base, "passthrough"), example) },
		func() (*system, error) { return startProcesses(ctx, filepath.Join(base, "processes"), binary, 1) },
		func() (*system, error) { return startAll(ctx, filepath.Join(base, "all"), binary) },
	}, nil
}

// round runs every workload once on a system. Before each that writes, dirty pages of the ones before are written out,
// so that a system does not pay for the writes of another.
func (o sizes) round(ctx context.Context, s *system, seed uint64, found results) error {
	path := filepath.Join(s.mnts[0], "stream")
	unix.Sync()
	created, err := CreateMany(ctx, s.mnts[0], o.creates)
	if err != nil {
		return err
	}
	found.add(s.name, Creates, created)
	unix.Sync()
	written, synced, err := StreamWrite(ctx, path, o.sizeMiB<<20)
	if err != nil {
		return err
	}
	found.add(s.name, Writes, written)
	found.add(s.name, WritesSync, synced)
	read, err := StreamRead(ctx, path)
	if err != nil {
		return err
	}
	found.add(s.name, Reads, read)
	random, err := RandomRead(ctx, path, o.reads, seed)
	if err != nil {
		return err
	}
	found.add(s.name, Random, random)
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}
