package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"

	"github.com/strakefs/strake/server/config"
)

// fuseDevice is where the kernel hands out FUSE connections.
const fuseDevice = "/dev/fuse"

// preflight finds what would stop a start half-way, before anything is formatted or opened. What it finds in order can
// still fail later, and is reported by the part that meets it.
func preflight(cfg config.Config) error {
	for _, m := range cfg.Mounts {
		if err := checkMountPoint(m.Dir); err != nil {
			return err
		}
	}
	if len(cfg.Mounts) > 0 {
		if err := checkFUSE(); err != nil {
			return err
		}
	}
	if err := checkPort("protocol", config.KeyListen, cfg.Listen); err != nil {
		return err
	}
	return checkPort("dashboard", config.KeyHTTP, cfg.HTTP)
}

// checkMountPoint holds that a folder is there and nothing is mounted on it. It asks the kernel's table first:
// a dead mount answers stat with an error, and a hanging one not at all.
func checkMountPoint(dir string) error {
	if fstype := mountedAt(dir); fstype != "" {
		return fmt.Errorf("mount point %s: busy, a file system (%s) is mounted there; unmount it (umount %s), "+
			"or give a folder below it", dir, fstype, dir)
	}
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("mount point %s: no such folder; make it first: mkdir -p %s", dir, dir)
	case err != nil:
		return fmt.Errorf("mount point %s: %w", dir, errors.Unwrap(err))
	case !info.IsDir():
		return fmt.Errorf("mount point %s: not a folder; give another --mount", dir)
	}
	return nil
}

func checkFUSE() error {
	f, err := os.OpenFile(fuseDevice, os.O_RDWR|syscall.O_CLOEXEC, 0)
	if err == nil {
		return f.Close()
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.ENXIO):
		return fmt.Errorf("%s: %w; load the module (modprobe fuse), or give the container the device (--device %s)",
			fuseDevice, errors.Unwrap(err), fuseDevice)
	}
	return fmt.Errorf("%s: %w; run as root or as a user who may open it", fuseDevice, errors.Unwrap(err))
}

// checkPort opens an address for a moment.
func checkPort(what, key, addr string) error {
	if addr == "" {
		return nil
	}
	l, err := net.Listen("tcp", addr)
	if err == nil {
		return l.Close()
	}
	todo := "give another --" + key
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%s address %s: in use by another process; stop it or %s", what, addr, todo)
	}
	return fmt.Errorf("%s address %s: %w; %s", what, addr, err, todo)
}
