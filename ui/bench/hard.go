package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// The workloads of the hard patterns.
const (
	HardRecords Workload = "47008-byte records"
	HardFiles   Workload = "3901-byte file creates"
	EasyRecords Workload = "the same beside 1 MiB writes"
	EasyFiles   Workload = "the same beside empty files"
)

// The columns of the report: where the ranks work.
const (
	apart    = "own files, folders"
	together = "one shared"
)

// Sizes of IO500 (https://io500.org/rules-submission, and the ior-hard and mdtest-hard sections of its configuration).
const (
	hardRecord = 47008 // bytes; a multiple of nothing that a file system likes
	hardFile   = 3901  // bytes
	hardRanks  = 4
)

// hardBars are what the ranks have to reach together beside what they reach apart.
func hardBars() []bar {
	return []bar{{HardRecords, 0.4, true}, {HardFiles, 0.7, false}, {EasyRecords, 0, true}, {EasyFiles, 0, false}}
}

// hardOptions are the flags of `strake bench hard`.
type hardOptions struct {
	common
	records int // of a rank in a round
	files   int // of a rank in a round
	mounts  []string
}

func newHard() *cobra.Command {
	o := hardOptions{}
	cmd := &cobra.Command{
		Use:   "hard",
		Short: "Compare four processes in one file or folder with each in its own",
		Long: `Starts strake as one MDS, two OSS and two clients (TCP on loopback) and runs IO500's hard patterns by four processes, two
on each mount. Records: 47,008 bytes each, interleaved so that neighbours in the file come from different mounts, into one
shared file; and one behind the other into a file of each process. Files: 3,901 bytes each, created in one shared folder, and
in a folder of each process. A record counts when its process has called fsync, a file when it is closed; the time is from the
start of the first process to the end of the last. After each run all records are read and compared, and all files listed with
their sizes, through the second mount.

The bars are for the same sizes together and apart. The last two lines compare with what IO500 calls easy (own files by 1 MiB
writes, empty files in own folders), as the ratios in its public list do.

--mounts DIR,DIR measures a file system that is mounted already, twice.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(o.mounts) != 0 && len(o.mounts) != 2 {
				return fmt.Errorf("bench: --mounts takes two folders (got %d)", len(o.mounts))
			}
			err := atLeast1(map[string]int64{"rounds": int64(o.rounds), "records": int64(o.records), "files": int64(o.files)})
			if err != nil {
				return err
			}
			return o.experiment().run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	o.common.flags(f)
	f.IntVar(&o.records, "records", 4000, "records of a process in a round")
	f.IntVar(&o.files, "files", 2500, "files of a process in a round")
	f.StringSliceVar(&o.mounts, "mounts", nil, "two folders that show one file system mounted already, to measure in place of strake")
	return cmd
}

func (o hardOptions) experiment() experiment {
	what := "1 MDT, 2 OSTs, default layout, two clients"
	if len(o.mounts) > 0 {
		what = fmt.Sprintf("mounted on %s and %s", o.mounts[0], o.mounts[1])
	}
	return experiment{
		common:  o.common,
		contest: contest{[]string{apart, together}, apart, together, hardBars()},
		name:    "hard",
		conditions: []string{fmt.Sprintf("%s; %d processes, neighbours on different mounts; %d records and %d files of each a round",
			what, hardRanks, o.records, o.files)},
		starters: o.starters,
		round:    o.round,
	}
}

func (o hardOptions) starters(ctx context.Context, base string) ([]starter, error) {
	if len(o.mounts) > 0 {
		return []starter{func() (*system, error) { return startGiven(o.mounts) }}, nil
	}
	binary, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	return []starter{func() (*system, error) { return startProcesses(ctx, filepath.Join(base, "processes"), binary, 2) }}, nil
}

// pattern is one run of all ranks.
type pattern struct {
	files  bool // creates files; otherwise writes records
	shared bool
	count  int // of a rank
	size   int // bytes of a record or file
}

// bytes is what all ranks write.
func (p pattern) bytes() int64 { return int64(p.count) * int64(p.size) * hardRanks }

// tasks makes the folders below folder, a name that every mount shows, and says what each rank does there. Ranks take
// turns at the mounts.
func (p pattern) tasks(mounts []string, folder string) ([]task, error) {
	var list []task
	for rank := range hardRanks {
		t := task{Count: p.count, Size: p.size, Index: rank, Stride: hardRanks}
		at := filepath.Join(mounts[rank%len(mounts)], folder)
		switch {
		case p.files && p.shared:
			t.Folder = at
		case p.files:
			t.Folder = filepath.Join(at, fmt.Sprintf("rank%d", rank))
			if err := os.Mkdir(t.Folder, 0o755); err != nil {
				return nil, fmt.Errorf("bench: %w", err)
			}
		case p.shared:
			t.File = filepath.Join(at, "shared")
		default:
			t.File, t.Index, t.Stride = filepath.Join(at, fmt.Sprintf("rank%d", rank)), 0, 1
		}
		list = append(list, t)
	}
	return list, nil
}

// run runs the ranks in a fresh folder and checks what they have written. Records are removed; files stay, as those of
// CreateMany. The rate counts bytes of records, or files.
func (p pattern) run(ctx context.Context, mounts []string) (Rate, error) {
	top, err := os.MkdirTemp(mounts[0], "hard-")
	if err != nil {
		return Rate{}, fmt.Errorf("bench: %w", err)
	}
	if !p.files {
		defer os.RemoveAll(top)
	}
	tasks, err := p.tasks(mounts, filepath.Base(top))
	if err != nil {
		return Rate{}, err
	}
	unix.Sync() // a pattern does not pay for the writes of the one before
	elapsed, err := runRanks(ctx, tasks)
	if err != nil {
		return Rate{}, err
	}
	if err := p.verify(ctx, filepath.Join(mounts[len(mounts)-1], filepath.Base(top)), tasks); err != nil {
		return Rate{}, err
	}
	if p.files {
		return Rate{Count: int64(p.count) * hardRanks, Elapsed: elapsed}, nil
	}
	return Rate{Count: p.bytes(), Elapsed: elapsed}, nil
}

// verify checks through one mount, which shows the run's folder at top, what all ranks have written through theirs.
func (p pattern) verify(ctx context.Context, top string, tasks []task) error {
	if !p.files && p.shared {
		return checkRecords(ctx, filepath.Join(top, "shared"), hardRanks, tasks[0])
	}
	for rank, t := range tasks {
		own := filepath.Join(top, fmt.Sprintf("rank%d", rank))
		var err error
		switch {
		case !p.files:
			err = checkRecords(ctx, own, 1, t)
		case p.shared:
			if rank == 0 {
				err = checkFiles(top, p.count*hardRanks, p.size)
			}
		default:
			err = checkFiles(own, p.count, p.size)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkFiles says whether a folder holds count files of size bytes each, and nothing else.
func checkFiles(folder string, count, size int) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if len(entries) != count {
		return fmt.Errorf("bench: %s has %d files instead of %d", folder, len(entries), count)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		if !info.Mode().IsRegular() || info.Size() != int64(size) {
			return fmt.Errorf("bench: %s in %s: mode %v, %d bytes instead of %d", e.Name(), folder, info.Mode(), info.Size(), size)
		}
	}
	return nil
}

// round runs every pattern once. Which of together and apart comes first changes with the round.
func (o hardOptions) round(ctx context.Context, s *system, seed uint64, found results) error {
	blocks := max(1, o.records*hardRecord/StreamBlock) // as many bytes as the records have
	runs := []struct {
		workload Workload
		column   string
		pattern  pattern
	}{
		{HardRecords, together, pattern{shared: true, count: o.records, size: hardRecord}},
		{HardRecords, apart, pattern{count: o.records, size: hardRecord}},
		{EasyRecords, apart, pattern{count: blocks, size: StreamBlock}},
		{HardFiles, together, pattern{files: true, shared: true, count: o.files, size: hardFile}},
		{HardFiles, apart, pattern{files: true, count: o.files, size: hardFile}},
		{EasyFiles, apart, pattern{files: true, count: o.files}},
	}
	for i := range runs {
		r := runs[(i+int(seed%uint64(len(runs))))%len(runs)]
		rate, err := r.pattern.run(ctx, s.mnts)
		if err != nil {
			return fmt.Errorf("%s, %s: %w", r.workload, r.column, err)
		}
		found.add(r.column, r.workload, rate)
		switch { // the shared figure is one for both lines
		case r.workload == HardRecords && r.column == together:
			found.add(together, EasyRecords, rate)
		case r.workload == HardFiles && r.column == together:
			found.add(together, EasyFiles, rate)
		}
	}
	return nil
}
