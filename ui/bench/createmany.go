package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Rate is what a workload has done in how long.
type Rate struct {
	Count   int64 // operations, or bytes
	Elapsed time.Duration
}

// PerSecond is Count per second of Elapsed; 0 when no time has passed.
func (r Rate) PerSecond() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Count) / r.Elapsed.Seconds()
}

// CreateMany makes a fresh folder below dir and creates count empty files in it, one after the other, each by
// open(O_CREAT|O_EXCL|O_WRONLY) and close. Making the folder is outside the measured time. The files stay: for seconds after
// thousands were removed ext4 searches longer for a free inode, and whoever creates files on that disk next would pay for it.
// It blocks until done or ctx ends, and returns the error of the first call that fails.
func CreateMany(ctx context.Context, dir string, count int) (Rate, error) {
	folder, err := os.MkdirTemp(dir, "createmany-")
	if err != nil {
		return Rate{}, fmt.Errorf("bench: createmany: %w", err)
	}
	names := fileNames(folder, "f", count)
	began := time.Now()
	if err := createFiles(ctx, names, nil); err != nil {
		return Rate{}, err
	}
	return Rate{Count: int64(count), Elapsed: time.Since(began)}, nil
}

// fileNames are count paths in folder, their names of one length.
func fileNames(folder, prefix string, count int) []string {
	names := make([]string, count)
	for i := range names {
		names[i] = filepath.Join(folder, fmt.Sprintf("%s%07d", prefix, i))
	}
	return names
}

// createFiles creates each path, which must not exist, writes content to it by one call (none when it is empty) and
// closes it, one after the other.
func createFiles(ctx context.Context, paths []string, content []byte) error {
	for i, path := range paths {
		if i%256 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		fd, err := unix.Open(path, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return fmt.Errorf("bench: create %s: %w", path, err)
		}
		if len(content) > 0 {
			var n int
			if n, err = unix.Write(fd, content); err == nil && n != len(content) {
				err = io.ErrShortWrite
			}
		}
		if err := errors.Join(err, unix.Close(fd)); err != nil {
			return fmt.Errorf("bench: write and close %s: %w", path, err)
		}
	}
	return nil
}
