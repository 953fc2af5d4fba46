package bench

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// task is what one rank does. It crosses to the rank's process as JSON.
type task struct {
	// Folder, when not empty, is where Count files of Size bytes are created, named after Index. Otherwise File, which is
	// made where it is missing, gets Count records of Size bytes, of which record i starts at (i*Stride+Index)*Size, and
	// then an fsync.
	Folder string `json:"folder,omitempty"`
	File   string `json:"file,omitempty"`
	Count  int    `json:"count"`
	Size   int    `json:"size"`
	Index  int    `json:"index"`
	Stride int    `json:"stride,omitempty"`
}

// The lines between a bench and its ranks.
const (
	lineReady = "ready" // the rank is about to make its first call
	lineGo    = "go"
	lineDone  = "done" // the rank has closed everything
)

// ErrRank is wrapped when a bench and a rank's process do not understand each other.
var ErrRank = errors.New("unexpected line")

// newRank is the command that a rank's process runs: it prints "ready", waits for "go" on its standard input, does what
// its task says, and prints "done".
func newRank() *cobra.Command {
	return &cobra.Command{
		Use:    "rank TASK",
		Short:  "One process of bench hard",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var t task
			if err := json.Unmarshal([]byte(args[0]), &t); err != nil {
				return fmt.Errorf("bench: task of a rank: %w", err)
			}
			return t.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}

// valid says whether a task is one that run can do.
func (t task) valid() error {
	const most = 1 << 30 // bytes of a record, records, ranks: their product stays below 2^63 by the check below
	switch {
	case (t.Folder == "") == (t.File == ""):
		return fmt.Errorf("bench: a rank's task has a folder or a file (got %+v)", t)
	case t.Count < 1 || t.Count > most || t.Size < 0 || t.Size > most || t.Index < 0:
		return fmt.Errorf("bench: a rank's task is out of range: %+v", t)
	case t.File != "" && (t.Size < recordHeader || t.Stride <= t.Index || t.Stride > most || int64(t.Count)*int64(t.Size) > math.MaxInt64/int64(t.Stride)):
		return fmt.Errorf("bench: a rank's records are out of range: %+v", t)
	}
	return nil
}

func (t task) run(ctx context.Context, in io.Reader, out io.Writer) error {
	if err := t.valid(); err != nil {
		return err
	}
	var names []string
	if t.Folder != "" {
		names = fileNames(t.Folder, fmt.Sprintf("r%02d-", t.Index), t.Count)
	}
	content := block(t.Size)
	fmt.Fprintln(out, lineReady)
	if err := expectLine(bufio.NewReader(in), lineGo); err != nil {
		return err
	}
	var err error
	if t.Folder != "" {
		err = createFiles(ctx, names, content)
	} else {
		err = t.writeRecords(ctx, content)
	}
	if err == nil {
		_, err = fmt.Fprintln(out, lineDone)
	}
	return err
}

// A record begins with recordHeader bytes and ends with the same ones:
//
//	0  4  index of the rank, little endian
//	4  4  index of the record among the rank's, little endian
//	8  8  the two again, inverted
const recordHeader = 16

func mark(record []byte, index, i int) {
	h := uint64(uint32(index)) | uint64(uint32(i))<<32
	for _, at := range []int{0, len(record) - recordHeader} {
		binary.LittleEndian.PutUint64(record[at:], h)
		binary.LittleEndian.PutUint64(record[at+8:], ^h)
	}
}

func (t task) writeRecords(ctx context.Context, record []byte) error {
	fd, err := unix.Open(t.File, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return fmt.Errorf("bench: open %s: %w", t.File, err)
	}
	for i := 0; i < t.Count && err == nil; i++ {
		mark(record, t.Index, i)
		at := (int64(i)*int64(t.Stride) + int64(t.Index)) * int64(t.Size)
		for rest := record; len(rest) > 0 && err == nil; {
			if err = ctx.Err(); err != nil {
				break
			}
			var n int
			n, err = unix.Pwrite(fd, rest, at)
			if err == nil && n == 0 {
				err = io.ErrShortWrite
			}
			if err == nil {
				rest, at = rest[n:], at+int64(n)
			}
		}
	}
	if err == nil {
		err = unix.Fsync(fd)
	}
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return fmt.Errorf("bench: records of %s: %w", t.File, err)
	}
	return nil
}

// checkRecords says whether a file holds count records of each of ranks, interleaved, with nothing before or behind.
func checkRecords(ctx context.Context, path string, ranks int, t task) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer f.Close()
	got, want := make([]byte, t.Size), block(t.Size)
	for n := range ranks * t.Count {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if _, err := io.ReadFull(f, got); err != nil {
			return fmt.Errorf("bench: record %d of %s: %w", n, path, err)
		}
		mark(want, n%ranks, n/ranks)
		if string(got) != string(want) {
			return fmt.Errorf("bench: record %d of %s, written by rank %d, is not what it wrote", n, path, n%ranks)
		}
	}
	if n, err := f.Read(got); n != 0 || !errors.Is(err, io.EOF) {
		return fmt.Errorf("bench: %s goes on behind its %d records: %w", path, ranks*t.Count, err)
	}
	return nil
}

// rankProcess is a rank as the bench sees it.
type rankProcess struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	stderr *strings.Builder
}

// expect reads one line.
func (p *rankProcess) expect(want string) error {
	return expectLine(p.out, want)
}

// expectLine reads one line and compares it.
func expectLine(in *bufio.Reader, want string) error {
	line, err := in.ReadString('\n')
	if strings.TrimSpace(line) == want {
		return nil
	}
	if err == nil {
		err = ErrRank
	}
	return fmt.Errorf("bench: %q instead of %q between the bench and a rank: %w", line, want, err)
}

func startRank(ctx context.Context, binary string, t task) (*rankProcess, error) {
	text, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	p := &rankProcess{cmd: exec.CommandContext(ctx, binary, "bench", "rank", string(text)), stderr: &strings.Builder{}}
	p.cmd.Stderr = p.stderr
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		p.in, err = p.cmd.StdinPipe()
	}
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("bench: start a rank: %w", err)
	}
	p.out = bufio.NewReader(out)
	return p, nil
}

// runRanks starts a process for each task, lets them go together when all are ready, and returns the time from there
// until the last is done. It blocks until all have left.
func runRanks(ctx context.Context, tasks []task) (elapsed time.Duration, err error) {
	binary, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var list []*rankProcess
	defer func() {
		if err != nil {
			cancel() // the others wait for a go that does not come
		}
		for _, p := range list {
			_ = p.in.Close()
			if left := p.cmd.Wait(); left != nil {
				err = errors.Join(err, fmt.Errorf("bench: a rank: %w: %s", left, strings.TrimSpace(p.stderr.String())))
			}
		}
	}()
	for _, t := range tasks {
		p, err := startRank(ctx, binary, t)
		if err != nil {
			return 0, err
		}
		list = append(list, p)
	}
	for _, p := range list {
		if err := p.expect(lineReady); err != nil {
			return 0, err
		}
	}
	began := time.Now()
	for _, p := range list {
		if _, err := fmt.Fprintln(p.in, lineGo); err != nil {
			return 0, fmt.Errorf("bench: let a rank go: %w", err)
		}
	}
	for _, p := range list {
		if err := p.expect(lineDone); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}
