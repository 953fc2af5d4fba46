package suite

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// uuid is the i-th client's, as a server's exports show it.
func (m *mounts) uuid(t testing.TB, node string, i int) string {
	t.Helper()
	for line := range strings.Lines(m.param(t, node, "*.*.exports")) {
		if strings.Contains(line, m.at[i]+" (pid") {
			uuid, _, _ := strings.Cut(line, " ")
			return uuid
		}
	}
	t.Fatalf("%s has no export of %s", node, m.at[i])
	return ""
}

// evict throws the i-th client out of every target, as an operator does.
func (m *mounts) evict(t testing.TB, i int) {
	t.Helper()
	for _, node := range []string{"mds", "oss0", "oss1"} {
		if _, err := m.lctl("evict_client", "--sock", m.node(t, node).sock(t), "*", m.uuid(t, node, i)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEvictedHolderFreesItsLocksAndWaitersLeaveNoGhosts (case 27, through lctl): who is evicted holds nothing any more, and a
// waiter that is killed does not stay in any queue.
func TestEvictedHolderFreesItsLocksAndWaitersLeaveNoGhosts(t *testing.T) {
	t.Parallel()
	m := newMounts(t, 3)
	dirs := m.folders(t)
	waiting := func(want int) {
		t.Helper()
		must(t, poll(20*time.Second, func() error {
			if n := m.number(t, "mds", "ldlm.namespaces.mdt-*.lock_waiting_count"); n != want {
				return retry("%d requests wait for locks, want %d", n, want)
			}
			return nil
		}))
	}
	for _, kind := range []string{"flock", "fcntl"} {
		path := "/" + kind
		must(t, touch(dirs[0]+path))
		held := openLockFile(t, dirs[1]+path)
		must(t, lockWith(kind, held))
		granted := make(chan error, 1)
		mine := openLockFile(t, dirs[0]+path)
		go func() { granted <- lockWith(kind, mine) }()
		waiting(1)
		ghost := startChild(t, kind, dirs[2]+path) // a waiter that is killed
		waiting(2)
		must(t, ghost.cmd.Process.Kill())
		_ = ghost.cmd.Wait()
		waiting(1)
		began := time.Now()
		m.evict(t, 1)
		within(t, 10*time.Second, "the lock of an evicted client", func() error { return <-granted })
		t.Logf("%s: granted %v after the eviction", kind, time.Since(began).Round(time.Millisecond))
		waiting(0)
		_ = unix.Close(held)
		third := openLockFile(t, dirs[2]+path)
		go func() { granted <- lockWith(kind, third) }()
		waiting(1)
		must(t, unix.Close(mine))
		within(t, 10*time.Second, "the lock after the unlock", func() error { return <-granted })
		must(t, unix.Close(third))
		must(t, poll(30*time.Second, func() error { // the evicted mount recovers by itself
			if err := touch(dirs[1] + path); err != nil {
				return retry("the evicted mount: %v", err)
			}
			return nil
		}))
	}
}

// TestEvictedMountComesBackAndCanBeUnmounted (case 50, through lctl): calls on what was open fail with EIO, new ones work, and a
// mount that was evicted is gone within five seconds of umount.
func TestEvictedMountComesBackAndCanBeUnmounted(t *testing.T) {
	t.Parallel()
	m := newMounts(t, 2)
	dirs := m.folders(t)
	must(t, os.WriteFile(dirs[1]+"/f", []byte("old"), 0o644))
	fd, err := unix.Open(dirs[1]+"/f", unix.O_RDWR|unix.O_CLOEXEC, 0)
	must(t, err)
	must(t, pwrite(fd, "mine", 0))
	must(t, unix.Fsync(fd))
	must(t, pwrite(fd, strings.Repeat("dirty", 10_000), 100))
	m.evict(t, 1)
	must(t, os.WriteFile(dirs[0]+"/f", []byte("other"), 0o644))
	is(t, "fsync of the evicted program", unix.Fsync(fd), unix.EIO, unix.ESTALE)
	_ = unix.Close(fd)
	must(t, poll(30*time.Second, func() error {
		if _, err := os.ReadDir(dirs[1]); err != nil {
			return retry("ls on the evicted mount: %v", err)
		}
		return nil
	}))
	if text, err := os.ReadFile(dirs[1] + "/f"); err != nil || string(text) != "other" {
		t.Errorf("the evicted mount reads %.40q: %v", text, err)
	}
	m.evict(t, 1)
	began := time.Now()
	within(t, 5*time.Second, "umount of an evicted mount", func() error {
		out, err := output("", "umount", m.at[1])
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	t.Logf("umount took %v", time.Since(began).Round(time.Millisecond))
	n := m.client(t, 1)
	select {
	case <-n.done:
		n.cmd = nil
	case <-time.After(stopTimeout):
		t.Error("the process of the unmounted client stays")
	}
}

// TestSyncedFilesOutliveEveryKill (case 47): a program writes files, syncs each and its folder, and notes it elsewhere; clients, MDS,
// OSSs or all are killed at random. Every file that was noted is there and whole.
func TestSyncedFilesOutliveEveryKill(t *testing.T) {
	t.Parallel()
	m := newMounts(t, 1)
	m.set(t, "mds", "-P", "*.*.recovery_time_soft=5")
	dir := m.at[0] + "/kept"
	must(t, os.Mkdir(dir, 0o755))
	manifest := filepath.Join(t.TempDir(), "manifest")
	files, rounds := size(60, 4000), size(5, 25)
	rnd := rand.New(rand.NewPCG(seed(t), 0))
	for round := range rounds {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- writeSynced(ctx, dir, manifest, round*files, (round+1)*files) }()
		select { // a kill somewhere within
		case err := <-ended:
			ended <- err
		case <-time.After(time.Duration(rnd.IntN(size(3000, 20_000))) * time.Millisecond):
		}
		who := [][]string{{"client"}, {"mds"}, {"oss0"}, {"oss1"}, {"client", "mds", "oss0", "oss1"}, {"mds", "oss0", "oss1"}}[rnd.IntN(6)]
		t.Logf("kill of %v after %d files", who, len(readManifest(t, manifest)))
		cancel()
		for _, name := range who {
			if name == "client" {
				m.killClient(t, 0)
			} else {
				m.node(t, name).kill(t)
			}
		}
		for _, name := range []string{"mds", "oss0", "oss1"} {
			if m.node(t, name).cmd == nil {
				m.node(t, name).again(t)
			}
		}
		if m.client(t, 0).cmd == nil {
			m.startClient(t, 0)
		}
		within(t, 90*time.Second, "the program", func() error { <-ended; return nil }) // its error is its mount's end
	}
	noted := readManifest(t, manifest)
	if len(noted) < files/4 {
		t.Fatalf("only %d files are in the manifest", len(noted))
	}
	for name, sum := range noted {
		text, err := os.ReadFile(dir + "/" + name)
		if got := fmt.Sprintf("%x", sha256.Sum256(text)); err != nil || got != sum {
			t.Errorf("%s: %d bytes, sum %.16s, want %.16s: %v", name, len(text), got, sum, err)
		}
	}
	t.Logf("%d files are whole", len(noted))
}

// writeSynced writes the files first to last, each synced with its folder and then noted, until ctx ends or one fails.
func writeSynced(ctx context.Context, dir, manifest string, first, last int) error {
	list, err := os.OpenFile(manifest, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer list.Close()
	folder, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer folder.Close()
	for i := first; i < last && ctx.Err() == nil; i++ {
		text := bytes.Repeat([]byte(fmt.Sprintf("%08d", i)), 512)
		name := fmt.Sprintf("f%d", i)
		f, err := os.OpenFile(dir+"/"+name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		_, err = f.Write(text)
		if err == nil {
			err = f.Sync()
		}
		if bad := f.Close(); err == nil {
			err = bad
		}
		if err == nil {
			err = folder.Sync()
		}
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(list, "%s %x\n", name, sha256.Sum256(text)); err != nil {
			return err
		}
	}
	return nil
}

func readManifest(t testing.TB, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	noted := map[string]string{}
	for s := bufio.NewScanner(f); s.Scan(); {
		if name, sum, ok := strings.Cut(s.Text(), " "); ok {
			noted[name] = sum
		}
	}
	return noted
}
