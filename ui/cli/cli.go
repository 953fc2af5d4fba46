package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/strakefs/strake/server/config"
)

// Exit statuses.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// Node is a running node, as server.Node is.
type Node interface {
	// Wait blocks until the node has stopped, by Close or because a part of it failed, and returns why.
	Wait() error
	// Close stops it: unmounts, flushes, leaves. ctx bounds how long that may take.
	Close(ctx context.Context) error
}

// Deps is what the binary is put together from.
type Deps struct {
	// Args are the process's arguments, its name first (os.Args).
	Args []string
	// Environ is the process's environment as os.Environ gives it.
	Environ []string
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer

	// Version is what strake version prints; empty: what the build information says.
	Version string

	// Start starts a node. When ctx ends before it has started, it undoes what it has done and returns ctx's error.
	Start func(ctx context.Context, cfg config.Config, log *slog.Logger) (Node, error)

	// Tools are commands beside the root, named lfs, lctl and bench.
	Tools []*cobra.Command
}

// Main runs the command line and returns the process's exit status. It blocks until the command is done. A link named
// after a tool, or mount.strake, acts as that tool.
func Main(deps Deps) int {
	args := deps.Args
	name := "strake"
	if len(args) > 0 {
		name, args = filepath.Base(args[0]), args[1:]
	}
	err := run(deps, name, args)
	if err == nil {
		return exitOK
	}
	// A tool that has said everything itself returns an error without words.
	if msg := oneLine(err.Error()); msg != "" && !errors.Is(err, errSilent) {
		fmt.Fprintf(deps.Stderr, "%s: %s\n", linkName(name), msg)
	}
	return exitStatus(err)
}

// run runs the command that the link's name and the arguments ask for.
func run(deps Deps, name string, args []string) error {
	switch name {
	case mountHelperName:
		return mountHelper(deps, args)
	case "lfs", "lctl":
		for _, tool := range deps.Tools {
			if tool.Name() == name {
				return execute(deps, tool, args)
			}
		}
		return usageError{fmt.Errorf("this binary has no tool of that name; run strake --help for what it has")}
	}
	return execute(deps, newRoot(deps), args)
}

// execute runs a command tree on the process's streams.
func execute(deps Deps, cmd *cobra.Command, args []string) error {
	cmd.SetArgs(args)
	cmd.SetIn(deps.Stdin)
	cmd.SetOut(deps.Stdout)
	cmd.SetErr(deps.Stderr)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; see %s --help", err, c.CommandPath())}
	})
	return cmd.Execute()
}

// linkName is the name that leads an error: the tool's for a link, the binary's otherwise.
func linkName(name string) string {
	switch name {
	case mountHelperName, "lfs", "lctl":
		return name
	}
	return "strake"
}

// oneLine folds a message to one line.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
