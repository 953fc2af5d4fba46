package lctl

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/ui/param"
)

const lctlLong = `lctl shows and sets parameters and statistics of the strake processes of this host.

  lctl get_param osc.*.max_dirty_mb            # of all processes of this host
  lctl get_param -n 'mdt.*.num_exports'        # the value alone
  lctl set_param 'osc.*.max_dirty_mb=64'       # until the process ends
  lctl set_param -P 'osc.*.max_dirty_mb=64'    # for good, on all nodes; on the MGS's node
  lctl list_param -R 'ldlm.namespaces.*'

A name's elements are separated by '.' (or '/'). In patterns '*' and '?' match inside one element, as [a-z] and {a,b} do;
a last element '**' matches all that is below. Quote patterns, or the shell may replace them by names of files.`

// NewCommand returns the lctl command with its verbs. version is what --version prints. They write to the command's
// output and error streams; what went wrong is on the error stream when the command returns, and the error that it
// returns then has no text, only the exit status (ExitCode).
func NewCommand(version string) *cobra.Command {
	h := &host{}
	c := &cobra.Command{
		Use:     "lctl",
		Short:   "show and set parameters and statistics of this host's processes",
		Long:    lctlLong,
		Version: version,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown command %q for %q; see %s --help", args[0], c.CommandPath(), c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.SetVersionTemplate("lctl {{.Version}}\n")
	flags := c.PersistentFlags()
	flags.StringVar(&h.fsname, "fsname", "", "ask only the processes of this file system")
	flags.StringSliceVar(&h.sockets, "sock", nil, "ask only the process of this `socket`, or those of a folder; again and again for several")
	c.AddCommand(newGet(h), newSet(h), newList(h), newDevices(h), newBuildVersion(version))
	c.AddCommand(newRecoveryStatus(h), newAbortRecovery(h), newEvictClient(h), newRecover(h), newActivate(h, true), newActivate(h, false),
		newBackup(h), newRestored(h))
	c.CompletionOptions.DisableDefaultCmd = true
	for _, v := range c.Commands() {
		v.DisableFlagsInUseLine = true // Use has them
	}
	return c
}

func newBuildVersion(version string) *cobra.Command {
	return &cobra.Command{
		Use: "lustre_build_version", Aliases: []string{"version"}, Short: "print the version of this binary",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(c.OutOrStdout(), "strake version: %s\n", version)
			return err
		},
	}
}

// ended is the error of a verb whose messages are out already: it carries the exit status alone.
type ended struct{ code int }

func (e ended) Error() string { return "" }
func (e ended) ExitCode() int { return e.code }

// session is one run of a verb.
type session struct {
	verb  string
	host  *host
	procs []*param.Process
	out   *bufio.Writer
	err   io.Writer
	code  int // of the first error
}

// run makes a verb's function a cobra one. It connects to the host's processes first.
func run(h *host, fn func(s *session, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		s := &session{verb: c.Name(), host: h, out: bufio.NewWriter(c.OutOrStdout()), err: c.ErrOrStderr()}
		err := s.connected(c.Context(), func() error { return fn(s, args) })
		if bad := s.out.Flush(); bad != nil && err == nil {
			err = fmt.Errorf("writing the output: %w", bad)
		}
		if err != nil && !errors.As(err, new(ended)) {
			s.fail(codeOf(err), "%v", err)
		}
		if s.code != 0 {
			return ended{s.code}
		}
		return nil
	}
}

// codeOf is the exit status of an error: the number of its kind where that is an errno, and 1 for the protocol's own.
func codeOf(err error) int {
	if k := status.Of(err); k < 256 {
		return int(k)
	}
	return 1
}

// fail reports an error in Lustre's form and remembers the first one's status. What is in the output's buffer goes out
// before it, so that both read in order on a terminal.
func (s *session) fail(code int, format string, args ...any) {
	if s.code == 0 {
		s.code = code
	}
	s.say("error: %s: %s", s.verb, fmt.Sprintf(format, args...))
}

// say writes a line to the error stream.
func (s *session) say(format string, args ...any) {
	_ = s.out.Flush() // an error comes back from the last flush
	fmt.Fprintln(s.err, printable(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " ")))
}

func (s *session) printf(format string, args ...any) {
	fmt.Fprintf(s.out, format, args...) // bufio keeps the first error for Flush
}

// printable replaces what a terminal would act on: values hold words of other hosts.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return '?'
		}
		return r
	}, text)
}

// usagef is an error of the command line.
func usagef(format string, args ...any) error {
	return status.Errorf(status.Invalid, format, args...)
}
