package mdt

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/store"
)

// cacher is a client that keeps what its locks cover, as a mount does.
type cacher struct {
	*client
	// All is guarded by holder.mu. What was read with a lock is kept while some lock on the inode has the bit.
	size, perm map[fid.FID]*wirepb.Attr
	layouts    map[fid.FID]string
	xattrs     map[fid.FID]string
	entries    map[fid.FID]map[string]fid.FID
	names      map[nameIn]fid.FID
	kept, used int
}

type nameIn struct {
	folder fid.FID
	name   string
}

func newCacher(c *cluster) *cacher {
	k := &cacher{size: map[fid.FID]*wirepb.Attr{}, perm: map[fid.FID]*wirepb.Attr{}, layouts: map[fid.FID]string{},
		xattrs: map[fid.FID]string{}, entries: map[fid.FID]map[string]fid.FID{}, names: map[nameIn]fid.FID{}}
	k.client = c.holding(func(h *holder) { h.lost = k.lost })
	return k
}

// lost drops what no lock covers any more.
func (k *cacher) lost(f fid.FID, b ldlm.Bits) {
	b &^= k.h.holdsLocked(f)
	if b&ldlm.Update != 0 {
		delete(k.size, f)
		delete(k.entries, f)
	}
	if b&ldlm.Perm != 0 {
		delete(k.perm, f)
	}
	if b&ldlm.Layout != 0 {
		delete(k.layouts, f)
	}
	if b&ldlm.Xattr != 0 {
		delete(k.xattrs, f)
	}
	if b&ldlm.Lookup != 0 {
		for n, child := range k.names {
			if child == f {
				delete(k.names, n)
			}
		}
	}
}

// keep takes what an answer says of an inode, as far as locks cover it.
func (k *cacher) keep(a *wirepb.Attr, layout []byte, withLayout bool) {
	if a == nil {
		return
	}
	f := fidOf(a)
	k.h.mu.Lock()
	defer k.h.mu.Unlock()
	held := k.h.holdsLocked(f)
	if held&ldlm.Update != 0 {
		k.size[f] = a
		k.kept++
	}
	if held&ldlm.Perm != 0 {
		k.perm[f] = a
	}
	if held&ldlm.Layout != 0 && withLayout {
		k.layouts[f] = string(layout)
	}
}

func (k *cacher) keepName(p fid.FID, name string, f fid.FID) {
	k.h.mu.Lock()
	defer k.h.mu.Unlock()
	if k.h.holdsLocked(f)&ldlm.Lookup != 0 {
		k.names[nameIn{p, name}] = f
	}
}

// changed drops what a change of its own makes untrue: its locks stay.
func (k *cacher) changed(p fid.FID, name string, folders ...fid.FID) {
	k.h.mu.Lock()
	defer k.h.mu.Unlock()
	delete(k.names, nameIn{p, name})
	for _, f := range append(folders, p) {
		delete(k.entries, f)
	}
}

func (k *cacher) forgetInode(f fid.FID) {
	k.h.mu.Lock()
	defer k.h.mu.Unlock()
	k.lostOwn(f)
}

// lostOwn drops what is known of an inode that the client changed in ways that its answer does not tell.
func (k *cacher) lostOwn(f fid.FID) {
	delete(k.size, f)
	delete(k.perm, f)
	delete(k.xattrs, f)
	delete(k.layouts, f)
}

// world is what the random test works in.
type world struct {
	t       *testing.T
	rnd     *rand.Rand
	truth   *client
	ks      []*cacher
	folders []fid.FID
	log     []string
}

func (w *world) folder() fid.FID { return w.folders[w.rnd.IntN(len(w.folders))] }
func (w *world) name() string    { return string(rune('a' + w.rnd.IntN(5))) }

// step does one random operation of k and keeps what its answer brings.
func (w *world) step(k *cacher) {
	p, name := w.folder(), w.name()
	op := w.rnd.IntN(14)
	w.log = append(w.log, fmt.Sprintf("client %d: op %d on %v/%s", k.uuid[1], op, p, name))
	switch op {
	case 0, 1:
		mode := uint32(reg | 0o644)
		var more []func(*wirepb.CreateRequest)
		if op == 1 {
			mode = dir | 0o755
		}
		if r, err := k.make(root, p, name, mode, more...); err == nil {
			k.changed(p, name)
			k.keep(r.Parent, nil, false)
			k.keep(r.Attr, r.Layout, true)
			k.keepName(p, name, fidOf(r.Attr))
		}
	case 2, 3:
		if r, err := k.unlink(root, p, name, op == 3); err == nil {
			k.changed(p, name)
			k.keep(r.Parent, nil, false)
			k.forgetInode(fidOf(r.Attr))
			if r.Attr.Nlink > 0 {
				k.keep(r.Attr, nil, false)
			}
		}
	case 4:
		q, to := w.folder(), w.name()
		if r, err := k.rename(root, p, name, q, to, uint32(w.rnd.IntN(2))*renameExchange); err == nil {
			k.changed(p, name)
			k.changed(q, to)
			k.keep(r.FromParent, nil, false)
			k.keep(r.ToParent, nil, false)
			k.keep(r.Moved, nil, false)
			if r.Target != nil {
				k.forgetInode(fidOf(r.Target))
				if r.Target.Nlink > 0 {
					k.keep(r.Target, nil, false)
				}
			}
		}
	default:
		w.onInode(k, op, p, name)
	}
}

// onInode does one random operation on the inode that a name leads to.
func (w *world) onInode(k *cacher, op int, p fid.FID, name string) {
	r, err := k.lookup(root, p, name)
	if err != nil {
		k.changed(p, name)
		return
	}
	f := fidOf(r.Attr)
	k.keep(r.Attr, r.Layout, true)
	k.keepName(p, name, f)
	switch op {
	case 5, 6:
		valid, a := attr.ValidMode, &wirepb.Attr{Mode: uint32(w.rnd.IntN(0o1000))}
		if op == 6 {
			valid, a = attr.ValidMtime, &wirepb.Attr{MtimeSec: int64(w.rnd.IntN(1000))}
		}
		if r, err := k.setattr(root, f, valid, a, 0); err == nil {
			k.keep(r.Attr, r.Layout, true)
		}
	case 7:
		if _, err := k.xattr(wire.OpSetxattr, root, f, "user."+name, []byte(name), 0); err == nil {
			k.forgetInode(f)
		}
	case 8:
		if r, err := k.open(root, f, []uint32{oRdonly, oRdwr}[w.rnd.IntN(2)]); err == nil && r.Handle != 0 {
			_ = k.closeFile(f, r.Handle, report(uint64(w.rnd.IntN(1000)), 6000000000, r.Attr.SetattrGen, true))
			k.forgetInode(f)
		}
	case 9:
		if q := w.folder(); r.Attr.Mode&attr.TypeMask == reg {
			if l, err := k.link(root, f, q, name+"l"); err == nil {
				k.changed(q, name+"l")
				k.keep(l.Parent, nil, false)
				k.keep(l.Attr, l.Layout, true)
			}
		}
	case 10, 11:
		if ds, err := k.list(p, 1<<16, true, nil); err == nil {
			w.keepList(k, p, ds)
		}
	case 12:
		if v, err := k.xattr(wire.OpListxattr, root, f, "", nil, 0); err == nil {
			k.h.mu.Lock()
			if k.h.holdsLocked(f)&ldlm.Xattr != 0 {
				k.xattrs[f] = string(v)
			}
			k.h.mu.Unlock()
		}
	}
}

func (w *world) keepList(k *cacher, p fid.FID, ds []*wirepb.Dirent) {
	all := map[string]fid.FID{}
	for _, d := range ds[2:] {
		f := fid.FID{Seq: fid.Seq(d.Seq), OID: d.Oid}
		all[string(d.Name)] = f
		k.keep(d.Attr, d.Layout, d.Attr != nil && d.Attr.Mode&attr.TypeMask == reg)
		k.keepName(p, string(d.Name), f)
	}
	k.h.mu.Lock()
	defer k.h.mu.Unlock()
	if k.h.holdsLocked(p)&ldlm.Update != 0 {
		k.entries[p] = all
	}
}

// check compares all that a client keeps with the truth.
func (w *world) check(k *cacher) {
	k.h.mu.Lock()
	defer k.h.mu.Unlock()
	for f, a := range k.size {
		r, err := w.truth.getattr(f)
		if err != nil || !reflect.DeepEqual(updatePart(a), updatePart(r.Attr)) {
			w.fail(k, "UPDATE of %v: it keeps %v, true is %v (%v)", f, a, r.Attr, err)
		}
		k.used++
	}
	for f, a := range k.perm {
		r, err := w.truth.getattr(f)
		if err != nil || a.Mode != r.Attr.Mode || a.Uid != r.Attr.Uid || a.Gid != r.Attr.Gid || a.Flags != r.Attr.Flags {
			w.fail(k, "PERM of %v: it keeps %v, true is %v (%v)", f, a, r.Attr, err)
		}
	}
	for f, l := range k.layouts {
		if r, err := w.truth.getattr(f); err != nil || string(r.Layout) != l {
			w.fail(k, "LAYOUT of %v: %x, true is %x (%v)", f, l, r.Layout, err)
		}
	}
	for f, l := range k.xattrs {
		if v, err := w.truth.xattr(wire.OpListxattr, root, f, "", nil, 0); err != nil || string(v) != l {
			w.fail(k, "XATTR of %v: %q, true is %q (%v)", f, l, v, err)
		}
	}
	for n, f := range k.names {
		if r, err := w.truth.lookup(root, n.folder, n.name); err != nil || fidOf(r.Attr) != f {
			w.fail(k, "LOOKUP: %v/%s leads to %v, true is %v (%v)", n.folder, n.name, f, r.Attr, err)
		}
	}
	for p, all := range k.entries {
		ds, err := w.truth.list(p, 1<<16, false, nil)
		now := map[string]fid.FID{}
		for i, d := range ds {
			if i > 1 {
				now[string(d.Name)] = fid.FID{Seq: fid.Seq(d.Seq), OID: d.Oid}
			}
		}
		if err != nil || !reflect.DeepEqual(all, now) {
			w.fail(k, "entries of %v: %v, true is %v (%v)", p, all, now, err)
		}
	}
}

// updatePart is what UPDATE covers.
func updatePart(a *wirepb.Attr) [9]int64 {
	size := int64(a.Size)
	if !a.SizeValid {
		size = -1 // The only writer knows it.
	}
	return [9]int64{int64(a.Nlink), size, a.AtimeSec, a.MtimeSec, int64(a.MtimeNsec), a.CtimeSec, int64(a.CtimeNsec), int64(a.SetattrGen)}
}

func (w *world) fail(k *cacher, format string, args ...any) {
	w.t.Helper()
	last := w.log[max(0, len(w.log)-12):]
	w.t.Fatalf("client %d: %s\nafter %q", k.uuid[1], fmt.Sprintf(format, args...), last)
}

// TestWhatLocksCoverIsTrue: two clients work at random and keep what their locks cover; after each step all that either
// keeps is what a third client reads.
func TestWhatLocksCoverIsTrue(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	c := newCluster(t)
	c.h.ctimeAge.Store(0)
	w := &world{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), truth: c.client(), ks: []*cacher{newCacher(c), newCacher(c)}}
	w.folders = []fid.FID{fid.Root}
	for i := range 2 {
		w.folders = append(w.folders, w.truth.must(fid.Root, fmt.Sprintf("top%d", i), dir|0o777))
	}
	n := 3000
	if testing.Short() {
		n = 600
	}
	for range n {
		w.step(w.ks[w.rnd.IntN(2)])
		for _, k := range w.ks {
			w.check(k)
		}
	}
	for _, k := range w.ks {
		if k.kept < n/20 || k.used < n/20 {
			t.Errorf("client %d kept %d inodes and looked %d times: the test says nothing", k.uuid[1], k.kept, k.used)
		}
	}
}

// TestGrantsCoverWhatIsRead: while others change attributes, names and entries without a pause, what an answer says is true for
// as long as the lock that came with it is held.
func TestGrantsCoverWhatIsRead(t *testing.T) {
	c := newCluster(t, yielding)
	c.h.ctimeAge.Store(0)
	a, b, truth := c.client(), c.holding(), c.client()
	p := a.must(fid.Root, "p", dir|0o755)
	f, g := a.must(p, "f", reg|0o644), a.must(p, "g", reg|0o644)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	change := func(do func(i int) error) {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := do(i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	change(func(i int) error {
		_, err := a.setattr(root, f, attr.ValidMode, &wirepb.Attr{Mode: uint32(i) & 0o777}, 0)
		return err
	})
	change(func(int) error { _, err := a.rename(root, p, "f", p, "g", renameExchange); return err })
	change(func(i int) error {
		if i%2 == 1 {
			_, err := a.unlink(root, p, "h", false)
			return err
		}
		_, err := a.make(root, p, "h", attr.TypeFifo|0o644)
		return err
	})
	// held runs check and reports whether a lock with the bit was held from before the answer's use until after it.
	held := func(f fid.FID, bit ldlm.Bits, check func()) bool {
		lock := b.h.lockOf(f, bit)
		if lock == 0 {
			return false
		}
		failed := t.Failed()
		check()
		return !failed && b.h.has(lock)
	}
	covered := map[string]int{}
	n := 1200
	if testing.Short() {
		n = 600
	}
	for i := range n {
		what, right := "", true
		var ok bool
		switch i % 3 {
		case 0:
			what = "mode"
			r, err := b.getattr(f)
			ok = err == nil && held(f, ldlm.Perm, func() { now, _ := truth.getattr(f); right = now.Attr.Mode == r.Attr.Mode })
		case 1:
			what = "name"
			r, err := b.lookup(root, p, "f")
			if err != nil {
				t.Fatal(err)
			}
			ok = held(fidOf(r.Attr), ldlm.Lookup, func() {
				now, err := truth.lookup(root, p, "f")
				right = err == nil && fidOf(now.Attr) == fidOf(r.Attr)
			})
		case 2:
			what = "entries"
			ds, err := b.list(p, 1<<16, true, nil)
			ok = err == nil && held(p, ldlm.Update, func() { now, _ := truth.list(p, 1<<16, false, nil); right = slices.Equal(names(now), names(ds)) })
		}
		if ok {
			covered[what]++
			if !right {
				t.Errorf("%s: an answer with a lock is not true while the lock is held", what)
				break
			}
		}
	}
	close(stop)
	wg.Wait()
	t.Logf("covered: %v of %d (f %v, g %v)", covered, n, f, g)
	for _, what := range []string{"mode", "name", "entries"} {
		if covered[what] == 0 {
			t.Errorf("%s was never covered by a lock: the test says nothing", what)
		}
	}
}

// meddler lets something happen right after a lookup or a listing has read entries.
type meddler struct {
	store.Device
	dirents store.Table
	then    atomic.Pointer[func()]
}

func (d *meddler) meddle(t store.Table) {
	if t == d.dirents {
		if f := d.then.Swap(nil); f != nil {
			(*f)()
		}
	}
}

func (d *meddler) Get(e *env.Env, t store.Table, key []byte) ([]byte, error) {
	v, err := d.Device.Get(e, t, key)
	if t == d.dirents && d.then.Load() != nil {
		v = append([]byte(nil), v...)
		d.meddle(t)
	}
	return v, err
}

func (d *meddler) Scan(e *env.Env, t store.Table, from, to []byte, fn func(key, value []byte) bool) error {
	err := d.Device.Scan(e, t, from, to, fn)
	d.meddle(t)
	return err
}

// TestNamesChangeBeforeTheGrant: an entry that was read before a rename, whose inode is locked after it, is not answered as if
// the lock covered it.
func TestNamesChangeBeforeTheGrant(t *testing.T) {
	var d *meddler
	c := newCluster(t, func(c *cluster) {
		c.wrap = func(dev store.Device) store.Device {
			d = &meddler{Device: dev, dirents: TablesAt(2).Dirent}
			return d
		}
	})
	c.h.ctimeAge.Store(0)
	a, b := c.client(), c.holding()
	p := a.must(fid.Root, "p", dir|0o755)
	f, g := a.must(p, "f", reg|0o644), a.must(p, "g", reg|0o644)
	rename := func() {
		if _, err := a.rename(root, p, "f", p, "g", renameExchange); err != nil {
			t.Error(err)
		}
	}
	d.then.Store(&rename)
	r, err := b.lookup(root, p, "f")
	if err != nil || fidOf(r.Attr) != g || b.h.holds(g) != 0 || b.h.holds(f) != 0 {
		t.Errorf("lookup: %v (%v), want %v; it holds %v of it and %v of the other", r.Attr, err, g, b.h.holds(g), b.h.holds(f))
	}
	d.then.Store(&rename)
	b.h.bits = ldlm.Lookup | ldlm.Perm
	ds, err := b.list(p, 1<<16, true, nil)
	if err != nil || len(ds) != 4 {
		t.Fatalf("%v, %v", ds, err)
	}
	if now, err := a.lookup(root, p, "f"); err != nil || fidOf(now.Attr) != f {
		t.Fatalf("the rename did not come between: %v", err)
	}
	for _, e := range ds[2:] {
		if e.Lock != nil {
			t.Errorf("%s, which leads elsewhere, has a lock", e.Name)
		}
	}
	if n := c.h.ldlm.Namespace().LockCount(); n != 1 {
		t.Errorf("%d locks are granted, want the folder's", n)
	}
}
