package suite

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// lctlOf runs lctl for some of the cluster's processes alone, and returns its output and error.
func (c *cluster) lctlOf(t testing.TB, nodes []string, args ...string) (string, error) {
	t.Helper()
	bin, err := strakeBinary()
	must(t, err)
	all := []string{bin, "lctl"}
	for _, name := range nodes {
		pid := c.node(t, name).cmd.Process.Pid
		must(t, poll(startTimeout, func() error {
			found, err := filepath.Glob(fmt.Sprintf("/run/strake/*-%d.sock", pid))
			if err != nil || len(found) == 0 {
				return retry("no parameter socket of %s: %v", name, err)
			}
			all = append(all, "--sock", found[0])
			return nil
		}))
	}
	return output("", append(all, args...)...)
}

func (c *cluster) mustLctl(t testing.TB, nodes []string, args ...string) string {
	t.Helper()
	out, err := c.lctlOf(t, nodes, args...)
	if err != nil {
		t.Fatalf("lctl %q: %v\n%s", args, err, out)
	}
	return out
}

// objectFiles counts the objects on the disks of the OSTs that are not empty.
func (c *cluster) objectFiles(t testing.TB) (n int) {
	t.Helper()
	for i := range c.osts {
		err := filepath.WalkDir(filepath.Join(c.base, fmt.Sprintf("ost%d", i), "O"), func(_ string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			if info, err := e.Info(); err == nil && info.Size() > 0 {
				n++
			}
			return nil
		})
		must(t, err)
	}
	return n
}

// TestBackupAndRestore: an MDT is backed up while a client works, loses its disk, and is restored. What the backup has is there with
// its data; what was made since has no name, but its objects stay until lctl says otherwise; no inode number comes twice.
func TestBackupAndRestore(t *testing.T) {
	c := newCluster(t, layoutProcesses, clusterOptions{})
	mds := []string{"mds"}
	dir := filepath.Join(c.mnt, "d")
	must(t, os.Mkdir(dir, 0o755))
	text := func(i int) []byte { return bytes.Repeat(fmt.Appendf(nil, "file %d\n", i), 1000) }
	write := func(name string, i int) {
		t.Helper()
		f, err := os.Create(filepath.Join(dir, name))
		must(t, err)
		_, err = f.Write(text(i))
		must(t, err)
		must(t, f.Sync())
		must(t, f.Close())
	}
	inode := func(name string) uint64 {
		t.Helper()
		var s unix.Stat_t
		must(t, unix.Stat(filepath.Join(dir, name), &s))
		return s.Ino
	}
	for i := range 40 {
		write(fmt.Sprintf("before%d", i), i)
	}
	// A client works while the backup is made.
	stop, worked := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		defer func() { worked <- n }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			name := filepath.Join(dir, fmt.Sprintf("live%d", n))
			if err := os.WriteFile(name, text(n), 0o644); err != nil {
				t.Error(err)
				return
			}
			if n%3 == 0 {
				if err := os.Remove(name); err != nil {
					t.Error(err)
					return
				}
			}
			n++
		}
	}()
	file := filepath.Join(c.base, "backup")
	for range 3 {
		out := c.mustLctl(t, mds, "backup", "strake-MDT0000", file)
		if !regexp.MustCompile(`^strake-MDT0000: \d+ bytes in [\d.]+ s, transno 0x[0-9a-f]+: `).MatchString(out) {
			t.Errorf("%q", out)
		}
	}
	close(stop)
	t.Logf("%d files made meanwhile", <-worked)
	if out := c.mustLctl(t, mds, "get_param", "-n", "mdt.strake-MDT0000.backup"); !strings.Contains(out, "state: complete") {
		t.Error(out)
	}
	used := map[uint64]bool{}
	for i := range 30 {
		name := fmt.Sprintf("after%d", i)
		write(name, i)
		used[inode(name)] = true
	}
	must(t, os.Remove(filepath.Join(dir, "before0")))
	unix.Sync()

	// The MDT's disk is lost.
	n := c.node(t, "mds")
	n.kill(t)
	data := filepath.Join(c.base, "mdt")
	bin, err := strakeBinary()
	must(t, err)
	if out, err := output("", bin, "restore", file, "--data", data); err == nil || !strings.Contains(out, "not empty") {
		t.Errorf("a restore over a target: %v\n%s", err, out)
	}
	must(t, os.Rename(data, data+".lost"))
	out := run(t, "", bin, "restore", file, "--data", data)
	if !strings.Contains(out, "strake-MDT0000 of file system strake") || !strings.Contains(out, "lctl restored strake-MDT0000") {
		t.Error(out)
	}
	objects := c.objectFiles(t)
	n.again(t)
	must(t, poll(60*time.Second, func() error {
		if _, err := os.ReadFile(filepath.Join(dir, "before1")); err != nil {
			return retry("%v", err)
		}
		return nil
	}))
	for i := 1; i < 40; i++ {
		got, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("before%d", i)))
		if err != nil || !bytes.Equal(got, text(i)) {
			t.Errorf("before%d: %d bytes, %v", i, len(got), err)
		}
	}
	for i := range 30 {
		if _, err := os.Stat(filepath.Join(dir, fmt.Sprintf("after%d", i))); !os.IsNotExist(err) {
			t.Errorf("after%d: %v", i, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "before0")); err != nil {
		t.Errorf("what was removed after the backup has no name: %v", err)
	}
	for i := range 30 {
		name := fmt.Sprintf("new%d", i)
		write(name, i)
		if used[inode(name)] {
			t.Errorf("%s has the inode number of a file that was made after the backup", name)
		}
	}
	for i := range 30 {
		got, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("new%d", i)))
		if err != nil || !bytes.Equal(got, text(i)) {
			t.Errorf("new%d: %d bytes, %v", i, len(got), err)
		}
	}
	if now := c.objectFiles(t); now < objects+30 {
		t.Errorf("%d objects, there were %d before the restored MDT started", now, objects)
	}
	// Restarted it still keeps them; told to, it does not.
	n.terminate(t)
	n.again(t)
	must(t, poll(60*time.Second, func() error {
		out, err := c.lctlOf(t, mds, "restored", "strake-MDT0000") // the target may not be there yet
		if err != nil || !strings.Contains(out, "kept: strake-OST0000 objects") || strings.Contains(out, "unseen") {
			return retry("%v %s", err, out)
		}
		return nil
	}))
	if now := c.objectFiles(t); now < objects+30 {
		t.Errorf("%d objects after the restart, %d before", now, objects+30)
	}
	c.mustLctl(t, mds, "restored", "strake-MDT0000", "--destroy-orphans")
	if out := c.mustLctl(t, mds, "restored", "strake-MDT0000"); out != "" {
		t.Errorf("it is settled: %q", out)
	}
	if now := c.objectFiles(t); now > objects {
		t.Errorf("%d objects are left of %d and 30", now, objects)
	}
	for i := range 30 {
		got, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("new%d", i)))
		if err != nil || !bytes.Equal(got, text(i)) {
			t.Errorf("new%d: %d bytes, %v", i, len(got), err)
		}
	}
	// What was removed after the backup has its name back, and its objects are gone where the OSTs had heard of it.
	gone, err := filepath.Glob(filepath.Join(dir, "live*"))
	must(t, err)
	for _, name := range append(gone, filepath.Join(dir, "before0")) {
		must(t, os.Remove(name))
	}
}
