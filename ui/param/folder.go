package param

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Folder modes and the socket's.
const (
	folderMode = 0o755
	socketMode = 0o600
	suffix     = ".sock"
)

// runFolder is where the sockets of a host are when its processes may write there.
const runFolder = "/run/strake"

// Folders returns the folders that may hold parameter sockets, the one that is tried first in front: /run/strake, then
// those of the user that this process runs as.
func Folders() []string {
	out := []string{runFolder}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		out = append(out, filepath.Join(dir, "strake"))
	}
	return append(out, filepath.Join(os.TempDir(), "strake-"+strconv.Itoa(os.Geteuid())))
}

// errUntrusted says that a folder is not one to put a socket in or to look for one.
var errUntrusted = errors.New("does not belong to root or this user alone")

// trusted checks that dir is a real folder of root or this user that nobody else can put sockets in.
func trusted(dir string) error {
	fi, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || !fi.IsDir() || fi.Mode().Perm()&0o022 != 0 || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s %w", dir, errUntrusted)
	}
	return nil
}

// open makes a folder if it is absent and checks it.
func openFolder(dir string) error {
	err := os.Mkdir(dir, folderMode)
	if err == nil {
		err = os.Chmod(dir, folderMode) // whatever the umask is
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return trusted(dir)
}

// staleAge is how old a socket that nobody listens on must be when its name's process seems to live: making one takes
// microseconds, and process ids come again.
const staleAge = time.Minute

// sweep removes sockets that nobody listens on. What it cannot remove stays.
func sweep(dir string) {
	names, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, n := range names {
		if n.Type()&os.ModeSocket == 0 || !strings.HasSuffix(n.Name(), suffix) {
			continue
		}
		path := filepath.Join(dir, n.Name())
		if refuses(path) && (!lives(n.Name()) || olderThan(n, staleAge)) {
			_ = os.Remove(path)
		}
	}
}

func olderThan(n os.DirEntry, age time.Duration) bool {
	fi, err := n.Info()
	return err == nil && time.Since(fi.ModTime()) > age
}

// refuses reports whether nobody listens on a socket: its process is dead, or is just making it.
func refuses(path string) bool {
	c, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return errors.Is(err, syscall.ECONNREFUSED)
	}
	_ = c.Close()
	return false
}

// lives reports whether a process with the number in a socket's name lives, this one aside: what has its number and
// refuses is an earlier one's, as in a container, where every process may be number 1.
func lives(name string) bool {
	parts := strings.Split(strings.TrimSuffix(name, suffix), "-")
	if len(parts) < 2 {
		return false
	}
	pid, err := strconv.Atoi(parts[1])
	return err == nil && pid != os.Getpid() && !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

// socketsMax bounds the servers of one process and role.
const socketsMax = 100

// listen makes the socket <name>.sock in dir, or <name>-2.sock and so on if that is another server's.
func listen(dir, name string) (*net.UnixListener, string, error) {
	if err := openFolder(dir); err != nil {
		return nil, "", err
	}
	sweep(dir)
	for n := 1; n <= socketsMax; n++ {
		path := filepath.Join(dir, name+suffix)
		if n > 1 {
			path = filepath.Join(dir, name+"-"+strconv.Itoa(n)+suffix)
		}
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return nil, "", err
		}
		l.SetUnlinkOnClose(false) // Close of the server does it, once
		// Who connects before this is judged by the kernel's word on it, as everybody is.
		if err := os.Chmod(path, socketMode); err != nil {
			return nil, "", errors.Join(err, l.Close(), os.Remove(path))
		}
		return l, path, nil
	}
	return nil, "", fmt.Errorf("%s: %d sockets of this name are there", dir, socketsMax)
}

// Sockets returns the parameter sockets in the folders, by path within each; folders that are absent or not to be trusted
// hold none.
func Sockets(folders []string) []string {
	var out []string
	for _, dir := range folders {
		if trusted(dir) != nil {
			continue
		}
		names, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, n := range names {
			if path := filepath.Join(dir, n.Name()); strings.HasSuffix(path, suffix) && n.Type()&os.ModeSocket != 0 && !slices.Contains(out, path) {
				out = append(out, path)
			}
		}
	}
	return out
}
