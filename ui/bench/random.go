package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"
)

// RandomBlock is the size of one read of RandomRead, in bytes.
const RandomBlock = 4096

// RandomRead reads count blocks of RandomBlock bytes of path by O_DIRECT, one after the other, at aligned offsets that
// seed decides. Precondition: the file holds a block at least.
func RandomRead(ctx context.Context, path string, count int, seed uint64) (Rate, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return Rate{}, fmt.Errorf("bench: open %s by O_DIRECT: %w", path, err)
	}
	rate, err := randomReads(ctx, fd, count, seed)
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return Rate{}, fmt.Errorf("bench: random reads of %s: %w", path, err)
	}
	return rate, nil
}

func randomReads(ctx context.Context, fd, count int, seed uint64) (Rate, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Rate{}, err
	}
	blocks := st.Size / RandomBlock
	if blocks == 0 {
		return Rate{}, fmt.Errorf("a file of %d bytes holds no block", st.Size)
	}
	buf := block(RandomBlock)
	rng := rand.New(rand.NewPCG(seed, 0))
	began := time.Now()
	for i := range count {
		if i%256 == 0 && ctx.Err() != nil {
			return Rate{}, ctx.Err()
		}
		offset := rng.Int64N(blocks) * RandomBlock
		if n, err := unix.Pread(fd, buf, offset); err != nil || n != len(buf) {
			return Rate{}, fmt.Errorf("%d bytes at %d: %w", n, offset, err)
		}
	}
	return Rate{Count: int64(count), Elapsed: time.Since(began)}, nil
}
