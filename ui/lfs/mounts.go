package lfs

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mountType is the type of our mounts in the kernel's list.
const mountType = "fuse.strake"

// mount is an entry of /proc/self/mountinfo (proc_pid_mountinfo(5)).
type mount struct {
	// dev is the device number "major:minor", dir the mount point.
	dev, dir string
	// root is the folder of the mounted file system that is seen at dir: "/" but for bind mounts.
	root string
	// fileset is the folder of the whole file system that was mounted, "" for its root.
	fileset string
}

// mounts lists the strake mounts that this process sees, in the order of the kernel's list. A folder mounted over is left
// out, since it cannot be reached.
func mounts() ([]mount, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMounts(string(b)), nil
}

func parseMounts(text string) []mount {
	var out []mount
	top := make(map[string]string) // mount point -> device mounted there last
	for line := range strings.Lines(text) {
		left, right, ok := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 6 || len(r) < 2 {
			continue
		}
		m := mount{dev: l[2], root: unescape(l[3]), dir: unescape(l[4]), fileset: filesetOf(unescape(r[1]))}
		top[m.dir] = m.dev
		if r[0] == mountType {
			out = append(out, m)
		}
	}
	seen := out[:0]
	for _, m := range out {
		if top[m.dir] == m.dev {
			seen = append(seen, m)
		}
	}
	return seen
}

// filesetOf reads the fileset off a mount's source, HOST:/fsname/folder.
func filesetOf(source string) string {
	_, p, ok := strings.Cut(source, ":/")
	if !ok {
		return ""
	}
	_, folder, ok := strings.Cut(p, "/")
	if folder = strings.Trim(folder, "/"); !ok || folder == "" {
		return ""
	}
	return "/" + folder
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// mountOf finds the mount that a path is on: of the mounts with the path's device the one that holds it most closely.
// errNotStrake if it is on none.
func mountOf(name string) (mount, error) {
	var st unix.Stat_t
	if err := again(func() error { return unix.Stat(name, &st) }); err != nil {
		return mount{}, err
	}
	dev := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	all, err := mounts()
	if err != nil {
		return mount{}, err
	}
	real, err := filepath.EvalSymlinks(name)
	if err != nil {
		return mount{}, err
	}
	if real, err = filepath.Abs(real); err != nil {
		return mount{}, err
	}
	var best *mount
	for i := range all {
		m := &all[i]
		if _, ok := below(real, m.dir); m.dev == dev && ok && (best == nil || len(m.dir) >= len(best.dir)) {
			best = m
		}
	}
	if best == nil {
		return mount{}, errNotStrake
	}
	return *best, nil
}

// below gives what is left of a clean path under a folder, "" for the folder itself.
func below(name, dir string) (string, bool) {
	if name == dir {
		return "", true
	}
	return strings.CutPrefix(name, strings.TrimSuffix(dir, "/")+"/")
}

// reach turns a path from the file system's root into one under the mount point; false if the mount shows another part.
func (m *mount) reach(inside string) (string, bool) {
	rest, ok := below("/"+strings.Trim(inside, "/"), path.Join("/", m.fileset, m.root))
	if !ok {
		return "", false
	}
	if rest == "" {
		return m.dir, true
	}
	return strings.TrimSuffix(m.dir, "/") + "/" + rest, true
}

// wantMounts gives the mount of the path that was named, or all of this machine's when none was.
func wantMounts(args []string) ([]mount, error) {
	if len(args) > 0 {
		m, err := mountOf(args[0])
		if err != nil {
			return nil, err
		}
		return []mount{m}, nil
	}
	all, err := mounts()
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("no strake file system is mounted")
	}
	return all, err
}
