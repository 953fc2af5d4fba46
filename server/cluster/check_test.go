package cluster_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/client"
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/mdc"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/check"
	"github.com/strakefs/strake/server/config"
	"github.com/strakefs/strake/server/mdt"
	"github.com/strakefs/strake/server/osp"
	"github.com/strakefs/strake/server/ost"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/boltdev"
	bolt "go.etcd.io/bbolt"
)

// secondOST adds an OST to the OSS.
func (s *system) secondOST() {
	s.t.Helper()
	s.stopOSS()
	dir := filepath.Join(filepath.Dir(s.oss.Config.Targets[0].Dir), "ost1")
	s.oss.Config.Targets = append(s.oss.Config.Targets, config.Target{Kind: config.OST, Dir: dir})
	n, stop := s.start(s.oss)
	s.stopOSS = stop
	until(s.t, "the second OST", func() bool {
		c, err := n.View(s.t.Context())
		if err != nil {
			s.t.Fatal(err)
		}
		s.config = c
		return len(c.Targets) == 3
	})
}

func (s *system) base() string { return filepath.Dir(s.mds.Config.Targets[0].Dir) }

func (m *mount) striped(name string, stripes uint32, size int) fid.FID {
	m.t.Helper()
	l := layout.Plain(stripes, layout.MinStripeSize)
	var a attr.Attr
	var h *client.Handle
	until(m.t, name, func() bool { // The MDT may not have reached an OST that is new.
		var err error
		h, err = m.Create(m.t.Context(), &root, fid.Root, name, &mdc.Creation{Mode: attr.TypeFile | 0o644, Open: true, Flags: syscall.O_RDWR,
			Layout: l.Append(nil)}, &a)
		if err != nil && status.Of(err) != status.NoSpace {
			m.t.Fatal(err)
		}
		return err == nil
	})
	if size > 0 {
		m.write(h, bytes.Repeat([]byte{'d'}, size), 0)
	}
	if err := h.Fsync(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
	h.Release()
	until(m.t, "size at the MDT", func() bool { return m.atMDT(h.FID()).SizeValid })
	return h.FID()
}

// site is the data folders of a small file system that has stopped.
type site struct {
	t    *testing.T
	base string
}

// newSite makes files: one of one stripe, one of two, one without a byte; and one that was removed.
func newSite(t *testing.T) *site {
	s := newSystem(t)
	s.secondOST()
	m := s.mount(false)
	m.striped("one", 1, 100_000)
	m.striped("two", 2, 300_000)
	m.striped("twin", 1, 5000)
	m.striped("empty", 2, 0)
	m.striped("gone", 2, 70_000)
	if err := m.Unlink(t.Context(), &root, fid.Root, "gone", false); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(bg, 10*time.Second)
	defer cancel()
	if err := m.close(ctx); err != nil {
		t.Fatal(err)
	}
	s.stopOSS()
	s.stopMDS()
	return &site{t, s.base()}
}

// copy gives a copy of the folders.
func (s *site) copy(t *testing.T) *site {
	t.Helper()
	to := t.TempDir()
	if out, err := exec.Command("cp", "-a", "--sparse=always", s.base+"/.", to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return &site{t, to}
}

func (s *site) check(repair bool) ([]check.Finding, check.Summary) {
	s.t.Helper()
	set, err := check.Open([]string{s.base}, repair)
	if err != nil {
		s.t.Fatal(err)
	}
	var all []check.Finding
	sum, err := set.Check(bg, check.Options{Repair: repair, Report: func(f check.Finding) { all = append(all, f) }})
	if err = errors.Join(err, set.Close()); err != nil {
		s.t.Fatal(err)
	}
	return all, sum
}

func kindsOf(all []check.Finding) string {
	var kinds []string
	for _, f := range all {
		kinds = append(kinds, f.Kind)
	}
	slices.Sort(kinds)
	return strings.Join(kinds, " ")
}

// device opens the folder of a target, gives fn the device, and closes it.
func (s *site) device(name string, fn func(d *boltdev.Device, tx *store.Tx)) {
	s.t.Helper()
	specs := ost.Specs()
	if name == "mdt0" {
		specs = check.MDTSpecs()
	}
	d, err := boltdev.Open(boltdev.Options{Dir: filepath.Join(s.base, name), Specs: specs})
	if err != nil {
		s.t.Fatal(err)
	}
	tx := d.Begin(env.New())
	fn(d, tx)
	if !tx.Empty() {
		if _, err := d.Publish(tx); err != nil {
			s.t.Error(err)
		}
	}
	if err := d.Close(); err != nil {
		s.t.Fatal(err)
	}
}

// inode finds a file's record.
func (s *site) inode(d *boltdev.Device, name string) (n *mdt.Inode, key, value []byte) {
	s.t.Helper()
	r := target.DeviceRecords{KV: d}
	f, err := mdt.Find(bg, r, mdt.TablesAt(0), d.Label().FSKey, name)
	if err == nil {
		key = f.AppendKey(nil)
		value, err = r.Get(bg, 0, key)
	}
	if err == nil {
		n, err = mdt.DecodeInode(key, value)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return n, key, value
}

// stripes are the objects of a file.
func (s *site) stripes(name string) (all []layout.Stripe, n *mdt.Inode) {
	s.t.Helper()
	s.device("mdt0", func(d *boltdev.Device, _ *store.Tx) { n, _, _ = s.inode(d, name) })
	return n.Layout.Components[0].Stripes, n
}

// onOST gives fn the device of the OST that has stripe i of a file, and the object's record.
func (s *site) onOST(name string, i int, fn func(d *boltdev.Device, tx *store.Tx, o ost.Object)) {
	s.t.Helper()
	all, _ := s.stripes(name)
	st := all[i]
	s.device(fmt.Sprintf("ost%d", st.OST), func(d *boltdev.Device, tx *store.Tx) {
		k := st.Object.AppendKey(nil)
		o := ost.Object{ID: st.Object}
		if v, err := d.Get(env.New(), ost.TableObjects, k); err == nil {
			if o, err = ost.DecodeObject(k, v); err != nil {
				s.t.Fatal(err)
			}
		}
		fn(d, tx, o)
	})
}

// set writes another record of an object, with what is charged for it.
func (s *site) set(name string, i int, fn func(o *ost.Object)) {
	s.onOST(name, i, func(d *boltdev.Device, _ *store.Tx, o ost.Object) {
		fn(&o)
		if err := ost.NewRepairer(d).SetObject(bg, o); err != nil {
			s.t.Fatal(err)
		}
	})
}

func logKey(st layout.Stripe) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(st.OST))
	b = binary.BigEndian.AppendUint32(b, st.Object.Group)
	return binary.BigEndian.AppendUint64(b, st.Object.ID)
}

// mdtTable are the places of check.MDTSpecs.
func mdtTable(t *testing.T, name string) store.Table {
	for i, s := range check.MDTSpecs() {
		if s.Name == name {
			return store.Table(i)
		}
	}
	t.Fatal("no table " + name)
	return 0
}

// unlinkOnly takes a file off the MDT without a word to the OSTs.
func (s *site) unlinkOnly(name string) {
	s.device("mdt0", func(d *boltdev.Device, tx *store.Tx) {
		_, k, _ := s.inode(d, name)
		tx.Delete(0, k)
		_ = d.Scan(env.New(), 1, mdt.EntryKey(fid.Root), nil, func(k, v []byte) bool {
			if e, err := mdt.DecodeEntry(k, v); err == nil && e.Name == name {
				tx.Delete(1, bytes.Clone(k))
			}
			return true
		})
		rk := fid.Root.AppendKey(nil)
		v, err := d.Get(env.New(), 0, rk)
		if err != nil {
			s.t.Fatal(err)
		}
		v = bytes.Clone(v)
		binary.BigEndian.PutUint64(v[32:], binary.BigEndian.Uint64(v[32:])-1)
		tx.Put(0, rk, v)
	})
}

func TestCheckFindsAndMendsEachDamage(t *testing.T) {
	whole := newSite(t)
	if all, sum := whole.check(false); len(all) > 0 || sum.Inodes != 5 || sum.Files != 4 || sum.Waiting > 0 {
		t.Fatalf("before anything is broken: %+v, %+v", all, sum)
	}
	for name, c := range map[string]struct {
		damage func(s *site)
		kinds  string
	}{
		"an object goes": {func(s *site) {
			s.onOST("two", 1, func(d *boltdev.Device, _ *store.Tx, o ost.Object) { must(t, d.Objects().Remove(o.ID)) })
		}, "missing-object"},
		"an object that was never written goes": {func(s *site) {
			s.onOST("empty", 0, func(d *boltdev.Device, _ *store.Tx, o ost.Object) { must(t, d.Objects().Remove(o.ID)) })
		}, "missing-object"},
		"a file goes":     {func(s *site) { s.unlinkOnly("two") }, "orphan-object orphan-object"},
		"another owner":   {func(s *site) { s.set("one", 0, func(o *ost.Object) { o.Owner.OID += 900 }) }, "object-owner"},
		"another stripe":  {func(s *site) { s.set("two", 1, func(o *ost.Object) { o.Stripe = 0 }) }, "object-owner"},
		"another uid":     {func(s *site) { s.set("one", 0, func(o *ost.Object) { o.UID = 77 }) }, "object-ids"},
		"another project": {func(s *site) { s.set("two", 0, func(o *ost.Object) { o.Project = 5 }) }, "object-ids"},
		"a usage counter": {func(s *site) {
			s.device("ost0", func(_ *boltdev.Device, tx *store.Tx) {
				tx.Put(5, []byte{'u', 0, 0, 0, 9}, binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, 8), 1))
			})
		}, "usage"},
		"a size that counts": {func(s *site) {
			s.device("mdt0", func(d *boltdev.Device, tx *store.Tx) {
				_, k, v := s.inode(d, "two")
				binary.BigEndian.PutUint64(v[32:], 123)
				tx.Put(0, k, v)
			})
		}, "size-on-mdt"},
		"a shorter object": {func(s *site) {
			s.onOST("one", 0, func(d *boltdev.Device, _ *store.Tx, o ost.Object) {
				h, err := d.Objects().Open(o.ID)
				must(t, err)
				must(t, errors.Join(h.Truncate(10), h.Sync(), h.Close()))
			})
		}, "object-size size-on-mdt"},
		"a destroy record of a file's object": {func(s *site) {
			all, _ := s.stripes("two")
			s.device("mdt0", func(_ *boltdev.Device, tx *store.Tx) {
				tx.Put(mdtTable(t, "destroy_log"), logKey(all[0]), append([]byte{1}, make([]byte, 15)...))
			})
		}, "log-record"},
		"a log record of nothing": {func(s *site) {
			s.device("mdt0", func(_ *boltdev.Device, tx *store.Tx) {
				tx.Put(mdtTable(t, "object_setattr_log"), []byte("x"), []byte("y"))
			})
		}, "log-record"},
		"a log record of no OST": {func(s *site) {
			s.device("mdt0", func(_ *boltdev.Device, tx *store.Tx) {
				tx.Put(mdtTable(t, "destroy_log"), logKey(layout.Stripe{OST: 7, Object: fid.ObjectID{ID: 3}}), append([]byte{1}, make([]byte, 15)...))
			})
		}, "unknown-ost"},
		"the last used id": {func(s *site) {
			all, _ := s.stripes("two")
			s.device("mdt0", func(_ *boltdev.Device, tx *store.Tx) {
				k, v := osp.PutLastUsed(all[0].OST, 0)
				tx.Put(mdtTable(t, "ost_last_used"), k, v)
			})
		}, "last-used-id"},
		"an OST's last id": {func(s *site) {
			s.device("ost1", func(_ *boltdev.Device, tx *store.Tx) { tx.Delete(4, []byte{0, 0, 0, 0}) })
		}, "last-object-id"},
		"a group's record": {func(s *site) {
			s.device("ost1", func(_ *boltdev.Device, tx *store.Tx) { tx.Put(4, []byte{0, 0, 0, 0}, []byte("no")) })
		}, "bad-record last-object-id"},
		"a record without an object": {func(s *site) {
			all, _ := s.stripes("one")
			s.device("mdt0", func(_ *boltdev.Device, tx *store.Tx) {
				k, v := osp.PutLastUsed(all[0].OST, 1000)
				tx.Put(mdtTable(t, "ost_last_used"), k, v)
			})
			s.onOST("one", 0, func(d *boltdev.Device, _ *store.Tx, o ost.Object) {
				o.ID.ID, o.Owner = 999, fid.FID{Seq: fid.SeqFirst + 99, OID: 4}
				must(t, ost.NewRepairer(d).SetObject(bg, o))
			})
		}, "object-record"},
		"an object's record": {func(s *site) {
			s.onOST("one", 0, func(_ *boltdev.Device, tx *store.Tx, o ost.Object) {
				tx.Put(ost.TableObjects, o.ID.AppendKey(nil), []byte("short"))
			})
		}, "bad-record usage usage usage"},
		"a mark": {func(s *site) {
			s.device("ost0", func(_ *boltdev.Device, tx *store.Tx) { tx.Put(3, []byte("?"), []byte{1}) })
		}, "bad-record"},
	} {
		t.Run(name, func(t *testing.T) {
			s := whole.copy(t)
			s.t = t
			c.damage(s)
			all, sum := s.check(false)
			if kindsOf(all) != c.kinds || sum.Left != len(all) {
				t.Fatalf("found %q, want %q: %+v %+v", kindsOf(all), c.kinds, all, sum)
			}
			for _, f := range all {
				if f.Done != "" || f.Repaired || f.Target == "" || f.Detail == "" {
					t.Errorf("without repair: %+v", f)
				}
			}
			if all, sum = s.check(true); sum.Left != 0 || sum.Findings == 0 {
				t.Fatalf("repair leaves: %+v %+v", all, sum)
			}
			for _, f := range all {
				if f.Done == "" || !f.Repaired || f.Problem != "" {
					t.Errorf("repaired: %+v", f)
				}
			}
			if all, _ := s.check(false); len(all) > 0 {
				t.Errorf("the second time: %+v", all)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// connect reaches the running file system as the tool does.
func (s *system) connect(t *testing.T) *check.Set {
	t.Helper()
	set, err := check.Connect(t.Context(), check.Remote{MGS: []string{s.mds.Config.Listen}, FSName: "strake", Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// storm makes, writes, moves, links and removes files until stop is closed.
func (m *mount) storm(stop <-chan struct{}, seed uint64, calls *atomic.Int64) {
	rnd := rand.New(rand.NewPCG(seed, 3))
	ctx := context.Background()
	name := func() string { return fmt.Sprintf("s%d", rnd.IntN(12)) }
	var folders []fid.FID
	var a attr.Attr
	for i := range 3 {
		f := fid.Root
		if m.Make(ctx, &root, fid.Root, fmt.Sprintf("storm%d", i), &mdc.Creation{Mode: attr.TypeDir | 0o755}, &a) == nil {
			f = a.FID
		}
		folders = append(folders, f)
	}
	for {
		select {
		case <-stop:
			return
		default:
		}
		calls.Add(1)
		d, to := folders[rnd.IntN(3)], folders[rnd.IntN(3)]
		switch rnd.IntN(7) {
		case 0, 1, 2:
			l := layout.Plain(1+rnd.Uint32N(2), layout.MinStripeSize)
			h, err := m.Create(ctx, &root, d, name(), &mdc.Creation{Mode: attr.TypeFile | 0o644, Open: true, Flags: syscall.O_RDWR,
				Layout: l.Append(nil)}, &a)
			if err != nil {
				continue
			}
			_, _ = h.Write(ctx, &client.Write{Data: [][]byte{make([]byte, rnd.IntN(200_000))}})
			h.Release()
		case 3:
			_ = m.Rename(ctx, &root, &mdc.Renaming{From: d, FromName: name(), To: to, ToName: name()})
		case 4:
			_ = m.Unlink(ctx, &root, d, name(), false)
		case 5:
			if m.Lookup(ctx, &root, d, name(), &a) == nil {
				_ = m.Link(ctx, &root, a.FID, to, name(), &a)
			}
		default:
			if m.Lookup(ctx, &root, d, name(), &a) == nil {
				_ = m.Setattr(ctx, &root, a.FID, &client.Setting{Valid: attr.ValidUID, Attr: attr.Attr{UID: rnd.Uint32N(4)}}, &a)
			}
		}
	}
}

// TestCheckOfARunningFileSystem: under load it gives no false alarm; what is wrong it finds.
func TestCheckOfARunningFileSystem(t *testing.T) {
	s := newSystem(t)
	s.secondOST()
	m := s.mount(false)
	stop := make(chan struct{})
	var done sync.WaitGroup
	var calls atomic.Int64
	done.Go(func() { m.storm(stop, uint64(time.Now().UnixNano()), &calls) })
	done.Go(func() { m.storm(stop, uint64(time.Now().UnixNano()), &calls) })
	for end := time.Now().Add(20 * time.Second); calls.Load() < 1000 && time.Now().Before(end); {
		set := s.connect(t)
		sum, err := set.Check(t.Context(), check.Options{Settle: 300 * time.Millisecond, Report: func(f check.Finding) { t.Errorf("under load: %+v", f) }})
		if err = errors.Join(err, set.Close()); err != nil {
			t.Error(err)
		}
		if !sum.Online || len(sum.Targets) != 3 || sum.Inodes == 0 {
			t.Errorf("it says %+v", sum)
		}
	}
	set := s.connect(t)
	if _, err := set.Check(t.Context(), check.Options{Repair: true}); status.Of(err) != status.NotSupport {
		t.Errorf("repair of a running file system: %v", err)
	}
	must(t, set.Close())
	close(stop)
	done.Wait()
	if calls.Load() < 100 {
		t.Errorf("the load was %d calls", calls.Load())
	}
	ctx, cancel := context.WithTimeout(bg, 10*time.Second)
	defer cancel()
	must(t, m.close(ctx))
	s.stopOSS()
	s.stopMDS()
	stopped := &site{t, s.base()}
	if all, sum := stopped.check(false); len(all) > 0 {
		t.Errorf("after it: %+v %+v", all, sum)
	}
	stopped.device("mdt0", func(d *boltdev.Device, tx *store.Tx) {
		k := fid.Root.AppendKey(nil)
		v, err := d.Get(env.New(), 0, k)
		must(t, err)
		v = bytes.Clone(v)
		binary.BigEndian.PutUint32(v[16:], 99)
		tx.Put(0, k, v)
	})
	s.startMDS()
	s.startOSS()
	var all []check.Finding
	set = s.connect(t)
	sum, err := set.Check(t.Context(), check.Options{Settle: 100 * time.Millisecond, Report: func(f check.Finding) { all = append(all, f) }})
	must(t, errors.Join(err, set.Close()))
	if kindsOf(all) != "link-count" || sum.Left != 1 || all[0].Path != "/" {
		t.Errorf("with a wrong link count of the root: %+v %+v", all, sum)
	}
}

// TestInspectIsForTools: a mount does not read records, and a tool not those with secrets.
func TestInspectIsForTools(t *testing.T) {
	s := newSystem(t)
	for _, c := range []struct {
		kind  uint32
		table string
		want  status.Kind
	}{
		{rpc.KindClient, "inode", status.Perm}, {rpc.KindTool, "inode", status.OK}, {rpc.KindTool, "mgs", status.NotExist},
		{rpc.KindTool, "reply_slots", status.NotExist}, {rpc.KindTool, "", status.NotExist},
	} {
		i, err := rpc.NewImport(rpc.ImportOptions{Transport: rpc.NewTCP(), Addresses: []string{s.mds.Config.Listen}, FSName: "strake",
			Target: "strake-MDT0000", UUID: [16]byte{7, byte(c.kind)}, Peer: "test", Kind: c.kind})
		must(t, err)
		must(t, i.Connect(t.Context()))
		err = i.Do(t.Context(), &rpc.Request{Op: wire.OpInspect, Body: &wirepb.InspectRequest{Table: []byte(c.table)}, Reply: &wirepb.InspectReply{}})
		if got := status.Of(err); err != nil && got != c.want || err == nil && c.want != status.OK {
			t.Errorf("kind %d, table %q: %v", c.kind, c.table, err)
		}
		must(t, i.Close(bg))
	}
}

// TestRepairKeepsWhatClientsReplay: a repair's transactions have higher numbers than those that clients have still to bring back; the
// target is told up to where its own had come.
func TestRepairKeepsWhatClientsReplay(t *testing.T) {
	s := newSystem(t)
	s.stopOSS()
	s.stopMDS()
	stopped := &site{t, s.base()}
	clients, point := mdtTable(t, "clients"), []byte("replay_point")
	var before, after store.Transno
	stopped.device("mdt0", func(d *boltdev.Device, tx *store.Tx) {
		if _, err := d.Get(env.New(), clients, point); !errors.Is(err, store.ErrNotFound) {
			t.Fatalf("a replay point: %v", err)
		}
		mount := make([]byte, 32) // A mount's export, as package target keeps it.
		mount[0], mount[1] = 1, byte(rpc.KindClient)
		tx.Put(clients, bytes.Repeat([]byte{8}, 16), append(mount, "somewhere"...))
	})
	stopped.device("mdt0", func(d *boltdev.Device, _ *store.Tx) { before = d.Committed() })
	breakIt := func(nlink uint32) {
		// Straight into the bucket: a publish would move the number.
		db, err := bolt.Open(filepath.Join(s.base(), "mdt0", "meta.db"), 0o600, nil)
		must(t, err)
		must(t, db.Update(func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte("t/inode"))
			v := bytes.Clone(b.Get(fid.Root.AppendKey(nil)))
			binary.BigEndian.PutUint32(v[16:], nlink)
			return b.Put(fid.Root.AppendKey(nil), v)
		}))
		must(t, db.Close())
	}
	for i := range 2 {
		breakIt(uint32(50 + i))
		if all, sum := stopped.check(true); kindsOf(all) != "link-count" || sum.Left != 0 {
			t.Fatalf("%+v %+v", all, sum)
		}
		stopped.device("mdt0", func(d *boltdev.Device, _ *store.Tx) {
			v, err := d.Get(env.New(), clients, point)
			must(t, err)
			after = d.Committed()
			if got := store.Transno(binary.BigEndian.Uint64(v)); got != before || after <= before {
				t.Errorf("the replay point is %#x, committed were %#x and %#x", got, before, after)
			}
		})
	}
}
