package lfs

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/virtual"
)

// fid2pathFlags are fid2path's flags.
type fid2pathFlags struct {
	zero, fid, name bool
	link            int
}

func newFid2path() *cobra.Command {
	var f fid2pathFlags
	c := &cobra.Command{
		Use:   "fid2path [-0] [-f] [-n] [-l NUMBER] MOUNT|FSNAME FID...",
		Short: "show the paths of a FID",
		Long: `fid2path shows every path of each FID, one a line: a file with hard links has several. The file system
is named by any path on its mount, or by its name if it is mounted on this machine. FIDs may stand
with or without their brackets.

Only what the caller may reach is shown. Names that hold line breaks, control characters or bytes
that are no text are printed between quotes with escapes, unless -0 is given.`,
		Example: `  lfs fid2path /mnt/strake [0x200000401:0x5:0x0]
  lfs fid2path -0 strake 0x200000401:0x5:0x0 | xargs -0 ls -l`,
	}
	fl := c.Flags()
	fl.BoolVarP(&f.zero, "print0", "0", false, "end each path with NUL, names as they are")
	fl.BoolVarP(&f.fid, "print-fid", "f", false, "the FID before each path")
	fl.BoolVarP(&f.name, "name", "n", false, "the last part of the path only")
	fl.IntVarP(&f.link, "link", "l", -1, "only the link with this number, from 0")
	refuseFlags(c, []refusal{{"cur", "c", false, "links are shown in the order of their numbers; -l picks one"}})
	c.RunE = run(2, -1, func(s *session, args []string) error {
		m, err := mountNamed(args[0])
		if err != nil {
			return inPath(args, err)
		}
		for _, text := range args[1:] {
			if err := s.fid2path(&f, &m, text); err != nil {
				s.fail(text, err)
			}
		}
		return nil
	})
	return c
}

// mountNamed finds a mount by a path on it, or by the file system's name.
func mountNamed(name string) (mount, error) {
	m, err := mountOf(name)
	if err == nil || strings.Contains(name, "/") {
		return m, err
	}
	all, bad := mounts()
	if bad != nil {
		return mount{}, bad
	}
	var found []mount
	for _, m := range all {
		if info, bad := getInfo(m.dir); bad == nil && info.FSName == name {
			found = append(found, m)
		}
	}
	switch len(found) {
	case 0:
		return mount{}, err
	case 1:
		return found[0], nil
	}
	return mount{}, fmt.Errorf("%d mounts have this file system's name, such as %s and %s: give a path on one of them",
		len(found), safe(found[0].dir), safe(found[1].dir))
}

func (s *session) fid2path(f *fid2pathFlags, m *mount, text string) error {
	id, err := fid.Parse(text)
	if err != nil || id.IsZero() {
		return errors.New("is not a FID, such as [0x200000401:0x5:0x0]")
	}
	b, err := get(m.dir, virtual.PathsOf+id.String())
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESTALE), errors.Is(err, unix.EINVAL), errors.Is(err, errNoValue):
		return errors.New("no file has this FID")
	case err != nil:
		return err
	}
	paths := splitPaths(b)
	if f.link >= 0 {
		paths = paths[min(f.link, len(paths)):min(f.link+1, len(paths))]
		if len(paths) == 0 {
			return fmt.Errorf("has no link number %d", f.link)
		}
	}
	for _, p := range paths {
		at, ok := m.reach(p)
		if !ok {
			s.fail(text, fmt.Errorf("%s is outside of what is mounted at %s", safe(p), safe(m.dir)))
			continue
		}
		s.path(f, id, at)
	}
	return nil
}

// path prints one path.
func (s *session) path(f *fid2pathFlags, id fid.FID, at string) {
	if f.name {
		at = path.Base(at)
	}
	end := "\x00"
	if !f.zero {
		at, end = safe(at), "\n"
	}
	if f.fid {
		s.printf("%s ", id)
	}
	s.printf("%s%s", at, end)
}
