package bench

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

func TestCheckListing(t *testing.T) {
	const (
		a = "-rw-r--r-- 1 root root 7 Nov 30 12:05 a\n"
		b = "-rw-r--r-- 1 1000 1000 7 Nov 30  2024 b\n"
	)
	for _, c := range []struct {
		name, output string
		count        int
		ok           bool
	}{
		{"two files", "total 8\n" + a + b, 2, true},
		{"an empty folder", "total 0\n", 0, true},
		{"one too few", "total 4\n" + a, 2, false},
		{"one too many", "total 8\n" + a + b, 1, false},
		{"another size", "total 4\n-rw-r--r-- 1 root root 8 Nov 30 12:05 a\n", 1, false},
		{"unknown attributes", "total 4\n-????????? ? ? ? ? ? a\n", 1, false},
		{"a folder", "total 4\ndrwxr-xr-x 1 root root 7 Nov 30 12:05 a\n", 1, false},
		{"a short line", "total 4\n-rw-r--r--\n", 1, false},
		{"an empty line", "total 4\n\n" + a, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := checkListing([]byte(c.output), c.count, 7); (err == nil) != c.ok {
				t.Errorf("checkListing: %v", err)
			}
		})
	}
}

func TestListLong(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	if err := createFiles(ctx, fileNames(dir, "f", 20), []byte("four")); err != nil {
		t.Fatal(err)
	}
	if rate, err := ListLong(ctx, dir, 20, 4); err != nil || rate.Count != 20 || rate.Elapsed <= 0 {
		t.Errorf("ListLong: %+v, %v", rate, err)
	}
	if err := os.Truncate(filepath.Join(dir, "f0000007"), 3); err != nil {
		t.Fatal(err)
	}
	if _, err := ListLong(ctx, dir, 20, 4); err == nil {
		t.Error("ListLong takes a wrong size for a right one")
	}
	if _, err := ListLong(ctx, filepath.Join(dir, "absent"), 0, 0); err == nil {
		t.Error("ListLong of a folder that is not there")
	}
}
