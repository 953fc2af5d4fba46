package check

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/strakefs/strake/server/check"
	"github.com/strakefs/strake/server/config"
)

// Exit statuses of check.
const (
	exitClean    = 0
	exitLeft     = 1
	exitRepaired = 2
	exitFailed   = 4
)

const checkLong = `check holds the records of a file system's targets against each other: names and inodes, link counts, folders' counts, parent links,
files and the objects that they list, sizes, owners, usage, the logs between MDT and OSTs.

  strake check --data /srv/mdt --data /srv/ost0 --data /srv/ost1             # stopped targets: only looks
  strake check --data /srv/strake --repair                                   # all targets below a base folder, and mends
  strake check --mgs mds1:9880                                               # a running file system: only looks

Data folders are read only without --repair, and one in use is refused. With folders of OSTs alone, or some of them only, what needs
the others is left out, and the last line says so.

A running file system is looked at again until what is wrong is certain: work that goes on gives no false alarm.

--repair destroys nothing that holds bytes: inodes without a name and objects without a file go into /lost+found of the file
system, under their FIDs. Each repair is one transaction; run it again after an interruption.

After a crash start the targets first: their clients bring back what they had not lost. What they may still bring back is
counted as waiting, and never touched.

Each finding is one line: kind, target, FID or object, path, what is wrong, what was done. The kinds are explained in docs/check.md.

Exit status: 0 nothing found, 1 findings are left, 2 all that was found is repaired, 4 the check could not be made.`

// ended is an error whose words are out: it carries the exit status.
type ended struct {
	code int
	err  error
}

func (e ended) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e ended) Unwrap() error { return e.err }
func (e ended) ExitCode() int { return e.code }

// sources are the flags that say what is looked at.
type sources struct {
	data        []string
	mgs, fsname string
	mount       string
	insecure    bool
}

// NewCommand returns the check command.
func NewCommand() *cobra.Command {
	var (
		from           sources
		repair, asJSON bool
	)
	c := &cobra.Command{
		Use:   "check --data DIR [--data DIR]... [--repair] | --mgs HOST[:PORT] | --mount DIR",
		Short: "check the records of a file system, and mend them",
		Long:  checkLong,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runCheck(cmd, &from, repair, asJSON)
		},
	}
	c.DisableFlagsInUseLine = true
	f := c.Flags()
	f.StringArrayVar(&from.data, "data", nil, "data `folder` of a stopped target, or a base folder of several; again and again")
	f.StringVar(&from.mgs, "mgs", "", "`address` of the MGS of a running file system")
	f.StringVar(&from.fsname, "fsname", "strake", "name of the file system, for --mgs")
	f.StringVar(&from.mount, "mount", "", "mount `point` of a running file system on this host")
	f.BoolVar(&from.insecure, "insecure", false, "ask other hosts over plain TCP")
	f.BoolVar(&repair, "repair", false, "mend what is found")
	f.BoolVar(&asJSON, "json", false, "print one JSON object a line, the summary last")
	return c
}

func runCheck(cmd *cobra.Command, from *sources, repair, asJSON bool) error {
	set, err := from.open(cmd, repair)
	if err != nil {
		return ended{exitFailed, err}
	}
	out := bufio.NewWriter(cmd.OutOrStdout())
	report := func(f check.Finding) { printFinding(out, &f) }
	if asJSON {
		report = func(f check.Finding) { printJSON(out, f) }
	}
	sum, err := set.Check(cmd.Context(), check.Options{Repair: repair, Report: report})
	if bad := set.Close(); err == nil {
		err = bad
	}
	if err == nil && asJSON {
		printJSON(out, struct {
			Summary check.Summary `json:"summary"`
		}{sum})
	} else if err == nil {
		printSummary(out, &sum)
	}
	if bad := out.Flush(); err == nil && bad != nil {
		err = fmt.Errorf("writing the report: %w", bad)
	}
	switch {
	case err != nil:
		return ended{exitFailed, err}
	case sum.Left > 0:
		return ended{code: exitLeft}
	case sum.Findings > 0:
		return ended{code: exitRepaired}
	}
	return nil
}

// open opens what the flags name.
func (s *sources) open(cmd *cobra.Command, write bool) (*check.Set, error) {
	given := 0
	for _, is := range []bool{len(s.data) > 0, s.mgs != "", s.mount != ""} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		return nil, fmt.Errorf("one of --data, --mgs and --mount says what is checked; see %s --help", cmd.CommandPath())
	case len(s.data) > 0:
		return check.Open(s.data, write)
	case write:
		return nil, errors.New("a running file system is not repaired: stop its targets and give their data folders with --data")
	}
	mgs, fsname := s.mgs, s.fsname
	if s.mount != "" {
		var err error
		if mgs, fsname, err = mountedFrom(s.mount); err != nil {
			return nil, err
		}
	}
	var addresses []string
	for _, a := range strings.Split(mgs, ",") {
		address, err := config.ParseAddress(a)
		if err != nil {
			return nil, fmt.Errorf("--mgs: %w", err)
		}
		if !s.insecure && !config.IsLoopback(address) {
			return nil, fmt.Errorf("%s is another host, and what is asked goes there unprotected: give --insecure on a network that you trust", address)
		}
		addresses = append(addresses, address)
	}
	return check.Connect(cmd.Context(), check.Remote{MGS: addresses, FSName: fsname})
}

// mountedFrom finds the MGS and the file system's name of a mount on this host, from the kernel's table alone: a mount whose servers
// are away would keep whoever touches it.
func mountedFrom(dir string) (mgs, fsname string, err error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", "", err
	}
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	source := ""
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) > 2 && unescape.Replace(fields[1]) == abs && fields[2] == "fuse.strake" {
			source = unescape.Replace(fields[0])
		}
	}
	i := strings.Index(source, ":/")
	if i < 0 {
		return "", "", fmt.Errorf("%s is no mount point of a strake file system", abs)
	}
	mgs, fsname = source[:i], source[i+2:]
	fsname, _, _ = strings.Cut(fsname, "/")
	if mgs == "local" {
		mgs = "127.0.0.1" // Its own process; it listens on the port that is the default.
	}
	return mgs, fsname, nil
}

// printJSON prints one line of JSON. Writing errors come back from the last flush.
func printJSON(w io.Writer, v any) {
	b, err := json.Marshal(v)
	if err == nil {
		_, _ = w.Write(append(b, '\n'))
	}
}

// printFinding prints a finding on one line.
func printFinding(w io.Writer, f *check.Finding) {
	words := []string{f.Kind, f.Target}
	if f.Object != "" {
		words = append(words, "object "+f.Object)
	}
	if f.FID != "" {
		words = append(words, f.FID)
	}
	if f.Path != "" {
		words = append(words, visible(f.Path))
	}
	line := strings.Join(words, " ") + ": " + visible(f.Detail)
	switch {
	case f.Repaired:
		line += " [repaired: " + visible(f.Done) + "]"
	case f.Problem != "":
		line += " [not repaired: " + visible(f.Problem) + "]"
	case f.Done != "":
		line += " [still there after: " + visible(f.Done) + "]"
	}
	fmt.Fprintln(w, line)
}

// visible is text with what a terminal would act on written out.
func visible(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return s
	}
	q := strconv.Quote(s)
	return q[1 : len(q)-1]
}

func printSummary(w io.Writer, s *check.Summary) {
	fmt.Fprintf(w, "%s: %d inodes, %d files, %d objects on %d targets", s.FSName, s.Inodes, s.Files, s.Objects, len(s.Targets))
	switch {
	case s.Findings == 0:
		fmt.Fprint(w, ": nothing found")
	case s.Repair:
		fmt.Fprintf(w, ": %d found, %d repaired, %d left", s.Findings, s.Findings-s.Left, s.Left)
	default:
		fmt.Fprintf(w, ": %d found", s.Findings)
	}
	fmt.Fprintln(w)
	if s.Waiting > 0 {
		fmt.Fprintf(w, "%d records wait for clients that have still to come back: start the targets, let recovery end, check again\n", s.Waiting)
	}
	if s.Spare > 0 {
		fmt.Fprintf(w, "%d objects were made and never used: no harm\n", s.Spare)
	}
	if s.Kept > 0 {
		fmt.Fprintf(w, "%d objects of no file are kept since the MDT was restored: lctl restored says what shall be\n", s.Kept)
	}
	if s.Busy > 0 {
		fmt.Fprintf(w, "%d records changed too often to be judged: check again when there is less load\n", s.Busy)
	}
	if len(s.Missing) > 0 {
		fmt.Fprintf(w, "not looked at: %s\n", strings.Join(s.Missing, ", "))
	}
}
