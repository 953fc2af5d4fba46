package suite

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// attempt is a start of strake that must fail.
type attempt struct {
	args    []string
	env     []string
	wrapper []string      // put before the command, as in unshare -m
	limit   time.Duration // default 20 s
	same    []string      // folders that must be as before
	says    []string      // what the line on stderr must hold
}

// refused runs an attempt: exit status not 0, one line on stderr that says what, where and what to do, nothing changed.
func refused(t *testing.T, a attempt) {
	t.Helper()
	bin, err := strakeBinary()
	must(t, err)
	before := map[string]string{}
	for _, dir := range a.same {
		before[dir] = hashFolder(t, dir)
	}
	if a.limit == 0 {
		a.limit = 20 * time.Second
	}
	args := append(append(append([]string{}, a.wrapper...), bin), a.args...)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), a.env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must(t, cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err = <-done:
	case <-time.After(a.limit):
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		select {
		case <-done:
		case <-time.After(stopTimeout):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-done
		}
		t.Fatalf("%s still runs after %v; stderr:\n%.3000s", strings.Join(a.args, " "), a.limit, stderr.String())
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() <= 0 {
		t.Errorf("exit: %v, want a status that is not 0", err)
	}
	lines := complaints(stderr.String())
	if len(lines) != 1 {
		t.Errorf("%d lines on stderr, want one:\n%.3000s", len(lines), stderr.String())
	}
	text := strings.Join(lines, "\n")
	for _, want := range a.says {
		if !strings.Contains(text, want) {
			t.Errorf("the error does not name %q: %s", want, text)
		}
	}
	for dir, want := range before {
		if got := hashFolder(t, dir); got != want {
			t.Errorf("%s was changed:\n%s", dir, changes(want, got))
		}
	}
	t.Logf("refused with: %s", text)
}

// complaints are the lines on stderr without log lines below the level of an error.
func complaints(stderr string) (lines []string) {
	for _, line := range strings.Split(strings.TrimSpace(stderr), "\n") {
		var record struct{ Level string }
		if json.Unmarshal([]byte(line), &record) == nil && record.Level != "" && record.Level != "ERROR" {
			continue
		}
		if strings.TrimSpace(line) != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// changes lists the lines that only one of two descriptions has, at most twenty.
func changes(before, after string) string {
	var b strings.Builder
	count := 0
	only := func(mark, x, y string) {
		other := map[string]bool{}
		for _, l := range strings.Split(y, "\n") {
			other[l] = true
		}
		for _, l := range strings.Split(x, "\n") {
			if count++; !other[l] && count < 20 {
				fmt.Fprintf(&b, "  %s %s\n", mark, l)
			} else if other[l] {
				count--
			}
		}
	}
	only("-", before, after)
	only("+", after, before)
	return b.String()
}

// hashFolder describes a folder: names, kinds, modes, and of files the sizes, mtimes and checksums. What a folder's own
// mtime says is left out: a target that was begun and taken away again leaves no other trace.
func hashFolder(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		fmt.Fprintf(&b, "%s %v", rel, info.Mode())
		if e.Type().IsRegular() {
			fmt.Fprintf(&b, " mtime %d", info.ModTime().UnixNano())
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(text)
			fmt.Fprintf(&b, " %d %s", len(text), hex.EncodeToString(sum[:8]))
		}
		b.WriteByte('\n')
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return "absent\n"
	}
	must(t, err)
	return b.String()
}

// place is a folder for data and one for a mount.
func place(t testing.TB) (data, mnt string) {
	t.Helper()
	needCluster(t)
	base := t.TempDir()
	data, mnt = filepath.Join(base, "data"), filepath.Join(base, "mnt")
	must(t, os.Mkdir(mnt, 0o755))
	t.Cleanup(func() {
		for isMounted(mnt) {
			if unix.Unmount(mnt, unix.MNT_DETACH) != nil {
				t.Errorf("%s cannot be unmounted", mnt)
				return
			}
		}
	})
	return data, mnt
}

// alone is the command line of role all.
func alone(data, mnt string, more ...string) []string {
	return append([]string{"--role=all", "--data", data, "--mount", mnt, "--http", "127.0.0.1:0"}, more...)
}

// tmpfs mounts one on dir.
func tmpfs(t testing.TB, dir, options string, flags uintptr) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	must(t, unix.Mount("tmpfs", dir, "tmpfs", flags, options))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

func TestMountPointMissingIsRefused(t *testing.T) {
	data, mnt := place(t)
	refused(t, attempt{args: alone(data, mnt+"/none"), same: []string{data, mnt}, says: []string{mnt + "/none"}})
}

func TestMountPointThatIsAFileIsRefused(t *testing.T) {
	data, mnt := place(t)
	must(t, os.WriteFile(mnt+"/file", nil, 0o644))
	refused(t, attempt{args: alone(data, mnt+"/file"), same: []string{data, mnt}, says: []string{mnt + "/file"}})
}

func TestMountPointInUseIsRefused(t *testing.T) {
	data, mnt := place(t)
	tmpfs(t, mnt, "size=1m", 0)
	refused(t, attempt{args: alone(data, mnt), same: []string{data}, says: []string{mnt}})
}

func TestReadOnlyDataFolderIsRefused(t *testing.T) {
	data, mnt := place(t)
	tmpfs(t, data, "size=1m", unix.MS_RDONLY)
	refused(t, attempt{args: alone(data, mnt), same: []string{data}, says: []string{data}})
	refused(t, attempt{args: alone(data+"/sub", mnt), same: []string{data}, says: []string{data}})
}

func TestForeignDataFolderIsRefused(t *testing.T) {
	data, mnt := place(t)
	must(t, os.MkdirAll(data, 0o755))
	must(t, os.WriteFile(data+"/holiday.jpg", []byte("picture"), 0o644))
	refused(t, attempt{args: alone(data, mnt), same: []string{data}, says: []string{data}})
}

func TestDataFolderThatIsAFileIsRefused(t *testing.T) {
	data, mnt := place(t)
	must(t, os.WriteFile(data, []byte("text"), 0o644))
	refused(t, attempt{args: alone(data, mnt), says: []string{data}})
	if got, err := os.ReadFile(data); err != nil || string(got) != "text" {
		t.Errorf("the file holds %q (%v)", got, err)
	}
}

func TestFullDataFolderIsRefused(t *testing.T) {
	data, mnt := place(t)
	tmpfs(t, data, "size=128k", 0)
	refused(t, attempt{args: alone(data, mnt), same: []string{data}, says: []string{data}})
}

func TestPortInUseIsRefused(t *testing.T) {
	data, mnt := place(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	addr := l.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	refused(t, attempt{args: []string{"--role=all", "--data", data, "--mount", mnt, "--http", addr}, same: []string{data}, says: []string{port}})
	refused(t, attempt{args: []string{"--role=mds", "--data", data, "--listen", addr, "--http", "127.0.0.1:0", "--insecure"},
		same: []string{data}, says: []string{port}})
	if isMounted(mnt) {
		t.Error("the mount is there all the same")
	}
}

func TestListenerOffLoopbackIsRefused(t *testing.T) {
	data, _ := place(t)
	refused(t, attempt{args: []string{"--role=mds", "--data", data, "--listen", "0.0.0.0:0", "--http", "127.0.0.1:0", "--insecure"},
		same: []string{data}, says: []string{"insecure"}})
}

func TestUnknownOptionsAreRefusedByName(t *testing.T) {
	data, mnt := place(t)
	config := filepath.Join(filepath.Dir(data), "strake.yaml")
	must(t, os.WriteFile(config, []byte("role: all\nfavourite_colour: red\n"), 0o644))
	same := []string{data}
	refused(t, attempt{args: alone(data, mnt, "--favourite-colour"), same: same, says: []string{"favourite-colour"}})
	refused(t, attempt{args: alone(data, mnt, "--config", config), same: same, says: []string{"favourite_colour", config}})
	refused(t, attempt{args: alone(data, mnt, "-o", "favourite=red"), same: same, says: []string{"favourite"}})
	refused(t, attempt{args: alone(data, mnt, "-o", "umask=9z"), same: same, says: []string{"umask"}})
	refused(t, attempt{args: alone(data, mnt), env: []string{"STRAKE_FAVOURITE_COLOUR=red"}, same: same, says: []string{"STRAKE_FAVOURITE_COLOUR"}})
	refused(t, attempt{args: []string{"--role=king", "--data", data}, same: same, says: []string{"king"}})
	refused(t, attempt{args: []string{"--role=oss", "--data", data, "--insecure"}, same: same, says: []string{"--mgs"}})
}

// formatted starts role all once on data, so that it holds a file system, and stops it.
func formatted(t testing.TB, data, mnt string, more ...string) {
	t.Helper()
	bin, err := strakeBinary()
	must(t, err)
	base := filepath.Dir(data)
	web, err := freePort("127.0.0.1")
	must(t, err)
	n := &node{name: "all", args: append([]string{bin, "--role=all", "--data", data, "--mount", mnt, "--http", web}, more...),
		env: os.Environ(), log: filepath.Join(base, "format.log"), data: []string{data}}
	n.mnt = mnt
	c := &cluster{layout: layoutAll, base: base, mnt: mnt, osts: 2, nodes: []*node{n}}
	if err := c.startAll(); err != nil {
		_ = c.stop()
		t.Fatalf("%v\n%s", err, c.tails())
	}
	must(t, os.WriteFile(mnt+"/file", []byte("text"), 0o644))
	must(t, c.stop())
}

func TestWrongFileSystemNameIsRefused(t *testing.T) {
	data, mnt := place(t)
	formatted(t, data, mnt, "--fsname", "first")
	refused(t, attempt{args: alone(data, mnt, "--fsname", "second"), same: []string{data}, says: []string{"first", "second"}})
	formatted(t, data, mnt, "--fsname", "first") // still usable
}

func TestDamagedDatabaseIsRefused(t *testing.T) {
	data, mnt := place(t)
	formatted(t, data, mnt)
	var files []string
	must(t, filepath.WalkDir(data, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && filepath.Ext(path) == ".db" {
			files = append(files, path)
		}
		return err
	}))
	if len(files) < 3 {
		t.Fatalf("%d databases (*.db) below %s, want one for the MDT and one for each OST", len(files), data)
	}
	for _, path := range files {
		whole, err := os.ReadFile(path)
		must(t, err)
		rel, _ := filepath.Rel(data, path)
		for kind, text := range map[string][]byte{
			// A database that has grown has room behind its pages, which it does not miss.
			"truncated": whole[:min(len(whole)/2, 16<<10)], "short": whole[:100], "empty": nil, "foreign": bytes.Repeat([]byte("not a database "), 4000),
			"no meta pages": append(make([]byte, min(len(whole), 8192)), whole[min(len(whole), 8192):]...),
		} {
			t.Run(strings.ReplaceAll(rel, "/", "|")+" "+kind, func(t *testing.T) {
				must(t, os.WriteFile(path, text, 0o600))
				refused(t, attempt{args: alone(data, mnt), same: []string{data}, says: []string{filepath.Dir(path)}})
				if isMounted(mnt) {
					t.Error("the mount is there all the same")
				}
			})
		}
		must(t, os.WriteFile(path, whole, 0o600))
	}
	formatted(t, data, mnt) // whole again: it starts
}

func TestSilentMgsIsGivenUp(t *testing.T) {
	data, mnt := place(t)
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts and never answers
	must(t, err)
	defer l.Close()
	closed, err := freePort("127.0.0.1")
	must(t, err)
	for name, addr := range map[string]string{"silent": l.Addr().String(), "closed": closed} {
		t.Run(name, func(t *testing.T) {
			// A name of its own: this machine may keep a configuration from another MGS that had the port.
			short := []string{"STRAKE_MGS_TIMEOUT=2s", "STRAKE_FSNAME=silent"}
			refused(t, attempt{args: []string{"--role=client", "--mgs", addr, "--mount", mnt, "--insecure"}, env: short, limit: 40 * time.Second, says: []string{addr}})
			refused(t, attempt{args: []string{"--role=oss", "--data", data, "--mgs", addr, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
				"--insecure"}, env: short, limit: 40 * time.Second, same: []string{data}, says: []string{addr}})
		})
	}
}

func TestMissingFuseDeviceIsRefused(t *testing.T) {
	need(t, "unshare")
	data, mnt := place(t)
	hide := `set -e; mount --make-rprivate /; d=$(mktemp -d); mount -t tmpfs dev "$d"
for n in null zero full random urandom; do cp -a /dev/$n "$d"/; done; mount --move "$d" /dev; exec "$@"`
	refused(t, attempt{args: alone(data, mnt), wrapper: []string{"unshare", "-m", "sh", "-c", hide, "sh"}, same: []string{data},
		says: []string{"/dev/fuse"}})
}

// TestSecondMountJoins: a second read-write mount of a running file system works beside the first, leaves in order, and
// the first one goes on.
func TestSecondMountJoins(t *testing.T) {
	eachLayout(t, []string{layoutProcesses}, func(t *testing.T, c *cluster) {
		c.real(t)
		bin, err := strakeBinary()
		must(t, err)
		_, mnt := place(t)
		second := &node{name: "second", mnt: mnt, env: os.Environ(), log: filepath.Join(filepath.Dir(mnt), "second.log"),
			args: []string{bin, "--role=client", "--mgs", c.mgs, "--mount", mnt, "--insecure"}}
		must(t, second.start())
		must(t, poll(startTimeout, func() error {
			select {
			case <-second.done:
				return fmt.Errorf("the second mount has ended: %v\n%s", second.err, second.lastRun())
			default:
			}
			if !isMounted(mnt) {
				return retry("nothing is mounted on %s", mnt)
			}
			return nil
		}))
		dir := c.folder(t)
		other := filepath.Join(mnt, filepath.Base(dir))
		shell(t, "", fmt.Sprintf("echo x > %s/f; test $(cat %s/f) = x; echo y > %s/f; test $(cat %s/f) = y", dir, other, other, dir))
		second.terminate(t)
		shell(t, dir, "echo z > f; test $(cat f) = z")
	})
}

// TestForeignTargetIsRefused: a data folder of another file system, or an index that is taken, does not join.
func TestForeignTargetIsRefused(t *testing.T) {
	data, mnt := place(t)
	formatted(t, data, mnt, "--fsname", "other")
	eachLayout(t, []string{layoutProcesses}, func(t *testing.T, c *cluster) {
		c.real(t)
		oss := func(dir string) []string {
			return []string{"--role=oss", "--data", dir, "--mgs", c.mgs, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--insecure"}
		}
		refused(t, attempt{args: oss(filepath.Join(data, "ost0")), same: []string{data}, says: []string{"other"}})
		twin := filepath.Join(t.TempDir(), "twin") // a copy of a target that runs
		run(t, "", "cp", "-a", c.node(t, "oss0").data[0], twin)
		refused(t, attempt{args: oss(twin), says: []string{"OST0000"}})
		must(t, c.alive())
	})
}

// TestMountOptions (case 40): the flags of the VFS reach the mount, and what is read-only stays so.
func TestMountOptions(t *testing.T) {
	c := newCluster(t, layoutAll, clusterOptions{mount: "nosuid,nodev,noexec"})
	line := shell(t, "", "grep ' "+c.mnt+" ' /proc/self/mountinfo")
	for _, want := range []string{"nosuid", "nodev", "noexec", "strake"} {
		if !strings.Contains(line, want) {
			t.Errorf("%s is missing from the mount: %s", want, line)
		}
	}
	run(t, "", "cp", "/bin/true", c.mnt+"/true")
	if _, err := output("", c.mnt+"/true"); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a program runs on a noexec mount: %v", err)
	}
	must(t, c.stop())
	n := c.node(t, "all")
	for i, a := range n.args {
		if a == "-o" {
			n.args[i+1] = "ro"
		}
	}
	c.restart(t)
	is(t, "create on a read-only mount", os.WriteFile(c.mnt+"/new", nil, 0o644), unix.EROFS)
	is(t, "chmod on a read-only mount", os.Chmod(c.mnt+"/true", 0o700), unix.EROFS)
	if out := run(t, "", c.mnt+"/true"); out != "" {
		t.Errorf("got %q", out)
	}
}
