package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// cosSlice is one slice of work by two threads, each on its mount and in a folder of its own.
type cosSlice struct {
	length  time.Duration
	shared  bool
	threads [2]maker
}

// maker is one thread: what it makes, and how far it is with changing what the other one has made.
type maker struct {
	folder string       // its own, on its mount
	others string       // the other one's, on the same mount
	made   atomic.Int64 // files closed
	count  int64        // operations
	err    error
}

// newCOSSlice makes the folders of a slice, on disk, so that it pays for nothing that was before it. mounts are two of one file
// system.
func newCOSSlice(mounts []string, length time.Duration, shared bool) (*cosSlice, error) {
	top, err := os.MkdirTemp(mounts[0], "cos-")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	s := &cosSlice{length: length, shared: shared}
	for i := range s.threads {
		at := filepath.Join(mounts[i], filepath.Base(top))
		s.threads[i].folder = filepath.Join(at, fmt.Sprintf("own%d", i))
		s.threads[i].others = filepath.Join(at, fmt.Sprintf("own%d", 1-i))
		if err := os.Mkdir(s.threads[i].folder, 0o755); err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
	}
	unix.Sync()
	for i := range s.threads {
		d, err := os.Open(s.threads[i].folder)
		if err == nil {
			err = errors.Join(d.Sync(), d.Close())
		}
		if err != nil {
			return nil, fmt.Errorf("bench: sync the folder of a thread: %w", err)
		}
	}
	return s, nil
}

// run lets both threads work for the slice's length, and returns what they have done together. What they have made stays: see
// CreateMany. It returns the error of the first call that fails. It runs once.
func (s *cosSlice) run(ctx context.Context) (Rate, error) {
	threads := &s.threads
	ctx, cancel := context.WithTimeout(ctx, s.length)
	defer cancel()
	var wg sync.WaitGroup
	began := time.Now()
	for i := range threads {
		wg.Go(func() {
			if threads[i].err = threads[i].work(ctx, &threads[1-i], s.shared); threads[i].err != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(began)
	if err := errors.Join(threads[0].err, threads[1].err); err != nil {
		return Rate{}, err
	}
	if err := context.Cause(ctx); !errors.Is(err, context.DeadlineExceeded) {
		return Rate{}, err
	}
	return Rate{Count: threads[0].count + threads[1].count, Elapsed: elapsed}, nil
}

// work creates files until ctx ends, and if it shares changes the mode of each file of the other thread once.
func (m *maker) work(ctx context.Context, other *maker, shared bool) error {
	changed := int64(0)
	for ctx.Err() == nil {
		if err := createFiles(context.WithoutCancel(ctx), []string{m.file(m.folder, m.made.Load())}, nil); err != nil {
			return err
		}
		m.made.Add(1)
		m.count++
		if !shared || changed >= other.made.Load() {
			continue
		}
		if err := unix.Chmod(m.file(m.others, changed), 0o600); err != nil {
			return fmt.Errorf("bench: change what the other thread has made: %w", err)
		}
		changed++
		m.count++
	}
	return nil
}

func (m *maker) file(folder string, n int64) string {
	return filepath.Join(folder, fmt.Sprintf("f%07d", n))
}
