package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"
)

// ListLong runs `ls -l` on dir, whose files all have size bytes, in the C locale and with its output in memory. Count is
// the files, Elapsed the life of the process. It returns an error when the output is not count files of that size.
func ListLong(ctx context.Context, dir string, count int, size int64) (Rate, error) {
	const lineBytes = 80 // of a common line; the buffer grows past it
	var stdout, stderr bytes.Buffer
	stdout.Grow(count * lineBytes)
	cmd := exec.CommandContext(ctx, "ls", "-l", dir)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return Rate{}, fmt.Errorf("bench: ls -l %s: %w: %s", dir, err, bytes.TrimSpace(stderr.Bytes()[:min(stderr.Len(), 500)]))
	}
	rate := Rate{Count: int64(count), Elapsed: time.Since(began)}
	if err := checkListing(stdout.Bytes(), count, size); err != nil {
		return Rate{}, fmt.Errorf("bench: ls -l %s: %w", dir, err)
	}
	return rate, nil
}

// checkListing says whether the output of `ls -l`, a line "total N" and then one line a file of the form
// "-rw-r--r-- LINKS OWNER GROUP SIZE DATE... NAME", lists count regular files of size bytes each.
func checkListing(output []byte, count int, size int64) error {
	found := 0
	for line := range bytes.Lines(output) {
		if bytes.HasPrefix(line, []byte("total ")) {
			continue
		}
		fields := bytes.Fields(line)
		if len(fields) < 9 || fields[0][0] != '-' {
			return fmt.Errorf("not the line of a regular file: %q", line)
		}
		if got, err := strconv.ParseInt(string(fields[4]), 10, 64); err != nil || got != size {
			return fmt.Errorf("not %d bytes: %q", size, line)
		}
		found++
	}
	if found != count {
		return fmt.Errorf("%d files instead of %d", found, count)
	}
	return nil
}
