package boltdev_test

import (
	"os"
	"testing"
)

// tempDir is a data folder to be. rapid calls it many times in one test, so it is removed at the end and not named
// after the test.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "boltdev")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
