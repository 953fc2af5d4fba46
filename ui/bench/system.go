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
	given       = "mounted" // by whoever calls, and not by the bench
)

// system is something mounted that workloads run on.
type system struct {
	name string
	base string     // holds data, logs and the mount points; of a given system the folder that is worked in
	mnts []string   // where workloads work: one folder as each client sees it
	list []*process // in order of start; of a system that can be mounted anew, the mount's process last
	own  bool       // the mount was made here, not by its process

	attach func() error // mounts on mnts[0] and starts the mount's process; nil for a system that is not mounted anew
}

func newSystem(name, base string, mounts int) (*system, error) {
	s := &system{name: name, base: base}
	for i := range mounts {
		mnt := filepath.Join(base, fmt.Sprintf("mnt%d", i))
		if err := os.MkdirAll(mnt, 0o755); err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
		s.mnts = append(s.mnts, mnt)
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

func (s *system) awaitMount(ctx context.Context, mnt string) error {
	return await(ctx, s.name+" on "+mnt, s.list, func() bool { return mounted(mnt) })
}

// remount unmounts, ends the mount's process and starts both anew (of a given system, attach does all of it). What the client and the kernel knew of the mount is
// gone then; servers go on. It returns once the new mount answers.
func (s *system) remount() error {
	if s.own {
		if err := unix.Unmount(s.mnts[0], 0); err != nil { // its process ends by itself
			return fmt.Errorf("bench: unmount %s: %w", s.mnts[0], err)
		}
	}
	if last := len(s.list) - 1; last >= 0 {
		p := s.list[last]
		s.list = s.list[:last]
		if err := p.stop(); err != nil {
			return err
		}
	}
	if mounted(s.mnts[0]) {
		return fmt.Errorf("bench: %s is still mounted after its process has left", s.mnts[0])
	}
	if err := s.attach(); err != nil {
		return err
	}
	if _, err := os.Stat(s.mnts[0]); err != nil { // waits until the process serves
		return fmt.Errorf("bench: after a remount: %w", err)
	}
	return nil
}

// close stops the processes, the mount's first, and removes data and logs, unless they are to be kept for who looks for
// the reason of a failure. Of a given system the folder that was worked in is removed in any case.
func (s *system) close(keep bool) error {
	var errs []error
	if s.own && mounted(s.mnts[0]) {
		errs = append(errs, unix.Unmount(s.mnts[0], 0)) // its process ends by itself
	}
	for _, p := range slices.Backward(s.list) {
		errs = append(errs, p.stop())
	}
	if s.name != given {
		for _, mnt := range s.mnts {
			unmount(mnt)
			if mounted(mnt) {
				return errors.Join(append(errs, fmt.Errorf("bench: %s is still mounted", mnt))...)
			}
		}
	}
	if !keep || s.name == given {
		errs = append(errs, os.RemoveAll(s.base))
	}
	return errors.Join(errs...)
}

// startGiven makes a folder in the first of the mount points, which other mounts show as well, and returns a system that
// works in it. It returns an error when one of the others does not show it.
func startGiven(mounts []string) (*system, error) {
	base, err := os.MkdirTemp(mounts[0], "strake-bench-")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	s := &system{name: given, base: base}
	for _, m := range mounts {
		seen := filepath.Join(m, filepath.Base(base))
		if _, err := os.Stat(seen); err != nil {
			return s, fmt.Errorf("bench: %s does not show what was made in %s: %w", m, mounts[0], err)
		}
		s.mnts = append(s.mnts, seen)
	}
	return s, nil
}

// startPassthrough mounts go-fuse's example as root starts it. Where the kernel has FUSE passthrough (6.9 and later)
// its reads and writes then go to the disk's file system without a request to the process.
func startPassthrough(ctx context.Context, base, binary string) (*system, error) {
	s, data, err := newLoopback(passthrough, base)
	if err != nil {
		return s, err
	}
	s.attach = func() error {
		if err := s.start("loopback", nil, binary, "-q", "-directmount", s.mnts[0], data); err != nil {
			return err
		}
		return s.awaitMount(ctx, s.mnts[0])
	}
	return s, s.attach()
}

// startLoopback mounts go-fuse's example without passthrough: every request is answered by the process, as on kernels
// before 6.9 and as for any file system whose data is not in a local file. The process runs without CAP_SYS_ADMIN, which
// passthrough needs, and so gets its mount, with the options that the example itself would choose, from here.
func startLoopback(base, binary string) (*system, error) {
	s, data, err := newLoopback(loopback, base)
	if err != nil {
		return s, err
	}
	s.attach = func() error {
		dev, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		defer dev.Close()
		options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,max_read=131072", dev.Fd())
		if err := unix.Mount(data, s.mnts[0], "fuse.loopback", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
			return fmt.Errorf("bench: mount %s: %w", s.mnts[0], err)
		}
		s.own = true
		return s.start("loopback", []*os.File{dev}, "setpriv", "--bounding-set", "-sys_admin", binary, "-q", "/dev/fd/3", data)
	}
	return s, s.attach()
}

// newLoopback makes the folders of a loopback: its mount point, and the data that it shows there.
func newLoopback(name, base string) (s *system, data string, err error) {
	if s, err = newSystem(name, base, 1); err != nil {
		return nil, "", err
	}
	data = filepath.Join(base, "data")
	if err := os.Mkdir(data, 0o755); err != nil {
		return s, "", fmt.Errorf("bench: %w", err)
	}
	return s, data, nil
}

// startAll mounts strake as one process with two OSTs.
func startAll(ctx context.Context, base, binary string) (*system, error) {
	s, err := newSystem(single, base, 1)
	if err != nil {
		return nil, err
	}
	web, err := freePort()
	if err != nil {
		return s, fmt.Errorf("bench: %w", err)
	}
	err = s.start("all", nil, binary, "--role=all", "--data", filepath.Join(base, "data"), "--mount", s.mnts[0], "--http", web)
	if err != nil {
		return s, err
	}
	return s, s.awaitMount(ctx, s.mnts[0])
}

// startProcesses mounts strake as one MDS, two OSS and so many clients, all processes that speak TCP over loopback.
func startProcesses(ctx context.Context, base, binary string, clients int) (*system, error) {
	s, err := newSystem(processes, base, clients)
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
	client := func(i int) error {
		err := s.start(fmt.Sprintf("client%d", i), nil, binary, "--role=client", "--mgs", ports[0], "--mount", s.mnts[i], "--insecure")
		if err != nil {
			return err
		}
		return s.awaitMount(ctx, s.mnts[i])
	}
	for i := range clients {
		if err := client(i); err != nil {
			return s, err
		}
	}
	if clients == 1 {
		s.attach = func() error { return client(0) }
	}
	return s, nil
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
