package suite

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Single faults: each test makes one thing go wrong, by fail_loc, by a signal or by a full disk, and asks for what the
// applications may see of it. The servers run in processes of their own that allow fault injection.

// faulty starts a cluster for one test, whose processes allow fault injection.
func faulty(t testing.TB, clients int) *mounts {
	t.Helper()
	c := newCluster(t, layoutProcesses, clusterOptions{osts: 2, clients: clients, env: []string{"STRAKE_FAULT_INJECTION=on"}})
	return &mounts{cluster: c, at: c.dirs()}
}

// sock is the parameter socket of a running node.
func (n *node) sock(t testing.TB) string {
	t.Helper()
	var socks []string
	must(t, poll(startTimeout, func() (err error) {
		if socks, err = filepath.Glob(fmt.Sprintf("/run/strake/*-%d.sock", n.cmd.Process.Pid)); err != nil || len(socks) == 1 {
			return err
		}
		return retry("%s has the parameter sockets %v", n.name, socks)
	}))
	return socks[0]
}

// param gets parameters of one node, as `lctl get_param -n`.
func (m *mounts) param(t testing.TB, node, pattern string) string {
	t.Helper()
	out, err := m.lctl("get_param", "--sock", m.node(t, node).sock(t), "-n", pattern)
	must(t, err)
	return strings.TrimSpace(out)
}

// number is a parameter of one node that is a number.
func (m *mounts) number(t testing.TB, node, pattern string) int {
	t.Helper()
	text := m.param(t, node, pattern)
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s of %s is %q", pattern, node, text)
	}
	return n
}

// set sets parameters of one node, in order.
func (m *mounts) set(t testing.TB, node string, settings ...string) {
	t.Helper()
	_, err := m.lctl(append([]string{"set_param", "--sock", m.node(t, node).sock(t), "-n"}, settings...)...)
	must(t, err)
}

// fail arms fail points of one node; loc "0" turns them off.
func (m *mounts) fail(t testing.TB, node, loc, val, when string) {
	t.Helper()
	m.set(t, node, "fail_loc=0", "fail_val="+val, "fail_when="+when, "fail_loc="+loc)
}

var hitLine = regexp.MustCompile(`failed: (\d+)`)

// failed is how often the i-th armed point of a node has failed.
func (m *mounts) failed(t testing.TB, node string, i int) int {
	t.Helper()
	text := m.param(t, node, "fail_hits")
	all := hitLine.FindAllStringSubmatch(text, -1)
	if i >= len(all) {
		t.Fatalf("fail_hits of %s is %q", node, text)
	}
	n, err := strconv.Atoi(all[i][1])
	must(t, err)
	return n
}

// waitFailed waits until the i-th armed point of a node has failed.
func (m *mounts) waitFailed(t testing.TB, node string, i int) {
	t.Helper()
	must(t, poll(20*time.Second, func() error {
		if m.failed(t, node, i) == 0 {
			return retry("point %d of %s is not reached", i, node)
		}
		return nil
	}))
}

// recovery is a line of the recovery_status of a node's target, empty while it starts.
func (m *mounts) recovery(t testing.TB, node, line string) string {
	t.Helper()
	text, _ := m.lctl("get_param", "--sock", m.node(t, node).sock(t), "-n", "*.*.recovery_status")
	for l := range strings.Lines(text) {
		if name, value, _ := strings.Cut(strings.TrimSpace(l), ": "); name == line {
			return value
		}
	}
	return ""
}

// pauseCommits keeps what the MDT publishes from now on off its disk, and what came before on it.
func (m *mounts) pauseCommits(t testing.TB) {
	t.Helper()
	m.waitCommitted(t)
	m.fail(t, "mds", "pause_commit", "0", "target:*-MDT0000")
}

// waitCommitted waits until all that the MDT has published is on its disk.
func (m *mounts) waitCommitted(t testing.TB) {
	t.Helper()
	must(t, poll(20*time.Second, func() error {
		if n := m.number(t, "mds", "osd-strake.*-MDT0000.overlay_bytes"); n > 0 {
			return retry("%d bytes are not on disk", n)
		}
		return nil
	}))
}

// crash kills a server at once and starts it again.
func (m *mounts) crash(t testing.TB, name string) {
	t.Helper()
	m.node(t, name).kill(t)
	m.node(t, name).again(t)
}

// TestFaultsAreRefusedWithoutTheFlag: an ordinary process cannot be made to fail.
func TestFaultsAreRefusedWithoutTheFlag(t *testing.T) {
	coherent(t, func(t *testing.T, m *mounts) {
		if m.local {
			t.Skip("needs a cluster")
		}
		name := m.nodes[0].name
		out, err := m.lctl("set_param", "--sock", m.node(t, name).sock(t), "fail_loc=drop_reply")
		if err == nil || !strings.Contains(out, "--fault-injection") {
			t.Errorf("%v: %s", err, out)
		}
		if got := m.param(t, name, "fail_loc"); got != "0" {
			t.Errorf("fail_loc is %q", got)
		}
	})
}

// modification is one call that changes the name space, with what must be true before it and after it happened once.
type modification struct {
	op     string // as the server's fail points name it
	before func(dir string) error
	do     func(dir string) error
	after  func(dir string) error
}

func nlink(path string, want uint64) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return err
	}
	if uint64(st.Nlink) != want {
		return fmt.Errorf("%s has %d links, want %d", path, st.Nlink, want)
	}
	return nil
}

func absent(path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s is still there: %v", path, err)
	}
	return nil
}

func touch(path string) error { return os.WriteFile(path, []byte("x"), 0o644) }

// exclusive creates a file that must not exist.
func exclusive(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// modifications is the constant table of calls that change names: each would fail, or do too much, if it ran twice.
var modifications = []modification{
	{"create", nil, func(d string) error { return exclusive(d + "/new") }, func(d string) error { return nlink(d+"/new", 1) }},
	{"create", nil, func(d string) error { return os.Mkdir(d+"/dir", 0o755) }, func(d string) error { return nlink(d+"/dir", 2) }},
	{"create", nil, func(d string) error { return os.Symlink("there", d+"/link") }, func(d string) error { return nlink(d+"/link", 1) }},
	{"link", func(d string) error { return touch(d + "/a") }, func(d string) error { return os.Link(d+"/a", d+"/b") },
		func(d string) error { return errors.Join(nlink(d+"/a", 2), nlink(d+"/b", 2)) }},
	{"unlink", func(d string) error {
		return errors.Join(touch(d+"/c"), os.Link(d+"/c", d+"/e"), os.Link(d+"/c", d+"/f"))
	},
		func(d string) error { return os.Remove(d + "/e") },
		func(d string) error { return errors.Join(nlink(d+"/c", 2), absent(d+"/e")) }},
	{"unlink", func(d string) error { return os.Mkdir(d+"/g", 0o755) }, func(d string) error { return unix.Rmdir(d + "/g") },
		func(d string) error { return absent(d + "/g") }},
	{"rename", func(d string) error { return touch(d + "/h") }, func(d string) error { return os.Rename(d+"/h", d+"/i") },
		func(d string) error { return errors.Join(nlink(d+"/i", 1), absent(d+"/h")) }},
	{"rename", func(d string) error { return errors.Join(touch(d+"/j"), os.Link(d+"/j", d+"/k"), touch(d+"/l")) },
		func(d string) error { return os.Rename(d+"/l", d+"/k") },
		func(d string) error { return errors.Join(nlink(d+"/j", 1), nlink(d+"/k", 1), absent(d+"/l")) }},
	{"rename", func(d string) error { return errors.Join(touch(d+"/m"), touch(d+"/n")) },
		func(d string) error {
			return unix.Renameat2(unix.AT_FDCWD, d+"/m", unix.AT_FDCWD, d+"/n", unix.RENAME_EXCHANGE)
		},
		func(d string) error { return errors.Join(nlink(d+"/m", 1), nlink(d+"/n", 1)) }},
	{"setxattr", func(d string) error { return touch(d + "/o") },
		func(d string) error { return unix.Setxattr(d+"/o", "user.a", []byte("v"), unix.XATTR_CREATE) }, nil},
	{"removexattr", func(d string) error {
		return errors.Join(touch(d+"/p"), unix.Setxattr(d+"/p", "user.a", []byte("v"), 0))
	}, func(d string) error { return unix.Removexattr(d+"/p", "user.a") }, nil},
}

// TestLostReplyRepeatsNothing (case 06): the reply to a call that changes names is lost after it ran. It is answered from its
// slot: no second create, no link count too low, and no EEXIST or ENOENT for the application.
func TestLostReplyRepeatsNothing(t *testing.T) {
	t.Parallel()
	m := faulty(t, 2)
	dirs := m.folders(t)
	for i, c := range modifications {
		lostReply(t, m, dirs, i, c, 0)
	}
	if soak() { // each takes as long as a silent connection is believed in
		for i, c := range modifications {
			lostReply(t, m, dirs, len(modifications)+i, c, 1)
		}
		return
	}
	lostReply(t, m, dirs, len(modifications), modifications[3], 1)
	lostReply(t, m, dirs, len(modifications)+1, modifications[7], 1)
}

func lostReply(t *testing.T, m *mounts, dirs []string, i int, c modification, val int) {
	t.Helper()
	dir := fmt.Sprintf("%s/%d", dirs[0], i)
	must(t, os.Mkdir(dir, 0o755))
	if c.before != nil {
		must(t, c.before(dir))
	}
	m.fail(t, "mds", "drop_reply", strconv.Itoa(val), "op:"+c.op+"+target:*-MDT0000+times:1")
	within(t, 60*time.Second, c.op, func() error { return c.do(dir) })
	if n := m.failed(t, "mds", 0); n != 1 {
		t.Errorf("%d: %d replies to %s were lost", i, n, c.op)
	}
	if c.after != nil {
		for k := range dirs {
			if err := c.after(fmt.Sprintf("%s/%d", dirs[k], i)); err != nil {
				t.Errorf("%s: M%d: %v", c.op, k, err)
			}
		}
	}
}

// TestStoppedServerRepeatsNothing (case 06): the MDS stands still for longer than a connection may be silent, with calls
// under way that would fail if they ran twice.
func TestStoppedServerRepeatsNothing(t *testing.T) {
	t.Parallel()
	m := faulty(t, 2)
	dirs := m.folders(t)
	for i, c := range modifications {
		dir := fmt.Sprintf("%s/%d", dirs[0], i)
		must(t, os.Mkdir(dir, 0o755))
		if c.before != nil {
			must(t, c.before(dir))
		}
	}
	// Each runs, and its answer comes only after the stop.
	m.fail(t, "mds", "delay_request", "2000", "op:create|link|unlink|rename|setxattr|removexattr")
	tasks := make([]func() error, len(modifications))
	for i, c := range modifications {
		tasks[i] = func() error {
			if err := c.do(fmt.Sprintf("%s/%d", dirs[0], i)); err != nil {
				return fmt.Errorf("%s: %w", c.op, err)
			}
			return nil
		}
	}
	stopped := make(chan struct{})
	go func() { // not on the test's goroutine, which waits for the tasks
		defer close(stopped)
		mds := m.node(t, "mds").cmd.Process
		<-time.After(time.Second)
		_ = mds.Signal(syscall.SIGSTOP)
		<-time.After(25 * time.Second)
		_ = mds.Signal(syscall.SIGCONT)
	}()
	together(t, 90*time.Second, tasks...)
	<-stopped
	m.fail(t, "mds", "0", "0", "always")
	for i, c := range modifications {
		if c.after == nil {
			continue
		}
		for k := range dirs {
			if err := c.after(fmt.Sprintf("%s/%d", dirs[k], i)); err != nil {
				t.Errorf("%s: M%d: %v", c.op, k, err)
			}
		}
	}
}

// TestLostEnqueueReplyLeavesOneLock (case 29): the reply to a lock request is lost; the lock is there once, and one unlock
// frees it.
func TestLostEnqueueReplyLeavesOneLock(t *testing.T) {
	t.Parallel()
	m := faulty(t, 2)
	dirs := m.folders(t)
	must(t, touch(dirs[0]+"/f"))
	for _, kind := range []string{"flock", "fcntl"} {
		fd, other := openLockFile(t, dirs[0]+"/f"), openLockFile(t, dirs[1]+"/f")
		m.fail(t, "mds", "drop_reply", "0", "op:ldlm_enqueue+times:1")
		within(t, 30*time.Second, kind, func() error { return lockWith(kind, fd) })
		if m.failed(t, "mds", 0) != 1 {
			t.Errorf("%s: no reply was lost", kind)
		}
		m.fail(t, "mds", "0", "0", "always")
		if kind == "fcntl" {
			if got := holder(t, other); got != unix.F_WRLCK {
				t.Errorf("another mount sees lock type %d", got)
			}
		} else {
			is(t, "flock of another mount", unix.Flock(other, unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
		}
		must(t, unix.Close(fd))
		within(t, 10*time.Second, kind+" after the unlock", func() error { return lockWith(kind, other) })
		must(t, unix.Close(other))
	}
}

// TestResentRequestIsAnsweredAcrossARestart: a request ran, its reply was lost, and the MDS died before the client could send
// it again. Committed or not, it has happened once when the application gets its answer.
func TestResentRequestIsAnsweredAcrossARestart(t *testing.T) {
	t.Parallel()
	m := faulty(t, 2)
	dirs := m.folders(t)
	for i, committed := range []bool{true, false} {
		for j, c := range modifications {
			if !soak() && (j == 1 || j == 2 || j == 5 || j == 8 || j > 9) {
				continue // of each kind one
			}
			dir := fmt.Sprintf("%s/%d-%d", dirs[0], i, j)
			must(t, os.Mkdir(dir, 0o755))
			if c.before != nil {
				must(t, c.before(dir))
			}
			loc, when := "drop_reply,drop_request", "op:"+c.op+"+times:1,op:connect+target:*-MDT0000"
			if !committed {
				m.waitCommitted(t)
				loc, when = loc+",pause_commit", when+",target:*-MDT0000"
			}
			m.fail(t, "mds", loc, "0", when)
			done := make(chan error, 1)
			go func() { done <- c.do(dir) }()
			m.waitFailed(t, "mds", 0)
			if committed {
				m.waitCommitted(t)
			}
			m.crash(t, "mds")
			within(t, 60*time.Second, c.op, func() error { return <-done })
			if c.after != nil {
				for k := range dirs {
					if err := c.after(fmt.Sprintf("%s/%d-%d", dirs[k], i, j)); err != nil {
						t.Errorf("%s, committed %v: M%d: %v", c.op, committed, k, err)
					}
				}
			}
		}
	}
}

// TestNoSpaceIsTold: a full MDT refuses what needs room and lets go what gives some; nothing stops.
func TestNoSpaceIsTold(t *testing.T) {
	t.Parallel()
	m := faulty(t, 2)
	dirs := m.folders(t)
	must(t, touch(dirs[0]+"/old"))
	m.fail(t, "mds", "no_space", "0", "target:*-MDT0000")
	is(t, "mkdir", os.Mkdir(dirs[0]+"/d", 0o755), unix.ENOSPC)
	is(t, "create", exclusive(dirs[1]+"/f"), unix.ENOSPC)
	is(t, "unlink", os.Remove(dirs[1]+"/old"), nil)
	m.fail(t, "mds", "0", "0", "always")
	must(t, os.Mkdir(dirs[0]+"/d", 0o755))
	must(t, exclusive(dirs[1]+"/f"))
	if m.logged("device stopped") != 0 {
		t.Error("the device has stopped")
	}
}
