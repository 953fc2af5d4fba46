package lfs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// Exit statuses.
const (
	exitFailed = 1
	exitUsage  = 2
)

// NewCommand returns the lfs command with its verbs. They write to the command's output and error streams; what went
// wrong with a path is on the error stream when the command returns, and the error that it returns then has no text, only
// the exit status (ExitCode).
func NewCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "lfs",
		Short: "show and set striping, space and the like of a mounted file system",
		Long: `lfs shows and sets how files are striped over OSTs, and what a mounted file system is made of.

It works through the mount, as the user who runs it, and needs no server's address.
Sizes take the suffixes k, m, g, t (or K, M, G, T), powers of 1024. Numbers of stripes and OST
indexes are decimal; -1 means all OSTs where a count is meant and "no OST in particular" where an
index is meant.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown command %q for %q; see %s --help", args[0], c.CommandPath(), c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(
		newSetstripe(), newGetstripe(), newDf(), newPath2fid(), newFid2path(), newTargets("osts"), newTargets("mdts"),
		newMkdir(), newCheck(),
	)
	c.CompletionOptions.DisableDefaultCmd = true
	for _, v := range c.Commands() {
		v.DisableFlagsInUseLine = true // Use has them
	}
	return c
}

// ended is the error of a verb whose messages are out already: it carries the exit status alone.
type ended struct{ code int }

func (e ended) Error() string { return "" }
func (e ended) ExitCode() int { return e.code }

// session is one run of a verb.
type session struct {
	verb   string
	out    *bufio.Writer
	err    io.Writer
	failed bool
}

// usage is an error of the command line.
type usage struct{ text string }

func (u usage) Error() string { return u.text }

func usagef(format string, args ...any) error { return usage{fmt.Sprintf(format, args...)} }

// run makes a verb's function a cobra one: it checks flags that are refused, then counts arguments (most below 0: any
// number), and turns what comes back into messages and an exit status.
func run(least, most int, fn func(s *session, args []string) error) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		s := &session{verb: c.Name(), out: bufio.NewWriter(c.OutOrStdout()), err: c.ErrOrStderr()}
		err := refuse(c)
		switch {
		case err != nil:
		case len(args) < least:
			err = usagef("too few arguments; usage: %s", c.UseLine())
		case most >= 0 && len(args) > most:
			err = usagef("unexpected argument %s; usage: %s", safe(args[most]), c.UseLine())
		default:
			err = fn(s, args)
		}
		if bad := s.out.Flush(); bad != nil && err == nil {
			err = fmt.Errorf("writing the output: %w", bad)
		}
		var u usage
		switch {
		case errors.As(err, &u):
			s.say("", err)
			return ended{exitUsage}
		case err != nil:
			s.say("", err)
			return ended{exitFailed}
		case s.failed:
			return ended{exitFailed}
		}
		return nil
	}
}

// fail reports that a path failed; the verb goes on with the next.
func (s *session) fail(path string, err error) {
	s.failed = true
	s.say(safe(path)+": ", err)
}

// say writes one error line, with what it is about before the reason. What is in the output's buffer goes out before it, so that both read in order on a terminal;
// an error of that comes back from the last flush.
func (s *session) say(about string, err error) {
	_ = s.out.Flush()
	fmt.Fprintf(s.err, "lfs %s: %s%s\n", s.verb, about, reason(err))
}

func (s *session) printf(format string, args ...any) {
	fmt.Fprintf(s.out, format, args...) // bufio keeps the first error for Flush
}

// reason is an error's text without the call and the path, which the line has already.
func reason(err error) string {
	if p, ok := err.(*os.PathError); ok {
		err = p.Err
	}
	return strings.Map(printable, err.Error())
}
