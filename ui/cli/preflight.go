package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
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
	if err := checkBase(cfg); err != nil {
		return err
	}
	if err := checkPort("protocol", config.KeyListen, cfg.Listen); err != nil {
		return err
	}
	return checkPort("dashboard", config.KeyHTTP, cfg.HTTP)
}

// checkBase refuses a base folder that holds more OSTs than were asked for: files with stripes on the others would be
// out of reach.
func checkBase(cfg config.Config) error {
	if cfg.Base == "" {
		return nil
	}
	next := cfg.OSTs()
	extra := filepath.Join(cfg.Base, fmt.Sprintf("ost%d", next))
	if _, err := os.Lstat(extra); err != nil {
		return nil // absent, or what is wrong with the folder is met when it is opened
	}
	return fmt.Errorf("data folder %s: holds %s, more than the %d OSTs asked for; say --osts with the number it has",
		cfg.Base, extra, next)
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
