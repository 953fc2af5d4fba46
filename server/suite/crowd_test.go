package suite

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// unpunished runs f and checks that no client was evicted meanwhile: nothing ended by a timeout.
func (m *mounts) unpunished(t *testing.T, f func()) {
	t.Helper()
	if m.plain {
		f()
		return
	}
	before := m.evictions(t)
	f()
	if n := m.evictions(t) - before; n != 0 {
		t.Errorf("%d clients were evicted", n)
	}
}

// TestTreeRemovedFromTwoMountsWhileOthersListIt: rm -rf of one tree from two mounts, ls -lR on two others; all end in time
// and nothing is left.
func TestTreeRemovedFromTwoMountsWhileOthersListIt(t *testing.T) {
	coherent(t, func(t *testing.T, m *mounts) {
		dirs := m.folders(t)
		files, limit := size(500, 20_000), size(time.Minute, 10*time.Minute)
		for i := range files / 50 {
			sub := fmt.Sprintf("%s/tree/%d/%d", dirs[0], i%10, i)
			must(t, os.MkdirAll(sub, 0o755))
			populate(t, sub, 50)
		}
		if out := run(t, dirs[1], "find", "tree", "-type", "f"); strings.Count(out, "\n") != files/50*50 {
			t.Fatalf("the tree has %d files, want %d", strings.Count(out, "\n"), files/50*50)
		}
		began := time.Now()
		var gone atomic.Int64
		m.unpunished(t, func() {
			var tasks []func() error
			for i, dir := range dirs {
				if i < 2 {
					tasks = append(tasks, func() error {
						defer gone.Add(1)
						if out, err := output(dir, "rm", "-rf", "tree"); err != nil {
							return fmt.Errorf("rm -rf on M%d: %w: %.500s", i, err, out)
						}
						return nil
					})
					continue
				}
				tasks = append(tasks, func() error {
					for gone.Load() < 2 { // a name that goes while it is listed is no fault: status 1 or 2
						if out, err := output(dir, "ls", "-lR", "."); err != nil && !strings.Contains(out, "No such file") {
							return fmt.Errorf("ls -lR on M%d: %w: %.500s", i, err, out)
						}
					}
					return nil
				})
			}
			together(t, limit, tasks...)
		})
		t.Logf("%d files were gone after %v", files, time.Since(began).Round(time.Millisecond))
		for i, dir := range dirs {
			if _, err := os.Lstat(dir + "/tree"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("M%d still has the tree: %v", i, err)
			}
		}
	})
}

// TestSqliteFromTwoMountsWithRollbackJournal (case 22): four writers on one mount and two on another, one of them killed
// in the middle of a transaction; what was committed is there, and the database is whole.
func TestSqliteFromTwoMountsWithRollbackJournal(t *testing.T) {
	need(t, "sqlite3")
	coherent(t, func(t *testing.T, m *mounts) {
		dirs := m.folders(t)
		sql := func(dir, text string) (string, error) {
			out, err := output("", "sqlite3", "-bail", "-cmd", ".timeout 120000", dir+"/test.db", text)
			if err != nil {
				return "", fmt.Errorf("sqlite3 in %s: %w: %.500s", dir, err, out)
			}
			return strings.TrimSpace(out), nil
		}
		if out, err := sql(dirs[0], "PRAGMA journal_mode=delete; CREATE TABLE log(id INTEGER PRIMARY KEY, writer INT, n INT, text TEXT);"); err != nil || out != "delete" {
			t.Fatalf("journal mode %q: %v", out, err)
		}
		transactions := size(8, 170)
		var tasks []func() error
		for w := range 6 {
			dir := dirs[map[bool]int{true: 0, false: 1}[w < 4]]
			tasks = append(tasks, func() error {
				for i := range transactions { // a process each: the next one finds what the last one's cache held
					if _, err := sql(dir, fmt.Sprintf("BEGIN IMMEDIATE; INSERT INTO log(writer,n,text) VALUES(%d,%d,hex(randomblob(700))); "+
						"UPDATE log SET text=text||'x' WHERE id%%7=%d; COMMIT;", w, i, i%7)); err != nil {
						return err
					}
				}
				return nil
			})
		}
		tasks = append(tasks, func() error { // and one that dies in the middle, again and again
			for range size(3, 30) {
				script := fmt.Sprintf(`(echo "BEGIN IMMEDIATE; INSERT INTO log(writer,n,text) VALUES(99,0,hex(randomblob(9000)));"; sleep 0.2; echo "SELECT 1;"; sleep 0.5) | `+
					`sqlite3 -bail -cmd ".timeout 120000" %s/test.db & p=$!; sleep 0.4; kill -9 $p; wait $p || true`, dirs[1])
				_, _ = output("", "sh", "-c", script)
			}
			return nil
		})
		together(t, size(2*time.Minute, 20*time.Minute), tasks...)
		for i, dir := range dirs {
			for query, want := range map[string]string{
				"SELECT count(*) FROM log WHERE writer<10;": fmt.Sprint(6 * transactions),
				"SELECT count(*) FROM log WHERE writer=99;": "0",
				"PRAGMA integrity_check;":                   "ok",
			} {
				if out, err := sql(dir, query); err != nil || out != want {
					t.Errorf("M%d: %s gives %.300q, want %q: %v", i, query, out, want, err)
				}
			}
		}
	})
}

// TestFullSlotsOfTwoMountsThatWantEachOthersLocks (DESIGN 3): more calls at once than either client has slots, all on a few
// objects that the other one holds, data and names. Each ends soon.
func TestFullSlotsOfTwoMountsThatWantEachOthersLocks(t *testing.T) {
	var m *mounts
	if dir := os.Getenv("STRAKE_SUITE_DIR"); dir != "" {
		m = localMounts(t, dir, 2)
	} else {
		m = newMounts(t, 2) // its own: a client that hangs would take the others' mounts along
		defer m.quitAfterFailure(t)
	}
	dirs := m.folders(t)
	const files, tasks = 3, 40
	for i := range files {
		m.setstripe(t, fmt.Sprintf("%s/f%d", dirs[0], i), 2, "64K")
	}
	s := seed(t)
	duration := size(2*time.Second, time.Minute)
	var slowest, calls atomic.Int64
	var list []func() error
	for n, dir := range dirs[:2] {
		for task := range tasks {
			rng := rand.New(rand.NewPCG(s, uint64(n*tasks+task)))
			list = append(list, func() error {
				var fds [files]int
				for i := range fds {
					fd, err := unix.Open(fmt.Sprintf("%s/f%d", dir, i), unix.O_RDWR|unix.O_CLOEXEC, 0)
					if err != nil {
						return err
					}
					defer unix.Close(fd)
					fds[i] = fd
				}
				buf := make([]byte, 2*stripeBytes)
				return until(duration, func(i int) error {
					fd, path := fds[rng.IntN(files)], fmt.Sprintf("%s/f%d", dir, rng.IntN(files))
					off := int64(rng.IntN(3 * stripeBytes))
					began := time.Now()
					err := busyCall(rng, fd, path, buf, off)
					took := time.Since(began)
					calls.Add(1)
					slowest.Store(max(slowest.Load(), int64(took)))
					if err == nil && took > callLimit {
						err = fmt.Errorf("a call took %v", took)
					}
					return err
				})()
			})
		}
	}
	m.unpunished(t, func() { together(t, duration+3*callLimit, list...) })
	t.Logf("%d calls, the slowest took %v", calls.Load(), time.Duration(slowest.Load()).Round(time.Millisecond))
}

// busyCall makes one random call that needs a lock which others hold.
func busyCall(rng *rand.Rand, fd int, path string, buf []byte, off int64) error {
	var err error
	switch rng.IntN(8) {
	case 0, 1:
		_, err = unix.Pwrite(fd, buf, off)
	case 2, 3:
		_, err = unix.Pread(fd, buf, off)
	case 4:
		err = unix.Fsync(fd)
	case 5:
		err = unix.Ftruncate(fd, off)
	case 6:
		err = unix.Chmod(path, 0o600+uint32(rng.IntN(0o100)))
	default:
		var st unix.Stat_t
		err = unix.Lstat(path, &st)
	}
	if err != nil {
		err = fmt.Errorf("%s at %d: %w", path, off, err)
	}
	return err
}

// TestOppositeStripeOrdersDoNotLock (DESIGN 6): calls that need the locks of several stripes, of one file or of two, in
// opposite orders on two mounts: copies both ways, writes from a mapping of the other file, truncates, appends.
func TestOppositeStripeOrdersDoNotLock(t *testing.T) {
	coherent(t, func(t *testing.T, m *mounts) {
		dirs := m.folders(t)
		const length = 6 * stripeBytes
		for _, name := range []string{"f", "g"} {
			m.setstripe(t, dirs[0]+"/"+name, 4, "64K")
			must(t, os.WriteFile(dirs[0]+"/"+name, make([]byte, length), 0o644))
		}
		duration := size(2*time.Second, time.Minute)
		var slowest atomic.Int64
		var list []func() error
		for n, dir := range dirs {
			from, to := "f", "g"
			if n%2 == 1 {
				from, to = to, from
			}
			s := rand.New(rand.NewPCG(seed(t), uint64(n)))
			list = append(list, func() error { return crossFiles(s, dir+"/"+from, dir+"/"+to, length, duration, &slowest) })
		}
		m.unpunished(t, func() { together(t, duration+3*callLimit, list...) })
		t.Logf("the slowest call took %v", time.Duration(slowest.Load()).Round(time.Millisecond))
	})
}

// crossFiles makes calls that touch all stripes of both files.
func crossFiles(rng *rand.Rand, from, to string, length int, duration time.Duration, slowest *atomic.Int64) error {
	src, err := unix.Open(from, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(src)
	dst, err := unix.Open(to, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(dst)
	mapping, err := unix.Mmap(src, 0, length, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(mapping) }()
	buf := make([]byte, length)
	return until(duration, func(int) error {
		began := time.Now()
		var err error
		switch rng.IntN(5) {
		case 0:
			in, out := int64(0), int64(0)
			_, err = unix.CopyFileRange(src, &in, dst, &out, length, 0)
		case 1: // the kernel reads pages of one file in the middle of a write to the other
			_, err = unix.Pwrite(dst, mapping, int64(rng.IntN(1000)))
		case 2:
			_, err = unix.Pwrite(src, buf, int64(rng.IntN(stripeBytes)))
		case 3:
			_, err = unix.Pread(dst, buf, 0)
		default:
			err = appendTo(to, "end", 0)
			if err == nil {
				err = unix.Ftruncate(dst, int64(length+rng.IntN(stripeBytes))) // never below the mappings
			}
		}
		took := time.Since(began)
		slowest.Store(max(slowest.Load(), int64(took)))
		if err == nil && took > callLimit {
			err = fmt.Errorf("a call took %v", took)
		}
		return err
	})()
}

// TestRenamesAgainstRmdirOfAncestorsAndDescendants (DESIGN 4, 6): folders move between and into each other on several
// mounts while others remove and make their ancestors and descendants; every call ends soon and what is left is a tree.
func TestRenamesAgainstRmdirOfAncestorsAndDescendants(t *testing.T) {
	coherent(t, func(t *testing.T, m *mounts) {
		dirs := m.folders(t)
		duration := size(3*time.Second, time.Minute)
		s := seed(t)
		var slowest, calls, worked, stale atomic.Int64
		var list []func() error
		path := func(rng *rand.Rand) string { // up to four levels of two names
			p := ""
			for range 1 + rng.IntN(4) {
				p += pick(rng, "/a", "/b")
			}
			return p
		}
		for n, dir := range dirs {
			for task := range 2 {
				rng := rand.New(rand.NewPCG(s, uint64(2*n+task)))
				list = append(list, until(duration, func(int) error {
					p, q := path(rng), path(rng)
					if len(q) > len(p) {
						p, q = q, p // nothing sinks: the tree keeps four levels
					}
					call := func() error { return unix.Mkdir(dir+p, 0o755) }
					switch rng.IntN(6) {
					case 0, 1:
						call = func() error { return unix.Rename(dir+p, dir+q) }
					case 2:
						call = func() error { return unix.Rmdir(dir + p) }
					case 3:
						p = p[:len(q)] // of one level
						call = func() error {
							return unix.Renameat2(unix.AT_FDCWD, dir+p, unix.AT_FDCWD, dir+q, unix.RENAME_EXCHANGE)
						}
					}
					began, again := time.Now(), false
					err := call()
					// The kernel itself says so of a folder that another mount has moved while a rename runs on this one: it
					// moves what it knows of the folder when a lookup finds it elsewhere, but not while the lock of renames is
					// held, by this call or by another one that waits for a server. A lookup outside of renames moves it.
					for errors.Is(err, unix.ESTALE) && time.Since(began) < callLimit {
						if !again {
							again = true
							stale.Add(1)
						}
						var st unix.Stat_t
						_, _ = unix.Lstat(dir+p, &st), unix.Lstat(dir+q, &st)
						err = call()
					}
					took := time.Since(began)
					calls.Add(1)
					slowest.Store(max(slowest.Load(), int64(took)))
					if took > callLimit {
						return fmt.Errorf("a call took %v", took)
					}
					expected := []error{nil, unix.ENOENT, unix.EEXIST, unix.ENOTEMPTY, unix.EINVAL}
					if err == nil {
						worked.Add(1)
					}
					if !slices.ContainsFunc(expected, func(e error) bool { return errors.Is(err, e) || err == nil && e == nil }) {
						return fmt.Errorf("%s and %s: %w", p, q, err)
					}
					return nil
				}))
			}
		}
		m.unpunished(t, func() { together(t, duration+3*callLimit, list...) })
		t.Logf("%d calls, %d of them changed something, %d are stale, the slowest took %v", calls.Load(), worked.Load(), stale.Load(), time.Duration(slowest.Load()).Round(time.Millisecond))
		if 10*stale.Load() > calls.Load() {
			t.Errorf("%d calls give ESTALE: more than races explain", stale.Load())
		}
		if worked.Load() < 100 {
			t.Errorf("only %d calls changed something", worked.Load())
		}
		var trees []string
		for i, dir := range dirs {
			seen := map[uint64]string{}
			var b strings.Builder
			must(t, filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
				if err != nil {
					return err
				}
				var st unix.Stat_t
				if err := unix.Lstat(p, &st); err != nil {
					return err
				}
				if other, twice := seen[st.Ino]; twice {
					return fmt.Errorf("M%d: one folder is %s and %s", i, p, other)
				}
				seen[st.Ino] = p
				sub, err := os.ReadDir(p)
				if err != nil {
					return err
				}
				if int(st.Nlink) != 2+len(sub) && !m.plain {
					return fmt.Errorf("M%d: %s has %d links and %d subfolders", i, p, st.Nlink, len(sub))
				}
				fmt.Fprintf(&b, "%s %d\n", strings.TrimPrefix(p, dir), st.Ino)
				return nil
			}))
			trees = append(trees, b.String())
			if trees[i] != trees[0] {
				t.Errorf("M%d sees another tree than M0:\n%s", i, unlike(trees[i], trees[0]))
			}
		}
	})
}

// TestSharedFileAndSharedFolderAgainstOwnOnes (IO500's hard patterns): four tasks over two mounts write records of 47,008
// bytes interleaved into one file, and beside it into a file each; and create files of 3,901 bytes in one folder, and
// beside it in folders of their own. The ratios are what the lock policy decides; they are logged.
func TestSharedFileAndSharedFolderAgainstOwnOnes(t *testing.T) {
	if !soak() {
		t.Skip("a measurement; STRAKE_SOAK=1 asks for it")
	}
	coherent(t, func(t *testing.T, m *mounts) {
		const tasks, record, records, files, length = 4, 47_008, 4000, 5000, 3901
		dirs := m.folders(t)
		timed := func(f func(task int, dir string) error) time.Duration {
			var list []func() error
			for task := range tasks {
				list = append(list, func() error { return f(task, dirs[task%2]) })
			}
			began := time.Now()
			together(t, 10*time.Minute, list...)
			return time.Since(began)
		}
		text := strings.Repeat("x", record)
		writes := func(name func(task int) string, offset func(task, i int) int64) func(task int, dir string) error {
			return func(task int, dir string) error {
				fd, err := unix.Open(dir+"/"+name(task), unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o644)
				if err != nil {
					return err
				}
				defer unix.Close(fd)
				for i := range records {
					if err := pwrite(fd, text, offset(task, i)); err != nil {
						return err
					}
				}
				return unix.Fsync(fd)
			}
		}
		for round := range 3 {
			m.setstripe(t, fmt.Sprintf("%s/shared%d", dirs[0], round), 4, "1M")
			for i := range tasks {
				m.setstripe(t, fmt.Sprintf("%s/own%d.%d", dirs[0], round, i), 4, "1M")
			}
			own := timed(writes(func(task int) string { return fmt.Sprintf("own%d.%d", round, task) }, func(task, i int) int64 { return int64(i) * record }))
			shared := timed(writes(func(task int) string { return fmt.Sprintf("shared%d", round) }, func(task, i int) int64 { return int64(i*tasks+task) * record }))
			t.Logf("interleaved records: one shared file has %.2f of the rate of files of their own (%v, %v)", own.Seconds()/shared.Seconds(), shared, own)
			creates := func(folder func(task int) string) func(task int, dir string) error {
				return func(task int, dir string) error {
					for i := range files {
						if err := os.WriteFile(fmt.Sprintf("%s/%s/f%d.%d", dir, folder(task), task, i), []byte(text[:length]), 0o644); err != nil {
							return err
						}
					}
					return nil
				}
			}
			must(t, os.Mkdir(fmt.Sprintf("%s/one%d", dirs[0], round), 0o755))
			for i := range tasks {
				must(t, os.Mkdir(fmt.Sprintf("%s/dir%d.%d", dirs[0], round, i), 0o755))
			}
			own = timed(creates(func(task int) string { return fmt.Sprintf("dir%d.%d", round, task) }))
			shared = timed(creates(func(task int) string { return fmt.Sprintf("one%d", round) }))
			t.Logf("small files: one shared folder has %.2f of the rate of folders of their own (%v, %v)", own.Seconds()/shared.Seconds(), shared, own)
		}
	})
}
