package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

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
	cmd.AddCommand(newFoundation())
	return cmd
}

// foundationOptions are the flags of `strake bench foundation`.
type foundationOptions struct {
	dir      string // folder on the disk to measure
	module   string // source tree to build the loopback in
	loopback string // built loopback, empty to build it
	rounds   int
	files    int   // created per round
	sizeMiB  int64 // of the streamed file
	reads    int   // random reads per round
	check    bool  // fail when a bar is missed
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
			return o.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.dir, "dir", "", "folder on the disk to measure (default: a new one in the temporary folder)")
	f.StringVar(&o.module, "module", ".", "source tree to build go-fuse's loopback in")
	f.StringVar(&o.loopback, "loopback", "", "built loopback binary (default: build it)")
	f.IntVar(&o.rounds, "rounds", 5, "rounds; figures are medians over them")
	f.IntVar(&o.files, "files", 10_000, "files created in a round")
	f.Int64Var(&o.sizeMiB, "size", 512, "streamed file in MiB")
	f.IntVar(&o.reads, "reads", 20_000, "random reads in a round")
	f.BoolVar(&o.check, "check", false, "exit status 1 when a bar is missed")
	return cmd
}

func (o foundationOptions) run(ctx context.Context, out io.Writer) (err error) {
	if o.rounds < 1 || o.files < 1 || o.sizeMiB < 1 || o.reads < 1 {
		return fmt.Errorf("bench: rounds, files, size and reads are at least 1 (got %d, %d, %d, %d)", o.rounds, o.files, o.sizeMiB, o.reads)
	}
	base, err := os.MkdirTemp(o.dir, "strake-bench-")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	list, err := o.systems(ctx, base)
	defer func() {
		for _, s := range list {
			err = errors.Join(err, s.close())
		}
		if err == nil {
			err = os.RemoveAll(base) // no mount is below it any more
		}
	}()
	if err != nil {
		return err
	}
	o.header(ctx, out, base)
	found := results{}
	for round := range o.rounds {
		for i := range list { // who comes first changes with the round
			s := list[(i+round)%len(list)]
			if err := o.round(ctx, s, uint64(round), found); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	missed, err := found.print(out, []string{loopback, passthrough, processes, single}, loopback, processes)
	if err == nil && o.check && len(missed) > 0 {
		err = fmt.Errorf("bench: below the bar: %v", missed)
	}
	return err
}

// systems starts all; on an error the list holds what has been started.
func (o foundationOptions) systems(ctx context.Context, base string) (list []*system, err error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	example := o.loopback
	if example == "" {
		if example, err = buildLoopback(ctx, o.module, base); err != nil {
			return nil, err
		}
	}
	for _, start := range []func() (*system, error){
		func() (*system, error) { return startLoopback(ctx, filepath.Join(base, "loopback"), example) },
		func() (*system, error) { return startPassthrough(ctx, filepath.Join(base, "passthrough"), example) },
		func() (*system, error) { return startProcesses(ctx, filepath.Join(base, "processes"), binary) },
		func() (*system, error) { return startAll(ctx, filepath.Join(base, "all"), binary) },
	} {
		s, err := start()
		if s != nil {
			list = append(list, s)
		}
		if err != nil {
			return list, err
		}
	}
	return list, nil
}

// round runs every workload once on a system. Before each, dirty pages of the ones before are written out, so that a
// system does not pay for the writes of another.
func (o foundationOptions) round(ctx context.Context, s *system, seed uint64, found results) error {
	path := filepath.Join(s.mnt, "stream")
	unix.Sync()
	created, err := CreateMany(ctx, s.mnt, o.files)
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

// version is what the measured binary says of itself, its commit among it.
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

// header states commit, machine, nodes, options and rounds.
func (o foundationOptions) header(ctx context.Context, w io.Writer, base string) {
	var uts unix.Utsname
	_ = unix.Uname(&uts)
	var fs unix.Statfs_t
	_ = unix.Statfs(base, &fs)
	fmt.Fprintf(w, "%s, %s, Linux %s, %d CPUs, disk's file system type %#x, %s\n", version(ctx), runtime.Version(),
		unix.ByteSliceToString(uts.Release[:]), runtime.NumCPU(), fs.Type, time.Now().UTC().Format(time.RFC3339))
	fmt.Fprintf(w, "1 MDT, 2 OSTs, default layout; medians of %d rounds in turn; %d files, %d MiB streamed, %d random reads a round\n",
		o.rounds, o.files, o.sizeMiB, o.reads)
	fmt.Fprintln(w, "ratio: to the loopback without FUSE passthrough; spread and bar: of strake in four processes")
	fmt.Fprintln(w, strings.Repeat("-", 100))
}
