package bench

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// StatFiles is how many files StatCached goes round.
const StatFiles = 1000

// StatCached makes StatFiles empty files in a fresh folder below dir, lstats each once, and measures count further
// lstats that go round them by their whole paths. Nothing changes the files meanwhile, so that a file system may answer
// from what it remembers, and does as long as its rules let it. The files stay, as those of CreateMany.
func StatCached(ctx context.Context, dir string, count int) (Rate, error) {
	folder, err := os.MkdirTemp(dir, "stat-")
	if err != nil {
		return Rate{}, fmt.Errorf("bench: stat: %w", err)
	}
	names := fileNames(folder, "f", StatFiles)
	if err := createFiles(ctx, names, nil); err != nil {
		return Rate{}, err
	}
	if err := lstats(ctx, names, len(names)); err != nil {
		return Rate{}, err
	}
	began := time.Now()
	if err := lstats(ctx, names, count); err != nil {
		return Rate{}, err
	}
	return Rate{Count: int64(count), Elapsed: time.Since(began)}, nil
}

func lstats(ctx context.Context, paths []string, count int) error {
	var st unix.Stat_t
	for i := range count {
		if i%256 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		path := paths[i%len(paths)]
		if err := unix.Lstat(path, &st); err != nil {
			return fmt.Errorf("bench: lstat %s: %w", path, err)
		}
		if st.Size != 0 || st.Mode&unix.S_IFMT != unix.S_IFREG {
			return fmt.Errorf("bench: lstat %s, an empty file: mode %#o, %d bytes", path, st.Mode, st.Size)
		}
	}
	return nil
}
