package suite

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestChecksFindWhatTheyLookFor gives the checks of this package wrong file systems, so that a pass means something.
func TestChecksFindWhatTheyLookFor(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	x := newExerciser(t, path, 1)
	defer x.close()
	for range 300 {
		must(t, x.step())
	}
	must(t, x.verify())
	if len(x.want) == 0 {
		must(t, x.write(false))
	}
	_, err := unix.Pwrite(x.fd, []byte{x.want[0] ^ 1}, 0)
	must(t, err)
	if x.verify() == nil {
		t.Error("one wrong byte passes")
	}
	must(t, unix.Ftruncate(x.fd, int64(len(x.want)-1)))
	if x.verify() == nil {
		t.Error("a short file passes")
	}

	must(t, unix.Ftruncate(x.fd, 0))
	must(t, unix.Ftruncate(x.fd, 1<<20)) // all a hole
	lost := make([]byte, 1<<20)
	must(t, holes(x.fd, lost))
	lost[500_000] = 1
	if holes(x.fd, lost) == nil {
		t.Error("a hole over data passes")
	}

	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	for _, root := range []string{a, b} {
		must(t, os.Mkdir(root, 0o755))
		must(t, os.WriteFile(root+"/f", []byte("x"), 0o644))
	}
	if d := differences(a, b); d != "" {
		t.Errorf("two equal trees differ: %s", d)
	}
	for what, change := range map[string]func() error{
		"mode":    func() error { return os.Chmod(b+"/f", 0o600) },
		"content": func() error { return os.WriteFile(b+"/f", []byte("y"), 0o644) },
		"xattr":   func() error { return unix.Lsetxattr(b+"/f", "user.a", []byte("b"), 0) },
		"name":    func() error { return os.Rename(b+"/f", b+"/g") },
	} {
		before := hashFolder(t, b)
		must(t, change())
		if differences(a, b) == "" {
			t.Errorf("another %s passes as the same", what)
		}
		if what != "xattr" && (hashFolder(t, b) == before || changes(before, hashFolder(t, b)) == "") {
			t.Errorf("another %s leaves the folder's description", what)
		}
		must(t, os.RemoveAll(b))
		must(t, os.Mkdir(b, 0o755))
		must(t, os.WriteFile(b+"/f", []byte("x"), 0o644))
	}

	stderr := "{\"level\":\"INFO\",\"msg\":\"a\"}\nstrake: one\n{\"level\":\"ERROR\",\"msg\":\"two\"}\n"
	if lines := complaints(stderr); len(lines) != 2 || !strings.Contains(lines[1], "two") {
		t.Errorf("complaints: %q", lines)
	}
}
