package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// StreamBlock is the size of one read or write of the streaming workloads, in bytes.
const StreamBlock = 1 << 20

// block returns length bytes that do not compress, at an address aligned to a page, as O_DIRECT asks for.
func block(length int) []byte {
	const page = 4096
	raw := make([]byte, length+page)
	skip := (page - int(uintptr(unsafe.Pointer(&raw[0]))%page)) % page
	b := raw[skip : skip+length]
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// StreamWrite creates path (or cuts it to nothing) and writes length bytes in blocks of StreamBlock. It returns two
// rates: of open, writes and close; and of the same with an fsync after it.
func StreamWrite(ctx context.Context, path string, length int64) (written, synced Rate, err error) {
	buf := block(StreamBlock)
	began := time.Now()
	if err := writeFile(ctx, path, buf, length); err != nil {
		return Rate{}, Rate{}, err
	}
	written = Rate{Count: length, Elapsed: time.Since(began)}
	if err := syncFile(path); err != nil {
		return Rate{}, Rate{}, err
	}
	return written, Rate{Count: length, Elapsed: time.Since(began)}, nil
}

// SmallBlock is the size of one write of SmallWrite, in bytes.
const SmallBlock = 4096

// SmallWrite creates path (or cuts it to nothing) and writes count blocks of SmallBlock bytes, one behind the other and
// without an fsync: what is measured is open, writes and close.
func SmallWrite(ctx context.Context, path string, count int) (Rate, error) {
	buf := block(SmallBlock)
	began := time.Now()
	if err := writeFile(ctx, path, buf, int64(count)*SmallBlock); err != nil {
		return Rate{}, err
	}
	return Rate{Count: int64(count), Elapsed: time.Since(began)}, nil
}

// writeFile writes length bytes to path, made or cut to nothing, by calls of buf each.
func writeFile(ctx context.Context, path string, buf []byte, length int64) error {
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_TRUNC|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return fmt.Errorf("bench: open %s: %w", path, err)
	}
	for done := int64(0); done < length && err == nil; {
		if err = ctx.Err(); err == nil {
			var n int
			n, err = unix.Write(fd, buf[:min(int64(len(buf)), length-done)])
			done += int64(n)
		}
	}
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return fmt.Errorf("bench: write %s: %w", path, err)
	}
	return nil
}

func syncFile(path string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Fsync(fd), unix.Close(fd))
	}
	if err != nil {
		return fmt.Errorf("bench: fsync %s: %w", path, err)
	}
	return nil
}

// DropPages makes the mount's kernel forget the clean pages of a file, so that the next reads pass through the file
// system. Caches behind the mount stay warm.
func DropPages(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED), unix.Close(fd))
	}
	if err != nil {
		return fmt.Errorf("bench: drop the pages of %s: %w", path, err)
	}
	return nil
}

// StreamRead drops the mount's pages of path and reads it to its end in blocks of StreamBlock. Count is the bytes read.
func StreamRead(ctx context.Context, path string) (Rate, error) {
	if err := DropPages(path); err != nil {
		return Rate{}, err
	}
	buf := block(StreamBlock)
	began := time.Now()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Rate{}, fmt.Errorf("bench: open %s: %w", path, err)
	}
	var count int64
	for err == nil {
		if err = ctx.Err(); err == nil {
			var n int
			if n, err = unix.Read(fd, buf); err == nil && n == 0 {
				err = io.EOF
			}
			count += int64(max(n, 0))
		}
	}
	if !errors.Is(err, io.EOF) {
		_ = unix.Close(fd)
		return Rate{}, fmt.Errorf("bench: read %s: %w", path, err)
	}
	if err := unix.Close(fd); err != nil {
		return Rate{}, fmt.Errorf("bench: close %s: %w", path, err)
	}
	return Rate{Count: count, Elapsed: time.Since(began)}, nil
}
