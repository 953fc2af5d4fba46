package suite

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// sharedClients is how many mounts the cluster has that the tests of several clients share.
const sharedClients = 4

// mounts is one file system seen through several clients, each a process of its own.
type mounts struct {
	*cluster
	at    []string // mount points, in the order of the clients
	local bool     // all of them are one folder of the local file system: STRAKE_SUITE_DIR
}

// coherent runs f on the shared cluster of several clients, in the layouts given by STRAKE_SUITE_LAYOUTS (default:
// processes; in a soak run all as well, where the first client lives in the servers' process).
func coherent(t *testing.T, f func(t *testing.T, m *mounts)) {
	t.Helper()
	list := []string{layoutProcesses}
	if soak() {
		list = append(list, layoutAll)
	}
	if env := os.Getenv("STRAKE_SUITE_LAYOUTS"); env != "" {
		list = strings.Split(env, ",")
	}
	if os.Getenv("STRAKE_SUITE_DIR") != "" {
		list = []string{"local"}
	}
	for _, layout := range list {
		t.Run(layout, func(t *testing.T) {
			m := sharedMounts(t, layout)
			t.Cleanup(func() {
				if t.Failed() {
					t.Log(m.complaints())
				}
			})
			f(t, m)
		})
	}
}

// complaints are the last lines of each node's log that say that something is wrong.
func (m *mounts) complaints() string {
	var b strings.Builder
	for _, n := range m.nodes {
		var lines []string
		for line := range strings.SplitSeq(string(n.lastRun()), "\n") {
			if line != "" && !strings.Contains(line, `"level":"INFO"`) && !strings.Contains(line, "cannot connect, trying again") {
				lines = append(lines, line)
			}
		}
		for _, l := range lines[max(0, len(lines)-6):] {
			fmt.Fprintf(&b, "    %s: %.400s\n", n.name, l)
		}
	}
	return b.String()
}

// sharedMounts starts the cluster of several clients that the tests of a layout share, at its first use.
func sharedMounts(t testing.TB, layout string) *mounts {
	t.Helper()
	if dir := os.Getenv("STRAKE_SUITE_DIR"); dir != "" {
		return localMounts(t, dir, sharedClients)
	}
	needMount(t)
	sharedMu.Lock()
	defer sharedMu.Unlock()
	key := layout + "+clients"
	if err := errShare[key]; err != nil {
		t.Fatalf("the shared cluster of several clients did not start: %v", err)
	}
	c := shared[key]
	if c == nil {
		var err error
		if c, err = startCluster(layout, clusterOptions{osts: sharedOSTs, clients: sharedClients}); err != nil {
			errShare[key] = err
			t.Fatal(err)
		}
		shared[key] = c
	}
	if err := c.alive(); err != nil {
		t.Fatalf("the shared cluster of several clients: %v", err)
	}
	return &mounts{cluster: c, at: c.dirs()}
}

// newMounts starts a cluster of several clients for one test.
func newMounts(t testing.TB, clients int) *mounts {
	t.Helper()
	c := newCluster(t, layoutProcesses, clusterOptions{osts: 2, clients: clients})
	return &mounts{cluster: c, at: c.dirs()}
}

// localMounts shows one local folder through several bind mounts (the same path again where none can be made).
func localMounts(t testing.TB, dir string, count int) *mounts {
	t.Helper()
	m := &mounts{cluster: &cluster{mnt: dir, plain: true}, local: true}
	for range count {
		at := dir
		if os.Getuid() == 0 {
			at = t.TempDir()
			must(t, unix.Mount(dir, at, "", unix.MS_BIND, ""))
			t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
		}
		m.at = append(m.at, at)
	}
	return m
}

// folders makes a folder for one test and returns its path on every mount.
func (m *mounts) folders(t testing.TB) []string {
	t.Helper()
	rel := filepath.Base(m.folder(t))
	list := make([]string, len(m.at))
	for i, at := range m.at {
		list[i] = filepath.Join(at, rel)
	}
	return list
}

// client is the node of the i-th mount.
func (m *mounts) client(t testing.TB, i int) *node {
	t.Helper()
	j := slices.IndexFunc(m.nodes, func(n *node) bool { return n.mnt == m.at[i] })
	if j < 0 {
		t.Fatalf("mount %d has no process", i)
	}
	return m.nodes[j]
}

// signal sends a signal to a running node.
func (n *node) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	n.killed = n.killed || sig == syscall.SIGKILL
	must(t, n.cmd.Process.Signal(sig))
}

// killClient ends the process of the i-th mount at once; what is left of the mount is taken away.
func (m *mounts) killClient(t testing.TB, i int) {
	t.Helper()
	m.client(t, i).kill(t)
	for isMounted(m.at[i]) {
		must(t, unix.Unmount(m.at[i], unix.MNT_DETACH))
	}
}

// again starts the killed client of the i-th mount again and waits for its mount.
func (m *mounts) startClient(t testing.TB, i int) {
	t.Helper()
	must(t, m.client(t, i).start())
	must(t, m.waitMounted())
}

// logged counts the lines of all servers' logs, since their last start, that hold every one of the words.
func (m *mounts) logged(words ...string) int {
	count := 0
	for _, n := range m.nodes {
		if n.mnt != "" && n.name != "all" {
			continue
		}
		for line := range strings.SplitSeq(string(n.lastRun()), "\n") {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
				count++
			}
		}
	}
	return count
}

// lctl runs `strake lctl args…` against this cluster's processes.
func (m *mounts) lctl(args ...string) (string, error) {
	bin, err := strakeBinary()
	if err != nil {
		return "", err
	}
	out, err := output("", append([]string{bin, "lctl"}, args...)...)
	if err != nil {
		return out, fmt.Errorf("lctl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return out, nil
}
