package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// The names of systems in reports.
const (
	loopback    = "loopback"
	passthrough = "loopback, passthrough"
	processes   = "strake, 4 processes"
	single      = "strake, role all"
)

// system is something mounted that workloads run on.
type system struct {
	name string
	base string     // holds data, logs and the mount point
	mnt  string     // where workloads work
	list []*process // in order of start; the mount's process last
	own  bool       // the mount was made here, not by its process
}

func newSystem(name, base string) (*system, error) {
	s := &system{name: name, base: base, mnt: filepath.Join(base, "mnt")}
	if err := os.MkdirAll(s.mnt, 0o755); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	return s, nil
}

// start starts a process with the files given as its descriptors from 3 on.
func (s *system) start(name string, files []*os.File, args ...string) error {
	p, err := startProcess(s.base, name, files, args)
	if err == nil {
		s.list = append(s.list, p)
	}
	return err
}

func (s *system) awaitMount(ctx context.Context) error {
	return await(ctx, s.name+" on "+s.mnt, s.list, func() bool { return mounted(s.mnt) })
}

// close stops the processes, the mount's first, and removes the data.
func (s *system) close() error {
	var errs []error
	if s.own {
		errs = append(errs, unix.Unmount(s.mnt, 0)) // its process ends by itself
	}
	for _, p := range slices.Backward(s.list) {
		errs = append(errs, p.stop())
	}
	unmount(s.mnt)
	if mounted(s.mnt) {
		return errors.Join(append(errs, fmt.Errorf("bench: %s is still mounted", s.mnt))...)
	}
	return errors.Join(append(errs, os.RemoveAll(s.base))...)
}

// startPassthrough mounts go-fuse's example as root starts it. Where the kernel has FUSE passthrough (6.9 and later)
// its reads and writes then go to the disk's file system without a request to the process.
func startPassthrough(ctx context.Context, base, binary string) (*system, error) {
	s, err := newSystem(passthrough, base)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(base, "data")
	if err := os.Mkdir(data, 0o755); err != nil {
		return s, fmt.Errorf("bench: %w", err)
	}
	if err := s.start("loopback", nil, binary, "-q", "-directmount", s.mnt, data); err != nil {
		return s, err
	}
	return s, s.awaitMount(ctx)
}

// startLoopback mounts go-fuse's example without passthrough: every request is answered by the process, as on kernels
// before 6.9 and as for any file system whose data is not in a local file. The process runs without CAP_SYS_ADMIN, which
// passthrough needs, and so gets its mount, with the options that the example itself would choose, from here.
func startLoopback(ctx context.Context, base, binary string) (*system, error) {
	s, err := newSystem(loopback, base)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(base, "data")
	if err := os.Mkdir(data, 0o755); err != nil {
		return s, fmt.Errorf("bench: %w", err)
	}
	dev, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return s, fmt.Errorf("bench: %w", err)
	}
	defer dev.Close()
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,max_read=131072", dev.Fd())
	if err := unix.Mount(data, s.mnt, "fuse.loopback", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return s, fmt.Errorf("bench: mount %s: %w", s.mnt, err)
	}
	s.own = true
	return s, s.start("loopback", []*os.File{dev}, "setpriv", "--bounding-set", "-sys_admin", binary, "-q", "/dev/fd/3", data)
}

// startAll mounts strake as one process with two OSTs.
func startAll(ctx context.Context, base, binary string) (*system, error) {
	s, err := newSystem(single, base)
	if err != nil {
		return nil, err
	}
	web, err := freePort()
	if err != nil {
		return s, fmt.Errorf("bench: %w", err)
	}
	err = s.start("all", nil, binary, "--role=all", "--data", filepath.Join(base, "data"), "--mount", s.mnt, "--http", web)
	if err != nil {
		return s, err
	}
	return s, s.awaitMount(ctx)
}

// startProcesses mounts strake as one MDS, two OSS and one client that speak TCP over loopback.
func startProcesses(ctx context.Context, base, binary string) (*system, error) {
	s, err := newSystem(processes, base)
	if err != nil {
		return nil, err
	}
	var ports [6]string
	for i := range ports {
		if ports[i], err = freePort(); err != nil {
			return s, fmt.Errorf("bench: %w", err)
		}
	}
	data := func(target string) string { return filepath.Join(base, target) }
	err = s.start("mds", nil, binary, "--role=mds", "--data", data("mdt0"), "--listen", ports[0], "--http", ports[3], "--insecure")
	if err != nil {
		return s, err
	}
	if err := await(ctx, "the MGS at "+ports[0], s.list, func() bool { return listening(ports[0]) }); err != nil {
		return s, err
	}
	for i := range 2 {
		name := fmt.Sprintf("oss%d", i)
		err := s.start(name, nil, binary, "--role=oss", "--data", data(fmt.Sprintf("ost%d", i)), "--mgs", ports[0],
			"--listen", ports[1+i], "--http", ports[4+i], "--insecure")
		if err != nil {
			return s, err
		}
		p := s.list[len(s.list)-1]
		if err := await(ctx, name+" to register", s.list, func() bool { return logged(p, ": registered") }); err != nil {
			return s, err
		}
	}
	if err := s.start("client", nil, binary, "--role=client", "--mgs", ports[0], "--mount", s.mnt, "--insecure"); err != nil {
		return s, err
	}
	return s, s.awaitMount(ctx)
}

// logged says whether a process has logged a text.
func logged(p *process, text string) bool {
	log, err := os.ReadFile(p.log)
	return err == nil && strings.Contains(string(log), text)
}

// buildLoopback builds go-fuse's example, at the version of the module that holds dir, and returns the binary's path.
func buildLoopback(ctx context.Context, dir, target string) (string, error) {
	binary := filepath.Join(target, "loopback.bin")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", binary, "github.com/hanwen/go-fuse/v2/example/loopback")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("bench: build go-fuse's loopback in %s (run it in the source tree, or name a built one by --loopback): %w: %s",
			dir, err, strings.TrimSpace(string(out)))
	}
	return binary, nil
}
