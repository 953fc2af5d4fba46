package lfs

import (
	"bytes"
	"fmt"
	"path"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/strakefs/strake/fs/virtual"
)

func newPath2fid() *cobra.Command {
	var parents bool
	c := &cobra.Command{
		Use:   "path2fid [--parents] PATH...",
		Short: "show the FID of a path",
		Long: `path2fid shows the FID of each path; with several paths each line begins with the path. A symlink is
not followed: it has a FID of its own.

With --parents it shows for each name of the file, hard links too, the FID of the folder and the
name in it, all on one line with tabs between them.`,
		Example: `  lfs path2fid /mnt/strake/file
  lfs path2fid --parents /mnt/strake/file    [0x200000400:0x1:0x0]/file`,
	}
	c.Flags().BoolVar(&parents, "parents", false, "FID of the parent folder and name, for each hard link")
	c.RunE = run(1, -1, func(s *session, args []string) error {
		for _, p := range args {
			text, err := fidText(p, parents)
			if err != nil {
				s.fail(p, err)
				continue
			}
			if len(args) > 1 {
				s.printf("%s: ", safe(p))
			}
			s.printf("%s\n", text)
		}
		return nil
	})
	return c
}

func fidText(name string, parents bool) (string, error) {
	if parents {
		return parentsText(name)
	}
	f, err := getFID(name)
	return f.String(), err
}

// parentsText is the FID of the parent and the name in it, for each name of an inode.
func parentsText(name string) (string, error) {
	b, err := get(name, virtual.Paths)
	if err != nil {
		return "", err
	}
	m, err := mountOf(filepath.Dir(name))
	var st unix.Stat_t
	if again(func() error { return unix.Lstat(name, &st) }) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		m, err = mountOf(name) // the parent of a mount's root is on another file system
	}
	if err != nil {
		return "", err
	}
	var out []byte
	for _, p := range splitPaths(b) {
		if path.Join("/", p) == "/" {
			return "", fmt.Errorf("the root folder has no parent")
		}
		folder, base := path.Split(path.Join("/", p))
		at, ok := m.reach(folder)
		if !ok {
			return "", fmt.Errorf("its name %s is outside of what is mounted at %s", safe(p), safe(m.dir))
		}
		f, err := getFID(at)
		if err != nil {
			return "", fmt.Errorf("%s: %w", safe(at), err)
		}
		if len(out) > 0 {
			out = append(out, '\t')
		}
		out = fmt.Appendf(out, "%s/%s", f, safe(base))
	}
	return string(out), nil
}

// splitPaths splits the paths of an answer, each ended by NUL.
func splitPaths(b []byte) []string {
	var out []string
	for p := range bytes.SplitSeq(b, []byte{0}) {
		if len(p) > 0 {
			out = append(out, string(p))
		}
	}
	return out
}
