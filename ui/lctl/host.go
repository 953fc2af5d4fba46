package lctl

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/ui/param"
)

// host is which processes are asked.
type host struct {
	fsname  string
	sockets []string // files and folders; none: all of this host
}

// paths are the sockets to try, each once: those that the user named, then those that were found.
func (h *host) paths() (named, found []string) {
	folders := param.Folders()
	if len(h.sockets) > 0 {
		folders = nil
	}
	for _, s := range h.sockets {
		if fi, err := os.Stat(s); err == nil && fi.IsDir() {
			folders = append(folders, s)
		} else if !slices.Contains(named, s) {
			named = append(named, s)
		}
	}
	found = slices.DeleteFunc(param.Sockets(folders), func(s string) bool { return slices.Contains(named, s) })
	return named, found
}

// dialed is what came of one socket.
type dialed struct {
	p   *param.Process
	err error
}

// connected runs fn with all processes that answer. One that is gone is passed over, of one that does not answer it is
// said; it fails when there is nobody to ask.
func (s *session) connected(ctx context.Context, fn func() error) error {
	if ctx == nil {
		ctx = context.Background()
	}
	named, found := s.host.paths()
	paths := slices.Concat(named, found)
	results := make([]dialed, len(paths))
	var wg sync.WaitGroup
	for i, path := range paths {
		wg.Go(func() { results[i].p, results[i].err = param.Dial(ctx, path) })
	}
	wg.Wait()
	refused := 0
	for i, r := range results {
		switch {
		case r.err == nil:
			defer r.p.Close()
			if s.host.fsname == "" || r.p.FSName == s.host.fsname {
				s.procs = append(s.procs, r.p)
			}
		case errors.Is(r.err, fs.ErrPermission) || errors.Is(r.err, status.Access):
			refused++
		case i < len(named) || !param.Gone(r.err):
			s.fail(codeOf(r.err), "%s: %v", paths[i], r.err)
		}
	}
	if len(s.procs) == 0 {
		return s.nobody(refused, len(results))
	}
	if refused > 0 {
		s.say("note: %d more processes belong to other users; run as root to see them", refused)
	}
	slices.SortFunc(s.procs, func(a, b *param.Process) int { return strings.Compare(a.Path, b.Path) })
	return fn()
}

func (s *session) nobody(refused, found int) error {
	switch {
	case refused > 0:
		return status.Errorf(status.Access, "the strake processes of this host are another user's: run as root")
	case s.code != 0:
		return ended{s.code} // what was wrong with the sockets has been said
	case s.host.fsname != "" && found > 0:
		return status.Errorf(status.NoDevice, "no process of this host belongs to file system %q", s.host.fsname)
	}
	return status.Errorf(status.NoDevice, "no strake process runs on this host: start one, or name its socket with --sock")
}

// ask runs fn for every process at once and returns the nodes of all. A process that does not answer is reported, and so
// is a pattern that all refuse, once.
func (s *session) ask(fn func(p *param.Process) ([]param.Node, error)) []param.Node {
	nodes := make([][]param.Node, len(s.procs))
	errs := make([]error, len(s.procs))
	var wg sync.WaitGroup
	for i, p := range s.procs {
		wg.Go(func() { nodes[i], errs[i] = fn(p) })
	}
	wg.Wait()
	var said []string
	for _, err := range errs {
		if err != nil && !slices.Contains(said, err.Error()) {
			said = append(said, err.Error())
			s.fail(codeOf(err), "%v", err)
		}
	}
	return slices.Concat(nodes...)
}

// missing reports a pattern that nothing matched.
func (s *session) missing(pattern string) {
	s.fail(int(status.NotExist), "param_path '%s': No such file or directory", pattern)
	if _, err := os.Lstat(pattern); err == nil {
		s.say("hint: '%s' is a file here; quote patterns, so that the shell does not replace them: lctl %s 'osc.*.*'", pattern, s.verb)
	}
}

// mark is what -F puts behind a name.
func mark(n *param.Node, classify bool) string {
	switch {
	case !classify:
		return ""
	case n.Writable:
		return "="
	case n.Folder && !n.HasText:
		return "/"
	}
	return ""
}
