package cli

import (
	"bufio"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/strakefs/strake/server/config"
)

const (
	// serverProcs is the least number of Go processors of a server. A page fault on bbolt's map stops the processor it
	// happens on, so two cores need more than two.
	serverProcs = 8
	// mountProcs is that of a process with mounts, and mountReaders the number during which they are made: go-fuse lets one goroutine
	// more than that wait in read(2) for requests. Each keeps a processor from the others until the scheduler takes it away,
	// so that there had better be more processors than readers.
	mountProcs   = 4
	mountReaders = 2
)

// prepareProcess sets what belongs to the process as a whole, before the node's threads start. The node's owner calls started
// when they have.
func prepareProcess(cfg config.Config, environ []string, log *slog.Logger) (started func()) {
	if cfg.Roles.Servers() && len(cfg.Mounts) > 0 {
		setIOFlusher(log)
	}
	if hasEnv(environ, "GOMAXPROCS") {
		return func() {}
	}
	procs := runtime.GOMAXPROCS(0)
	if cfg.Roles.Servers() {
		procs = max(procs, serverProcs)
	}
	if len(cfg.Mounts) == 0 {
		runtime.GOMAXPROCS(procs)
		return func() {}
	}
	runtime.GOMAXPROCS(mountReaders)
	return func() { runtime.GOMAXPROCS(max(procs, mountProcs)) }
}

// setIOFlusher marks all threads, and through them those to come, as part of the way to the disk: when the kernel
// needs memory, it does not wait for them to write back what only they can write back (prctl(2), PR_SET_IO_FLUSHER).
// It needs CAP_SYS_RESOURCE; without it the process works, and the risk under memory pressure stays.
func setIOFlusher(log *slog.Logger) {
	_, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_IO_FLUSHER, 1, 0, 0, 0, 0)
	if errno != 0 {
		log.Debug("PR_SET_IO_FLUSHER is not set", "error", errno)
	}
}

// detachMounts takes the mount points off the name space when the node did not. A lazy unmount asks nothing of
// the file system, so it cannot wait for the process itself.
func detachMounts(cfg config.Config, log *slog.Logger) {
	for _, m := range cfg.Mounts {
		if !isFUSE(m.Dir) {
			continue
		}
		if err := unix.Unmount(m.Dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			log.Error("cannot unmount; run umount -l", "mount", m.Dir, "error", err)
		}
	}
}

// isFUSE reports whether a FUSE file system is mounted right at dir.
func isFUSE(dir string) bool {
	fstype := mountedAt(dir)
	return fstype == "fuse" || strings.HasPrefix(fstype, "fuse.")
}

// mountedAt returns the type of the file system that is mounted right at dir, from the kernel's table alone; empty if
// there is none.
func mountedAt(dir string) string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return ""
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	defer f.Close()
	found := ""
	for lines := bufio.NewScanner(f); lines.Scan(); {
		point, fstype, ok := mountLine(lines.Text())
		if ok && point == abs {
			found = fstype // the last one mounted there is the one that is seen
		}
	}
	return found
}

// mountLine takes the mount point and the type out of one line of mountinfo (proc(5)): fields up to " - " are
// optional at the end, and blanks in the mount point are written as octal escapes.
func mountLine(line string) (point, fstype string, ok bool) {
	head, tail, ok := strings.Cut(line, " - ")
	fields, after := strings.Fields(head), strings.Fields(tail)
	if !ok || len(fields) < 5 || len(after) < 1 {
		return "", "", false
	}
	r := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	return r.Replace(fields[4]), after[0], true
}

// hasEnv reports whether an environment sets a variable.
func hasEnv(environ []string, name string) bool { return getEnv(environ, name) != "" }

// getEnv returns a variable's value; the last setting counts.
func getEnv(environ []string, name string) string {
	for i := len(environ) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(environ[i], name+"="); ok {
			return v
		}
	}
	return ""
}
