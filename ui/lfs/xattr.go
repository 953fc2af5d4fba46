package lfs

import (
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/virtual"
)

// Errors of a mount's answers.
var (
	errNotStrake = errors.New("is not on a strake mount")
	// errNoValue: the inode has no such thing, on a strake mount.
	errNoValue = errors.New("has none")
)

// Buffers of values: what most need, and the most that the kernel hands over (XATTR_SIZE_MAX).
const (
	valueUsual = 4 << 10
	valueMax   = 64 << 10
)

// get reads a virtual attribute of a path, of the link itself if the path is a symlink. errNotStrake if the path is not
// on a strake mount, errNoValue if the inode has no such value. It blocks as long as the file system's servers do.
func get(path, name string) ([]byte, error) {
	b, err := lgetxattr(path, name)
	switch {
	case err == nil:
		return b, nil
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENODATA) && name == virtual.FID:
		return nil, errNotStrake
	case errors.Is(err, unix.ENODATA):
		if _, bad := lgetxattr(path, virtual.FID); errors.Is(bad, unix.ENODATA) || errors.Is(bad, unix.EOPNOTSUPP) {
			return nil, errNotStrake
		}
		return nil, errNoValue
	case errors.Is(err, unix.E2BIG), errors.Is(err, unix.ERANGE):
		return nil, fmt.Errorf("the mount's answer is larger than %d bytes, the most that the kernel hands over: %w", valueMax, err)
	}
	return nil, err
}

func lgetxattr(path, name string) ([]byte, error) {
	for size := valueUsual; ; size = valueMax {
		b := make([]byte, size)
		var n int
		err := again(func() (err error) {
			n, err = unix.Lgetxattr(path, name, b)
			return err
		})
		if errors.Is(err, unix.ERANGE) && size < valueMax {
			continue
		}
		if err != nil {
			return nil, err
		}
		return b[:n], nil
	}
}

// again repeats a call that a signal has interrupted; Go's runtime sends itself some.
func again(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// getFID reads the FID of a path.
func getFID(path string) (fid.FID, error) {
	b, err := get(path, virtual.FID)
	if err != nil {
		return fid.FID{}, err
	}
	f, err := fid.Parse(string(b))
	if err != nil {
		return fid.FID{}, fmt.Errorf("the mount's answer is damaged: %w", err)
	}
	return f, nil
}

// getLayout reads the layout of a file, or the default layout of a folder. errNoValue if there is none.
func getLayout(path string) (*layout.Layout, error) {
	b, err := get(path, virtual.Layout)
	if err != nil {
		return nil, err
	}
	return decodeLayout(b)
}

// decodeLayout decodes an answer; errNoValue for an empty one.
func decodeLayout(b []byte) (*layout.Layout, error) {
	var l layout.Layout
	if err := l.Decode(b); err != nil {
		return nil, fmt.Errorf("the mount's answer is damaged: %w", err)
	}
	if l.IsZero() {
		return nil, errNoValue
	}
	return &l, nil
}

// getInfo asks the mount that path is on what it is.
func getInfo(path string) (*virtual.Info, error) {
	var i virtual.Info
	return &i, getJSON(path, virtual.About, &i)
}

// getSpace asks the mount that path is on for the space of its targets.
func getSpace(path string) ([]virtual.TargetSpace, error) {
	var s []virtual.TargetSpace
	err := getJSON(path, virtual.Space, &s)
	return s, err
}

func getJSON(path, name string, v any) error {
	b, err := get(path, name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("the mount's answer is damaged: %s: %w", name, err)
	}
	return nil
}

// setLayout sets the layout of a file never written, or the default layout of a folder.
func setLayout(path string, l *layout.Layout) error {
	b := l.Append(nil)
	return layoutError(again(func() error { return unix.Lsetxattr(path, virtual.Layout, b, 0) }))
}

// removeLayout removes a folder's default layout; one without any is left as it is.
func removeLayout(path string) error {
	err := again(func() error { return unix.Lremovexattr(path, virtual.Layout) })
	if errors.Is(err, unix.ENODATA) {
		return nil
	}
	return layoutError(err)
}

// layoutError says in the caller's words why a layout was not taken.
func layoutError(err error) error {
	switch {
	case errors.Is(err, unix.EEXIST), errors.Is(err, unix.EBUSY):
		return fmt.Errorf("has been written or is open for it: the layout of such a file cannot change: %w", err)
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("not enough OSTs with free space for this layout: %w", err)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("the file system does not take this layout: %w", err)
	}
	return err
}
