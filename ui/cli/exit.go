package cli

import (
	"errors"
	"strings"

	"github.com/strakefs/strake/server/config"
)

// errSilent ends the process with status 1 without a word: what had to be said was said.
var errSilent = errors.New("failed")

// usageError is an error of the command line.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// exitStatus gives the status an error ends with. A tool's error can name its own with ExitCode.
func exitStatus(err error) int {
	var coded interface{ ExitCode() int }
	if errors.As(err, &coded) && coded.ExitCode() > 0 {
		return coded.ExitCode()
	}
	var usage usageError
	// cobra has no type for the error about a command it does not know.
	if errors.As(err, &usage) || errors.Is(err, config.ErrInvalid) || strings.HasPrefix(err.Error(), "unknown command ") {
		return exitUsage
	}
	return exitFailed
}
