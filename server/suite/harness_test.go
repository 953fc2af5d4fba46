// Package suite runs the real binary: real processes, real FUSE mounts, real TCP. It holds no code of its own to link,
// only tests, and each says in its name the behaviour that it asks for.
//
// Words: a layout is how the roles are spread over processes (all, processes, addresses); a cluster is one running file
// system with its mount; a node is one process of it. Most tests share one cluster per layout and work in a folder of
// their own; a test that stops nodes, or needs other options, starts a cluster for itself.
//
// Environment:
//
//	STRAKE_SUITE_LAYOUTS  all,processes,addresses (default: all three for the judged tests, the first for the others)
//	STRAKE_SUITE_DIR      a folder to test in place of a mount: tests that need a cluster are then skipped
//	STRAKE_SUITE_REF      the folder of the reference file system (default: a temporary folder; ext4 or tmpfs)
//	STRAKE_SUITE_BIN      a built binary to use in place of building one
//	STRAKE_SUITE_SEED     seed of the random tests (default: the clock's; each prints the one it used)
//	STRAKE_TORTURE        kinds of faults of the torture test: see torture_test.go
//	STRAKE_SOAK           1: sizes as the field reports them, not the small ones that take seconds
package suite

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/strakefs/strake/server/forgetfs"
	"golang.org/x/sys/unix"
)

const (
	layoutAll       = "all"
	layoutProcesses = "processes"
	layoutAddresses = "addresses"
	layoutCombined  = "combined" // for one test: mds,oss in one process
	layoutNetworks  = "networks" // processes, each server in a network of its own that can be cut off

	startTimeout = 60 * time.Second
	stopTimeout  = 10 * time.Second // what a node has for leaving after SIGTERM
	sharedOSTs   = 4
)

// soak says whether tests run at the sizes of the field's reports.
func soak() bool { return os.Getenv("STRAKE_SOAK") == "1" }

// size picks small by default and big in a soak run.
func size[T any](small, big T) T {
	if soak() {
		return big
	}
	return small
}

// clusterOptions says what cluster a test wants.
type clusterOptions struct {
	osts    int               // number of OSTs, default 2; in layouts of several processes spread over two OSS
	clients int               // number of client mounts, default 1; each further one is a process of its own
	mount   string            // value of -o, may be empty
	env     []string          // added to every node's environment
	ostData map[int]string    // folder for the data of an OST in place of one below base (only several processes)
	extra   map[string]string // flags added per node name, split at blanks
	disks   bool              // the data folders lie on disks that can lose what was not flushed (only several processes)
}

// cluster is one file system that runs in processes of its own.
type cluster struct {
	layout string
	base   string // temporary folder: data, logs and the mount point
	mnt    string // the first mount, or STRAKE_SUITE_DIR
	plain  bool   // mnt is a plain folder, no node runs
	osts   int
	mgs    string                    // HOST:PORT of the MGS, empty in layout all
	nodes  []*node                   // in order of start: servers first, client last
	disks  map[string]*forgetfs.Disk // by node name and number of the folder: mds-0, oss0-0
	net    *network                  // of layout networks
}

// node is one strake process, which may be stopped and started again with the same arguments.
type node struct {
	name string
	args []string
	env  []string
	log  string // file that gets stdout and stderr
	http string // address of its dashboard, empty for none
	mnt  string // its mount point, empty for a server
	data []string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has been waited for
	err  error         // result of the wait, valid when done is closed
	// killed says that the process was ended without a warning, ever.
	killed bool
}

var (
	buildOnce   sync.Once
	builtBinary string
	errBuild    error

	sharedMu sync.Mutex
	shared   = map[string]*cluster{} // guarded by sharedMu
	errShare = map[string]error{}    // guarded by sharedMu

	// spawner starts every node from one thread that never ends, so that PDEATHSIG means the end of this process.
	spawner = sync.OnceValue(func() chan<- func() {
		ch := make(chan func())
		go func() {
			runtime.LockOSThread()
			for f := range ch {
				f()
			}
		}()
		return ch
	})
)

func TestMain(m *testing.M) {
	if forgetfs.Helper() {
		return
	}
	if mode := os.Getenv("STRAKE_SUITE_HELPER"); mode != "" {
		os.Exit(helperMain(mode))
	}
	syscall.Umask(0o022)
	code := m.Run()
	sharedMu.Lock()
	for name, c := range shared {
		err := c.stop()
		if err == nil {
			err = c.check()
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "suite: stop of the shared cluster %q: %v\n%s", name, err, c.tails())
			code = 1
		}
		c.remove()
	}
	sharedMu.Unlock()
	if builtBinary != "" && os.Getenv("STRAKE_SUITE_BIN") == "" {
		os.RemoveAll(filepath.Dir(builtBinary))
	}
	os.Exit(code)
}

// moduleRoot is the folder of go.mod.
func moduleRoot() string {
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			panic("suite: no go.mod above the working folder")
		}
		dir = filepath.Dir(dir)
	}
}

// strakeBinary builds the strake binary once and returns its path.
func strakeBinary() (string, error) {
	buildOnce.Do(func() {
		if b := os.Getenv("STRAKE_SUITE_BIN"); b != "" {
			builtBinary = b
			return
		}
		dir, err := os.MkdirTemp("", "strake-suite-bin-")
		if err != nil {
			errBuild = err
			return
		}
		builtBinary = filepath.Join(dir, "strake")
		cmd := exec.Command("go", "build", "-o", builtBinary, ".")
		cmd.Dir = moduleRoot()
		if out, err := cmd.CombinedOutput(); err != nil {
			errBuild = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	return builtBinary, errBuild
}

// needMount skips where no FUSE mount can be made.
func needMount(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: FUSE mounts, several users, devices")
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no /dev/fuse here")
	}
}

// layouts are the chosen ones; judged is false for tests that run in one layout only by default.
func layouts(judged bool) []string {
	if os.Getenv("STRAKE_SUITE_DIR") != "" {
		return []string{layoutAll}
	}
	list := []string{layoutAll, layoutProcesses, layoutAddresses}
	if env := os.Getenv("STRAKE_SUITE_LAYOUTS"); env != "" {
		list = strings.Split(env, ",")
	}
	if !judged && !soak() {
		list = list[:1]
	}
	return list
}

// judged runs f on the shared cluster of each layout.
func judged(t *testing.T, f func(t *testing.T, c *cluster)) { eachLayout(t, layouts(true), f) }

// small runs f on the shared cluster of the first chosen layout (of each in a soak run).
func small(t *testing.T, f func(t *testing.T, c *cluster)) { eachLayout(t, layouts(false), f) }

func eachLayout(t *testing.T, list []string, f func(t *testing.T, c *cluster)) {
	t.Helper()
	for _, layout := range list {
		t.Run(layout, func(t *testing.T) {
			c := sharedCluster(t, layout)
			t.Cleanup(func() {
				if t.Failed() {
					t.Log(c.tails())
				}
			})
			f(t, c)
		})
	}
}

// sharedCluster starts the cluster that the tests of a layout share, at its first use.
func sharedCluster(t testing.TB, layout string) *cluster {
	t.Helper()
	if dir := os.Getenv("STRAKE_SUITE_DIR"); dir != "" {
		return &cluster{layout: layout, mnt: dir, plain: true}
	}
	needMount(t)
	sharedMu.Lock()
	defer sharedMu.Unlock()
	if err := errShare[layout]; err != nil {
		t.Fatalf("the shared cluster of layout %s did not start: %v", layout, err)
	}
	c := shared[layout]
	if c == nil {
		var err error
		if c, err = startCluster(layout, clusterOptions{osts: sharedOSTs}); err != nil {
			errShare[layout] = err
			t.Fatal(err)
		}
		shared[layout] = c
	}
	if err := c.alive(); err != nil {
		t.Fatalf("the shared cluster of layout %s: %v", layout, err)
	}
	return c
}

// newCluster starts a cluster for one test, which is stopped and checked at its end.
func newCluster(t testing.TB, layout string, opts clusterOptions) *cluster {
	t.Helper()
	needCluster(t)
	c, err := startCluster(layout, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.stop(); err != nil {
			t.Errorf("stop: %v", err)
		} else if err := c.check(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(c.tails())
		}
		c.remove()
	})
	return c
}

// needCluster skips a test that means nothing on a plain folder.
func needCluster(t testing.TB) {
	t.Helper()
	if os.Getenv("STRAKE_SUITE_DIR") != "" {
		t.Skip("needs a cluster, and STRAKE_SUITE_DIR names a plain folder")
	}
	needMount(t)
}

// real skips the test on a plain folder.
func (c *cluster) real(t testing.TB) {
	t.Helper()
	if c.plain {
		t.Skip("needs a cluster, and STRAKE_SUITE_DIR names a plain folder")
	}
}

func startCluster(layout string, opts clusterOptions) (*cluster, error) {
	bin, err := strakeBinary()
	if err != nil {
		return nil, err
	}
	base, err := os.MkdirTemp("", "strake-suite-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(base, 0o755); err != nil { // other users must reach the mount
		return nil, err
	}
	if opts.osts == 0 {
		opts.osts = 2
	}
	c := &cluster{layout: layout, base: base, mnt: filepath.Join(base, "mnt"), osts: opts.osts}
	if err := os.Mkdir(c.mnt, 0o755); err != nil {
		return nil, err
	}
	opts.clients = max(opts.clients, 1)
	switch layout {
	case layoutAll:
		err = c.addAll(bin, opts)
	case layoutProcesses:
		err = c.addProcesses(bin, opts, [3]string{"127.0.0.1", "127.0.0.1", "127.0.0.1"})
	case layoutAddresses:
		err = c.addProcesses(bin, opts, [3]string{"127.0.0.2", "127.0.0.3", "127.0.0.4"})
	case layoutNetworks:
		if c.net, err = newNetwork(3); err == nil {
			err = c.addProcesses(bin, opts, c.net.hosts())
		}
	case layoutCombined:
		err = c.addCombined(bin, opts)
	default:
		err = fmt.Errorf("suite: no layout %q: all, processes or addresses", layout)
	}
	if err == nil {
		err = c.addClients(bin, opts)
	}
	if err == nil {
		err = c.startAll()
	}
	if err != nil {
		err = fmt.Errorf("layout %s: %w\n%s", layout, err, c.tails())
		_ = c.stop()
		c.remove()
		return nil, err
	}
	return c, nil
}

func (c *cluster) addAll(bin string, opts clusterOptions) error {
	web, err := freePort("127.0.0.1")
	if err != nil {
		return err
	}
	data := filepath.Join(c.base, "data")
	args := []string{bin, "--role=all", "--data", data, "--mount", c.mnt, "--http", web,
		"--osts", strconv.Itoa(c.osts), "--log-level", "info"}
	if opts.clients > 1 { // others join by TCP
		if c.mgs, err = freePort("127.0.0.1"); err != nil {
			return err
		}
		args = append(args, "--listen", c.mgs, "--insecure")
	}
	c.add("all", web, opts, args, data)
	c.nodes[len(c.nodes)-1].mnt = c.mnt
	return nil
}

// addClients describes the clients beside the servers: client, client1, … with the mounts mnt, mnt1, …; in layout all
// the first mount is the one of that process.
func (c *cluster) addClients(bin string, opts clusterOptions) error {
	for i := range opts.clients {
		if i == 0 && c.layout == layoutAll {
			continue
		}
		name, dir, web := "client", c.mnt, ""
		args := []string{bin, "--role=client", "--mgs", c.mgs, "--insecure", "--log-level", "info"}
		if i > 0 {
			name, dir = fmt.Sprintf("client%d", i), fmt.Sprintf("%s%d", c.mnt, i)
			if err := os.Mkdir(dir, 0o755); err != nil {
				return err
			}
		}
		if opts.clients > 1 {
			var err error
			if web, err = freePort("127.0.0.1"); err != nil {
				return err
			}
			args = append(args, "--http", web)
		}
		c.add(name, web, opts, append(args, "--mount", dir))
		c.nodes[len(c.nodes)-1].mnt = dir
	}
	return nil
}

// addProcesses describes one MDS, two OSS and one client; hosts are the addresses of the servers.
func (c *cluster) addProcesses(bin string, opts clusterOptions, hosts [3]string) error {
	var listen, web [3]string
	for i, host := range hosts {
		var err error
		if c.net != nil {
			listen[i] = net.JoinHostPort(host, "9880") // a network of its own: every port is free
		} else if listen[i], err = freePort(host); err != nil {
			return err
		}
		if web[i], err = freePort("127.0.0.1"); err != nil {
			return err
		}
	}
	c.mgs = listen[0]
	common := []string{"--insecure", "--log-level", "info"}
	mdt, err := c.dataFolder("mds-0", "mdt", opts)
	if err != nil {
		return err
	}
	c.add("mds", web[0], opts, slices.Concat([]string{bin, "--role=mds", "--data", mdt, "--listen", listen[0],
		"--http", web[0]}, common), mdt)
	for i := range 2 {
		args := []string{bin, "--role=oss", "--mgs", c.mgs, "--listen", listen[i+1], "--http", web[i+1]}
		var folders []string
		for ost := range c.osts {
			if c.owner(ost) != i {
				continue
			}
			dir := opts.ostData[ost]
			if dir == "" {
				var err error
				disk := fmt.Sprintf("oss%d-%d", i, len(folders))
				if dir, err = c.dataFolder(disk, fmt.Sprintf("ost%d", ost), opts); err != nil {
					return err
				}
			}
			folders = append(folders, dir)
			args = append(args, "--data", dir)
		}
		c.add(fmt.Sprintf("oss%d", i), web[i+1], opts, slices.Concat(args, common), folders...)
	}
	return nil
}

// addCombined describes one process that is mds and oss on one base folder, and a client.
func (c *cluster) addCombined(bin string, opts clusterOptions) error {
	listen, err := freePort("127.0.0.1")
	if err != nil {
		return err
	}
	web, err := freePort("127.0.0.1")
	if err != nil {
		return err
	}
	c.mgs = listen
	data := filepath.Join(c.base, "data")
	c.add("mds", web, opts, []string{bin, "--role=mds,oss", "--data", data, "--osts", strconv.Itoa(c.osts), "--listen", listen,
		"--http", web, "--insecure"}, data)
	return nil
}

func (c *cluster) add(name, web string, opts clusterOptions, args []string, data ...string) {
	if opts.mount != "" && (name == "all" || strings.HasPrefix(name, "client")) {
		args = append(args, "-o", opts.mount)
	}
	args = append(args, strings.Fields(opts.extra[name])...)
	if i := slices.Index(args, "--insecure"); i >= 0 && c.net != nil {
		args[i] = "--insecure=any" // the addresses are no loopback ones
	}
	if c.net != nil && len(data) > 0 {
		args = append(c.net.enter(len(c.nodes)), args...)
	}
	c.nodes = append(c.nodes, &node{
		name: name, args: args, http: web, data: data,
		env: append(os.Environ(), opts.env...),
		log: filepath.Join(c.base, name+".log"),
	})
}

// startAll starts the nodes in order and waits until every OST has registered and the mount is there.
func (c *cluster) startAll() error {
	for _, n := range c.nodes {
		if strings.HasPrefix(n.name, "client") {
			if err := c.waitRegistered(); err != nil {
				return err
			}
		}
		if err := n.start(); err != nil {
			return err
		}
		if n.name == "mds" || n.name == "all" && c.mgs != "" {
			if err := n.waitListen(c.mgs); err != nil {
				return err
			}
		}
		if strings.HasPrefix(n.name, "oss") {
			if err := n.waitTargets(); err != nil {
				return err
			}
		}
	}
	if err := c.waitRegistered(); err != nil {
		return err
	}
	return c.waitMounted()
}

func (c *cluster) waitRegistered() error {
	return poll(startTimeout, func() error {
		if err := c.alive(); err != nil {
			return err
		}
		var all bytes.Buffer
		for _, n := range c.nodes {
			all.Write(n.lastRun())
		}
		for i := range c.osts {
			if !regexp.MustCompile(fmt.Sprintf(`-OST%04x: registered`, i)).Match(all.Bytes()) {
				return retry("OST%04x has not registered", i)
			}
		}
		return nil
	})
}

func (c *cluster) waitMounted() error {
	return poll(startTimeout, func() error {
		if err := c.alive(); err != nil {
			return err
		}
		for _, n := range c.nodes {
			if n.mnt != "" && n.cmd != nil && !isMounted(n.mnt) {
				return retry("nothing is mounted on %s", n.mnt)
			}
		}
		return nil
	})
}

// alive says which node has ended that should run.
func (c *cluster) alive() error {
	for _, n := range c.nodes {
		if n.cmd == nil {
			continue
		}
		select {
		case <-n.done:
			return fmt.Errorf("node %s has ended: %v", n.name, n.err)
		default:
		}
	}
	return nil
}

// stop sends SIGTERM to each node, client first, and checks that it leaves in time with status 0 and that the mount is
// gone. Whatever is left is then removed by force.
func (c *cluster) stop() error {
	var errs []error
	for _, n := range slices.Backward(c.nodes) {
		if err := n.stop(syscall.SIGTERM, stopTimeout); err != nil {
			errs = append(errs, err)
		}
		if n.mnt != "" && isMounted(n.mnt) {
			errs = append(errs, fmt.Errorf("%s is still mounted after %s left", n.mnt, n.name))
			_ = unix.Unmount(n.mnt, unix.MNT_DETACH)
		}
	}
	return errors.Join(errs...)
}

// staleSize is what is left when a client and the MDT are lost together: what the client had written since the last fsync may be on
// the OSTs, and the MDT has lost that somebody wrote.
const staleSize = "size-on-mdt "

// check lets strake check look at the folders of the targets, which have stopped: whatever tests have done, it finds nothing. After
// processes were killed, or disks have lost something, sizes may be stale; they are mended then.
func (c *cluster) check() error {
	out, err := c.inspect()
	if err == nil {
		return nil
	}
	stale := cmdStatus(err) == 1 && (len(c.disks) > 0 || slices.ContainsFunc(c.nodes, func(n *node) bool { return n.killed }))
	for line := range strings.Lines(out) {
		if strings.Contains(line, " targets: ") {
			break // The summary: what follows is no finding.
		}
		stale = stale && strings.HasPrefix(line, staleSize)
	}
	if !stale {
		return fmt.Errorf("strake check: %w\n%s", err, out)
	}
	if mended, err := c.inspect("--repair"); cmdStatus(err) != 2 {
		return fmt.Errorf("strake check --repair: %w\n%s", err, mended)
	}
	if out, err := c.inspect(); err != nil {
		return fmt.Errorf("strake check after a repair: %w\n%s", err, out)
	}
	return nil
}

// inspect runs strake check on the folders of the targets and returns what it says.
func (c *cluster) inspect(flags ...string) (string, error) {
	bin, err := strakeBinary()
	if err != nil {
		return "", err
	}
	args := []string{bin, "check"}
	for _, n := range c.nodes {
		for _, dir := range n.data {
			args = append(args, "--data", dir)
		}
	}
	if len(args) == 2 {
		return "", nil
	}
	return output("", append(args, flags...)...)
}

// restart starts a stopped cluster again.
func (c *cluster) restart(t testing.TB) {
	t.Helper()
	if err := c.startAll(); err != nil {
		t.Fatalf("start again: %v", err)
	}
}

// dataFolder is where a target keeps its data: below base, or on a disk that is named disk.
func (c *cluster) dataFolder(disk, name string, opts clusterOptions) (string, error) {
	if !opts.disks {
		return filepath.Join(c.base, name), nil
	}
	log, err := os.Create(filepath.Join(c.base, disk+".log"))
	if err != nil {
		return "", err
	}
	defer log.Close()
	d, err := forgetfs.Start(filepath.Join(c.base, "backing-"+name), filepath.Join(c.base, "disk-"+name), log)
	if err != nil {
		return "", err
	}
	if c.disks == nil {
		c.disks = map[string]*forgetfs.Disk{}
	}
	c.disks[disk] = d
	return filepath.Join(d.Dir, "data"), nil
}

func (c *cluster) remove() {
	for name, d := range c.disks {
		if err := d.Close(); err != nil {
			fmt.Fprintf(os.Stderr, "suite: disk %s: %v\n", name, err)
		}
	}
	if c.net != nil {
		c.net.remove()
	}
	for _, dir := range c.dirs() {
		for isMounted(dir) {
			if unix.Unmount(dir, unix.MNT_DETACH) != nil {
				return // never walk into a live mount
			}
		}
	}
	os.RemoveAll(c.base)
}

// dirs are the mount points, in the order of the clients.
func (c *cluster) dirs() []string {
	var list []string
	for _, n := range c.nodes {
		if n.mnt != "" {
			list = append(list, n.mnt)
		}
	}
	return list
}

// node finds a node by name: all, mds, oss0, oss1, client, client1, …
func (c *cluster) node(t testing.TB, name string) *node {
	t.Helper()
	for _, n := range c.nodes {
		if n.name == name {
			return n
		}
	}
	t.Fatalf("no node %s in layout %s", name, c.layout)
	return nil
}

// server is the node that serves an OST.
func (c *cluster) server(t testing.TB, ost int) *node {
	t.Helper()
	if c.layout == layoutAll {
		return c.node(t, "all")
	}
	return c.node(t, fmt.Sprintf("oss%d", c.owner(ost)))
}

// owner is the number of the OSS that serves an OST: indices are given in the order of registration, and the first OSS
// registers all of its own before the second one starts.
func (c *cluster) owner(ost int) int { return ost * 2 / c.osts }

// tails returns the last lines of every node's log.
func (c *cluster) tails() string {
	var b strings.Builder
	for _, n := range c.nodes {
		text, err := os.ReadFile(n.log)
		if err != nil {
			continue
		}
		lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
		fmt.Fprintf(&b, "--- %s: %s\n", n.name, strings.Join(n.args[1:], " "))
		for _, l := range lines[max(0, len(lines)-20):] {
			fmt.Fprintf(&b, "    %.400s\n", l)
		}
	}
	return b.String()
}

// stored is how many bytes the data folders of the servers hold on the disk.
func (c *cluster) stored(t testing.TB) int64 {
	t.Helper()
	var sum int64
	for _, n := range c.nodes {
		for _, dir := range n.data {
			_ = filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
				var st unix.Stat_t
				if err == nil && unix.Lstat(path, &st) == nil {
					sum += st.Blocks * 512
				}
				return nil
			})
		}
	}
	return sum
}

// resident is the memory of all nodes in bytes.
func (c *cluster) resident(t testing.TB) int64 {
	t.Helper()
	var pages, sum int64
	for _, n := range c.nodes {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", n.cmd.Process.Pid))
		if err != nil {
			t.Fatalf("memory of %s: %v", n.name, err)
		}
		if _, err := fmt.Sscanf(strings.Fields(string(text))[1], "%d", &pages); err != nil {
			t.Fatal(err)
		}
		sum += pages * int64(os.Getpagesize())
	}
	return sum
}

// lfs runs `strake lfs args…` and returns its output; a failure ends the test.
func (c *cluster) lfs(t testing.TB, args ...string) string {
	t.Helper()
	c.real(t)
	bin, err := strakeBinary()
	if err != nil {
		t.Fatal(err)
	}
	return run(t, "", append([]string{bin, "lfs"}, args...)...)
}

// setstripe makes a file with a layout; on a plain folder it only makes the file.
func (c *cluster) setstripe(t testing.TB, path string, count int, stripe string) {
	t.Helper()
	if c.plain {
		must(t, os.WriteFile(path, nil, 0o644))
		return
	}
	c.lfs(t, "setstripe", "-c", strconv.Itoa(count), "-S", stripe, path)
}

func (n *node) start() error {
	f, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	fmt.Fprintln(f, runMark)
	cmd := exec.Command(n.args[0], n.args[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = n.env, f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true}
	started := make(chan error)
	spawner() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", n.name, err)
	}
	done := make(chan struct{})
	n.cmd, n.done = cmd, done
	go func() {
		n.err = cmd.Wait()
		close(done)
	}()
	return nil
}

const runMark = "=== start"

// lastRun is what the node has logged since its last start.
func (n *node) lastRun() []byte {
	text, _ := os.ReadFile(n.log)
	if i := bytes.LastIndex(text, []byte(runMark)); i >= 0 {
		text = text[i:]
	}
	return text
}

// waitListen waits until something accepts connections at addr.
func (n *node) waitListen(addr string) error {
	return poll(startTimeout, func() error {
		select {
		case <-n.done:
			return fmt.Errorf("node %s has ended: %v", n.name, n.err)
		default:
		}
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return retry("%s does not listen: %v", n.name, err)
		}
		return conn.Close()
	})
}

// stop sends sig and waits for the end: status 0 is asked for unless sig is SIGKILL.
func (n *node) stop(sig syscall.Signal, limit time.Duration) error {
	if n.cmd == nil {
		return nil
	}
	cmd := n.cmd
	n.cmd = nil
	select {
	case <-n.done:
		return fmt.Errorf("%s had ended before it was stopped: %v", n.name, n.err)
	default:
	}
	_ = cmd.Process.Signal(sig)
	select {
	case <-n.done:
	case <-time.After(limit):
		_ = cmd.Process.Signal(syscall.SIGQUIT) // leaves the goroutines' stacks in the log
		select {
		case <-n.done:
		case <-time.After(2 * time.Second):
			_ = cmd.Process.Kill()
			<-n.done
		}
		return fmt.Errorf("%s did not leave within %v of %v", n.name, limit, sig)
	}
	if sig != syscall.SIGKILL && n.err != nil {
		return fmt.Errorf("%s after %v: %w", n.name, sig, n.err)
	}
	return nil
}

// terminate stops the node in order.
func (n *node) terminate(t testing.TB) {
	t.Helper()
	must(t, n.stop(syscall.SIGTERM, stopTimeout))
}

// kill ends the node at once.
func (n *node) kill(t testing.TB) {
	t.Helper()
	n.killed = true
	must(t, n.stop(syscall.SIGKILL, stopTimeout))
}

// again starts a stopped node with the same arguments and waits until its targets have registered.
func (n *node) again(t testing.TB) {
	t.Helper()
	must(t, n.start())
	if strings.HasPrefix(n.name, "oss") {
		must(t, n.waitTargets())
	}
}

// waitTargets waits until the targets of an OSS have registered.
func (n *node) waitTargets() error {
	return poll(startTimeout, func() error {
		select {
		case <-n.done:
			return fmt.Errorf("node %s has ended: %v", n.name, n.err)
		default:
		}
		if bytes.Count(n.lastRun(), []byte(": registered")) < len(n.data) {
			return retry("%s has not registered all its targets", n.name)
		}
		return nil
	})
}

// retryError tells poll to try again.
type retryError struct{ error }

func retry(format string, args ...any) error { return retryError{fmt.Errorf(format, args...)} }

// poll calls f until it returns nil, an error that is no retry, or the limit is over.
func poll(limit time.Duration, f func() error) error {
	deadline := time.Now().Add(limit)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		var again retryError
		if err == nil || !errors.As(err, &again) {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %v: %w", limit, again.error)
		}
		<-tick.C
	}
}

// isMounted says whether a file system is mounted on dir, without touching it.
func isMounted(dir string) bool {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return false
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Fields(s.Text()); len(fields) > 4 && fields[4] == dir {
			return true
		}
	}
	return false
}

// freePort returns an address of host that nobody listens on. Its port is below those that the kernel gives to connections, one of
// which would else be in the way a moment later.
func freePort(host string) (string, error) {
	const least, most = 10_000, 32_000
	var err error
	for range 50 {
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(least+rand.IntN(most-least)))); err == nil {
			defer l.Close()
			return l.Addr().String(), nil
		}
	}
	return "", err
}

// within fails the test when f has not returned in time. f goes on; it must not use t.
func within(t testing.TB, limit time.Duration, what string, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	case <-time.After(limit):
		t.Fatalf("%s: not done within %v", what, limit)
	}
}

// output runs a command in dir (empty: here) with a limit of ten minutes and returns its output and error.
func output(dir string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// cmdStatus is the exit status of a command that has run.
func cmdStatus(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}

// run runs a command in dir and returns its output; a failure ends the test.
func run(t testing.TB, dir string, args ...string) string {
	t.Helper()
	out, err := output(dir, args...)
	if err != nil {
		if len(out) > 4000 {
			out = out[:2000] + "\n…\n" + out[len(out)-2000:]
		}
		t.Fatalf("%s (in %s): %v\n%s", strings.Join(args, " "), dir, err, out)
	}
	return out
}

// shell runs a script with sh -eu in dir.
func shell(t testing.TB, dir, script string) string {
	t.Helper()
	return run(t, dir, "sh", "-euc", script)
}

// need skips the test where a tool is missing.
func need(t testing.TB, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs the tool %s", tool)
		}
	}
}

// must ends the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// is compares an errno.
func is(t testing.TB, what string, got error, want ...error) {
	t.Helper()
	for _, w := range want {
		if errors.Is(got, w) || (got == nil && w == nil) {
			return
		}
	}
	t.Errorf("%s: got %v, want %v", what, got, want)
}

// folder makes a folder for one test on the mount and removes it at the end.
func (c *cluster) folder(t testing.TB) string {
	t.Helper()
	name, _, _ := strings.Cut(t.Name(), "/")
	dir, err := os.MkdirTemp(c.mnt, name+"-")
	must(t, err)
	must(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil && c.alive() == nil {
			t.Errorf("clean up: %v", err)
		}
	})
	return dir
}

// reference makes a folder on the local file system to compare with.
func reference(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(os.Getenv("STRAKE_SUITE_REF"), "strake-reference-")
	must(t, err)
	must(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// seed returns the seed of a random test and prints it.
func seed(t testing.TB) uint64 {
	t.Helper()
	s := uint64(time.Now().UnixNano())
	if env := os.Getenv("STRAKE_SUITE_SEED"); env != "" {
		var err error
		s, err = strconv.ParseUint(env, 10, 64)
		must(t, err)
	}
	t.Logf("STRAKE_SUITE_SEED=%d", s)
	return s
}

// readAll reads a descriptor from its start to its end.
func readAll(fd int) ([]byte, error) {
	return io.ReadAll(io.NewSectionReader(pread(fd), 0, 1<<62))
}

// pread is a descriptor as an io.ReaderAt.
type pread int

func (fd pread) ReadAt(p []byte, off int64) (int, error) {
	n, err := unix.Pread(int(fd), p, off)
	n = max(n, 0)
	if err == nil && n == 0 && len(p) > 0 {
		err = io.EOF
	}
	if err == nil && n < len(p) {
		return n, nil
	}
	return n, err
}
