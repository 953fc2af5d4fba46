package cluster_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/strakefs/strake/fs"
	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/client"
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/lockcache"
	"github.com/strakefs/strake/fs/lov"
	"github.com/strakefs/strake/fs/mdc"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/mdt"
	"github.com/strakefs/strake/server/osp"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/boltdev"
)

// idleOST makes objects that nobody will write.
type idleOST struct{}

func (idleOST) Do(_ context.Context, r *rpc.Request) error {
	switch r.Op {
	case wire.OpStatfs:
		*r.Reply.(*wirepb.StatfsReply) = wirepb.StatfsReply{TotalBytes: 1 << 40, FreeBytes: 1 << 40, AvailBytes: 1 << 40, Inodes: 1 << 30, FreeInodes: 1 << 30}
	case wire.OpPrecreate:
		r.Reply.(*wirepb.PrecreateReply).Last = r.Body.(*wirepb.PrecreateRequest).Upto
	}
	return nil
}
func (idleOST) LastCommitted() wire.Transno { return 0 }
func (idleOST) Instance() uint64            { return 1 }
func (idleOST) SetAddresses([]string)       {}
func (idleOST) Close(context.Context) error { return nil }

// tree is an MDT on a disk with many files. The files have objects, but there is no OST.
type tree struct {
	t       *testing.T
	net     rpc.Transport
	addr    string
	folders []fid.FID
}

const perFolder = 10_000

// treeFiles is the variable that makes a test process serve a tree.
const treeFiles = "STRAKE_TREE_FILES"

// newTree makes count files in folders of perFolder, in another process, so that the heap of this one is the clients' alone.
func newTree(t *testing.T, count int) *tree {
	t.Helper()
	c := exec.Command(os.Args[0], "-test.run=^TestServeTree$")
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%d", treeFiles, count))
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewReader(out)
	t.Cleanup(func() {
		_ = in.Close()
		rest, _ := io.ReadAll(said)
		if err := c.Wait(); err != nil {
			t.Errorf("the server's process: %v\n%s", err, rest)
		}
	})
	line, err := said.ReadString('\n')
	words := strings.Fields(line)
	if err != nil || len(words) < 2 || words[0] != "tree" {
		t.Fatalf("the server's process: %q, %v", line, err)
	}
	s := &tree{t: t, net: rpc.NewTCP(), addr: words[1]}
	for _, w := range words[2:] {
		f, err := fid.Parse(w)
		if err != nil {
			t.Fatal(err)
		}
		s.folders = append(s.folders, f)
	}
	return s
}

// TestServeTree is the server of newTree: it serves until its standard input ends.
func TestServeTree(t *testing.T) {
	count, err := strconv.Atoi(os.Getenv(treeFiles))
	if err != nil {
		t.Skip("serves other tests")
	}
	s := &tree{t: t, net: rpc.NewTCP()}
	defer s.serve()()
	s.fill(count)
	words := []any{"tree", s.addr}
	for _, f := range s.folders {
		words = append(words, f)
	}
	fmt.Println(words...)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// serve starts an MDT and returns what stops it.
func (s *tree) serve() (stop func()) {
	t := s.t
	t.Helper()
	clients := store.Table(len(mdt.Specs()))
	logs := clients + store.Table(len(target.Specs()))
	dev, err := boltdev.Open(boltdev.Options{Dir: t.TempDir(), Label: store.Label{FSName: "strake", Kind: store.KindMDT},
		Specs: slices.Concat(mdt.Specs(), target.Specs(), osp.Specs())})
	if err != nil {
		t.Fatal(err)
	}
	osts := osp.New(osp.Options{Device: dev, Tables: osp.TablesAt(logs), FSName: "strake", Name: "strake-MDT0000", StatfsEvery: time.Hour,
		Connect: func(_ layout.OSTIndex, _ []string, ev osp.Events) (osp.Remote, error) {
			go ev.Connected(&wirepb.ConnectReply{})
			return idleOST{}, nil
		}})
	h, err := mdt.New(mdt.Options{Name: "strake-MDT0000", FSName: "strake", Device: dev, Tables: mdt.TablesAt(0), Clients: clients,
		Slots: clients + 1, Key: []byte("0123456789abcdef"), Objects: osts})
	if err == nil {
		err = osts.SetOST(0, nil, true)
	}
	if err != nil {
		t.Fatal(err)
	}
	osts.RecoveryEnded()
	srv := rpc.NewServer(rpc.ServerOptions{Find: func(string) (rpc.Target, error) { return h.Target(), nil }})
	l, err := s.net.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = l.Addr().String()
	var served sync.WaitGroup
	served.Go(func() { _ = srv.Serve(l) })
	return func() {
		ctx, cancel := context.WithTimeout(bg, 20*time.Second)
		defer cancel()
		err := errors.Join(h.Close(ctx), srv.Close(ctx))
		served.Wait()
		if err = errors.Join(err, osts.Close(ctx), dev.Close()); err != nil {
			t.Error(err)
		}
	}
}

// fill makes the files, by some clients at once.
func (s *tree) fill(count int) {
	s.t.Helper()
	const workers = 8
	var all [workers]*mdc.MDC
	var imports [workers]*rpc.Import
	for i := range all {
		imports[i] = s.dial(rpc.ImportOptions{UUID: [16]byte{1, byte(i)}})
		all[i] = mdc.New(mdc.Options{Import: imports[i], Log: slog.New(slog.DiscardHandler)})
	}
	errs := make(chan error, workers)
	for at := 0; at < count; at += perFolder {
		var e mdc.Entry
		if err := all[0].Create(bg, &root, fid.Root, fmt.Sprintf("d%d", at/perFolder), &mdc.Creation{Mode: attr.TypeDir | 0o755}, &e); err != nil {
			s.t.Fatal(err)
		}
		folder := e.Attr.FID
		s.folders = append(s.folders, folder)
		for w, m := range all {
			go func() {
				var err error
				var e mdc.Entry
				for i := w; i < min(perFolder, count-at) && err == nil; i += workers {
					err = m.Create(bg, &root, folder, fmt.Sprintf("file-%06d.dat", i), &mdc.Creation{Mode: attr.TypeFile | 0o644}, &e)
				}
				errs <- err
			}()
		}
		for range all {
			if err := <-errs; err != nil {
				s.t.Fatal(err)
			}
		}
	}
	err := all[0].Sync(bg, fid.Root, true)
	for i, m := range all {
		err = errors.Join(err, m.Close(bg), imports[i].Close(bg))
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *tree) dial(o rpc.ImportOptions) *rpc.Import {
	s.t.Helper()
	o.Transport, o.Addresses, o.FSName, o.Target = s.net, []string{s.addr}, "strake", "strake-MDT0000"
	o.Peer, o.Kind = fmt.Sprintf("mount %x", o.UUID[:2]), rpc.KindClient
	i, err := rpc.NewImport(o)
	if err == nil {
		err = i.Connect(bg)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return i
}

// treeMount is a mount's state without a kernel, with its figures.
type treeMount struct {
	*client.Client
	t     *testing.T
	imp   *rpc.Import
	mdc   *mdc.MDC
	data  *lov.Set
	locks *lockcache.Cache
	owner client.Owner
	// table gives the figures of llite.*.objects or pages, which may be a second old.
	table func(name string) stats.TableStats
}

func (s *tree) mount(id byte, budget *client.Budget) *treeMount {
	m := &treeMount{t: s.t, data: lov.NewSet()}
	log, reg := slog.New(slog.DiscardHandler), stats.NewRegistry()
	o := rpc.ImportOptions{UUID: [16]byte{2, id}, OnConnect: func(r *wirepb.ConnectReply) { m.locks.Connected(r) },
		Callback: func(e *env.Env, c *rpc.Call) error { return m.locks.Callback(e, c) }}
	m.locks = lockcache.New(lockcache.Options{Name: "mdc", Import: lateImport{&m.imp}, Owner: &m.owner, Seed: 1})
	m.imp = s.dial(o)
	m.mdc = mdc.New(mdc.Options{Import: m.imp, Locks: m.locks, Log: log})
	m.Client = client.New(client.Options{MDC: m.mdc, Data: m.data, Locks: m.locks, Owner: &m.owner, Budget: budget, NamesMax: 1000,
		Log: log, Stats: reg, StatsPrefix: "llite.strake-0."})
	m.table = func(name string) (s stats.TableStats) {
		if err := reg.Walk("llite.*."+name+".hash_stats", func(e stats.Entry) error { s, _ = e.Table(); return nil }); err != nil {
			m.t.Error(err)
		}
		return s
	}
	return m
}

// lateImport is an import that is made after its lock cache.
type lateImport struct{ i **rpc.Import }

func (l lateImport) Do(ctx context.Context, r *rpc.Request) error { return (*l.i).Do(ctx, r) }

func (m *treeMount) close() {
	ctx, cancel := context.WithTimeout(bg, 10*time.Second)
	defer cancel()
	err := errors.Join(m.Client.Close(ctx), m.mdc.Close(ctx))
	m.locks.Close()
	if err = errors.Join(err, m.data.Close(ctx), m.imp.Close(ctx)); err != nil {
		m.t.Error(err)
	}
}

// walk lists the folders with attributes, as ls -lR does, and returns how many files there are. most is called with the locks held
// from time to time.
func (m *treeMount) walk(folders []fid.FID, most func(held int64)) (files int) {
	m.t.Helper()
	for _, f := range folders {
		d, err := m.OpenDir(bg, &root, f, 0)
		if err != nil {
			m.t.Fatal(err)
		}
		cookie, before := uint64(0), -1
		for files != before {
			before = files
			if err := d.Read(bg, cookie, true, func(e *mdc.Dirent, _ bool) bool {
				cookie = e.Cookie
				files++
				return true
			}); err != nil {
				m.t.Fatal(err)
			}
		}
		d.Release()
		files -= 2 // . and ..
		if most != nil {
			most(m.locks.UnusedCount())
		}
	}
	if err := m.mdc.DrainReports(bg); err != nil {
		m.t.Fatal(err)
	}
	return files
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func memorySoak() bool { return os.Getenv("STRAKE_SOAK") != "" }

// perObject is what a budget counts for a cached inode.
const perObject = 1280

// TestBytesPerObject holds what a budget counts for a cached inode, with its lock, name and layout, to what the heap says: while
// there is room, and at the limit, where what was given back has left its traces.
func TestBytesPerObject(t *testing.T) {
	if memoryRaceOn {
		t.Skip("the race detector changes sizes")
	}
	const n = 40_000
	s := newTree(t, n)
	for name, memory := range map[string]uint64{"room": 0, "limit": budgetPart * (16 << 20)} {
		t.Run(name, func(t *testing.T) {
			budget := client.NewBudget(memory)
			m := s.mount(1, budget)
			defer m.close()
			before := heap()
			if got := m.walk(s.folders, nil); got != n {
				t.Fatalf("%d files, want %d", got, n)
			}
			want := min(n, objectsOf(budget, 1))
			if want < n {
				m.settled(want)
			}
			table := m.table("objects")
			got := (heap() - before - m.table("pages").Bytes - 160<<10) / table.Entries
			t.Logf("%d objects: %d bytes each", table.Entries, got)
			if table.Entries < want*9/10 || table.Entries > want+10 {
				t.Fatalf("%d objects are cached, want %d", table.Entries, want)
			}
			if table.Bytes != table.Entries*perObject || got < perObject*8/10 || got > perObject*11/10 {
				t.Errorf("the table counts %d bytes each, the heap %d", table.Bytes/table.Entries, got)
			}
		})
	}
}

// budgetPart is the part of the machine's memory that a budget takes.
const budgetPart = 40

// walkSlack is what a walk may have beyond the bound before the trim has caught up: some pages of entries.
const walkSlack = 4 * 1500

// objectsOf is how many inodes each of so many mounts may cache: what a budget counts for one is in TestBytesPerObject, and for each
// mount it leaves 160 KiB for what its namespace keeps spare, and an eighth for pages of folders.
func objectsOf(b *client.Budget, mounts int64) int64 {
	return (b.Limit()/mounts*7/8 - 160<<10) / perObject
}

// settled waits until the trim has caught up: locks within the mount's part of the budget.
func (m *treeMount) settled(most int64) {
	m.t.Helper()
	until(m.t, "the locks are within the budget", func() bool { return m.locks.UnusedCount() <= most })
}

// TestWalkStaysWithinItsBudget: who lists 20,000 files with their attributes, with STRAKE_SOAK 2,000,000, keeps no more of them
// than max_cached_objects_mb says, at any time of it.
func TestWalkStaysWithinItsBudget(t *testing.T) {
	n, memory := 20_000, uint64(160<<20)
	switch {
	case memoryRaceOn:
		n = perFolder
	case memorySoak():
		n, memory = 2_000_000, 64<<30
	}
	s := newTree(t, n)
	budget := client.NewBudget(memory)
	m := s.mount(1, budget)
	defer m.close()
	most := objectsOf(budget, 1)
	before := heap()
	peak := int64(0)
	if got := m.walk(s.folders, func(held int64) { peak = max(peak, held) }); got != n {
		t.Fatalf("%d files, want %d", got, n)
	}
	m.settled(most)
	got := heap() - before
	held := m.locks.UnusedCount()
	t.Logf("%d files walked, limit %d bytes: %d locks at most, %d at the end, %d bytes on the heap", n, budget.Limit(), peak, held, got)
	if peak > most+walkSlack {
		t.Errorf("%d locks were held, %d are within the budget", peak, most)
	}
	if held < most*8/10 {
		t.Errorf("%d locks are kept of %d: more than needed was given back", held, most)
	}
	if table := m.table("objects"); table.Entries > held+walkSlack || table.Evictions < int64(n)-most-walkSlack || table.LimitBytes != budget.Limit() {
		t.Errorf("%+v", table)
	}
	// The tables' arrays shrink by halves.
	if !memoryRaceOn && got > budget.Limit()*105/100+256<<10 {
		t.Errorf("%d bytes, %d are the limit", got, budget.Limit())
	}
}

// idleBytes is what a mount may take that nobody uses.
const idleBytes = 3 << 20

// TestTenMountsOfAProcess: ten mounts take little while they are idle, and after each has listed everything no more than the
// budget that they share.
func TestTenMountsOfAProcess(t *testing.T) {
	if memoryRaceOn {
		t.Skip("the race detector changes sizes")
	}
	const count = 10
	n, memory := 10_000, uint64(1280<<20)
	if memorySoak() {
		n, memory = 100_000, 64<<30
	}
	s := newTree(t, n)
	budget := client.NewBudget(memory)
	first := s.mount(100, budget) // what is made once for all
	first.walk(s.folders, nil)
	first.close()
	before := heap()
	var mounts []*treeMount
	for i := range count {
		m := s.mount(byte(i), budget)
		defer m.close()
		mounts = append(mounts, m)
	}
	idle := (heap() - before) / count
	for _, m := range mounts {
		if got := m.walk(s.folders, nil); got != n {
			t.Fatalf("%d files, want %d", got, n)
		}
	}
	most := objectsOf(budget, count)
	for _, m := range mounts {
		m.settled(most)
	}
	used := heap() - before
	t.Logf("an idle mount takes %d bytes; %d after a walk of %d files %d together, limit %d", idle, count, n, used, budget.Limit())
	if idle > idleBytes {
		t.Errorf("%d bytes an idle mount, %d at most", idle, idleBytes)
	}
	if used > budget.Limit()*105/100+count*idle {
		t.Errorf("%d bytes, %d are the limit", used, budget.Limit())
	}
	kept := int64(0)
	for _, m := range mounts {
		kept += m.table("objects").Entries
	}
	if kept < most*count*8/10 {
		t.Errorf("%d objects are kept, %d are within the budget", kept, most*count)
	}
}

// TestTenIdleKernelMounts is what a whole mount costs that nobody uses, its connections and kernel queues among it.
func TestTenIdleKernelMounts(t *testing.T) {
	if memoryRaceOn {
		t.Skip("the race detector changes sizes")
	}
	s := newSystem(t)
	first := s.kernelMount()
	if err := unmount(t, first); err != nil {
		t.Fatal(err)
	}
	const count = 10
	before := heap()
	var mounts []*fs.Mount
	for range count {
		mounts = append(mounts, s.kernelMount())
	}
	each := (heap() - before) / count
	t.Logf("an idle mount takes %d bytes, with the servers' side of it", each)
	if each > idleBytes {
		t.Errorf("%d bytes an idle mount, %d at most", each, idleBytes)
	}
	for _, m := range mounts {
		if err := unmount(t, m); err != nil {
			t.Error(err)
		}
	}
}
