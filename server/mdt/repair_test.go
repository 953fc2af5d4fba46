package mdt

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/memdev"
)

var checkKey = []byte("0123456789abcdef")

// broken is a device with a small tree on it that nobody serves:
//
//	/dir/ (a folder) with file, fifo, sub/ (a folder) with deep; /two with one inode named twice, /big with a large xattr
type broken struct {
	t    *testing.T
	dev  store.Device
	tb   Tables
	fids map[string]fid.FID
}

func newBroken(t *testing.T) *broken {
	c := newCluster(t)
	cl := c.client()
	b := &broken{t: t, tb: TablesAt(2), fids: map[string]fid.FID{}}
	put := func(name string, folder fid.FID, mode uint32) fid.FID {
		b.fids[name] = cl.must(folder, name, mode)
		return b.fids[name]
	}
	d := put("dir", fid.Root, dir|0o755)
	put("file", d, reg|0o644)
	put("fifo", d, attr.TypeFifo|0o644)
	put("deep", put("sub", d, dir|0o755), reg|0o600)
	put("two", fid.Root, reg|0o644)
	if _, err := cl.link(root, b.fids["two"], d, "two-again"); err != nil {
		t.Fatal(err)
	}
	put("big", fid.Root, reg|0o644)
	if _, err := cl.xattr(wire.OpSetxattr, root, b.fids["big"], "trusted.x", bytes.Repeat([]byte("x"), 9000), 0); err != nil {
		t.Fatal(err)
	}
	c.halt(false)
	dev, err := memdev.Open(c.disk, memdev.Options{Specs: testSpecs()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	b.dev = dev
	if p := problemsOf(t, dev, b.tb, checkKey); len(p) > 0 {
		t.Fatalf("before anything is broken: %+v", p[0])
	}
	return b
}

func (b *broken) publish(fn func(tx *store.Tx, o *op)) {
	b.t.Helper()
	h := &Handler{dev: b.dev, tables: b.tb, key: hashKeyOf(checkKey), o: Options{Clock: time.Now}}
	h.registerStats()
	o := h.begin(env.New(), nil, nil)
	o.beginTx()
	fn(o.tx, o)
	if _, err := b.dev.Publish(o.tx); err != nil {
		b.t.Fatal(err)
	}
}

// edit changes an inode's record.
func (b *broken) edit(name string, fn func(n *inode)) {
	b.publish(func(_ *store.Tx, o *op) {
		if err := o.get(b.fids[name], &o.child); err != nil {
			b.t.Fatal(err)
		}
		fn(&o.child)
		o.put(&o.child, false)
	})
}

// drop removes an entry and nothing else; counted removes it from its folder's figures too.
func (b *broken) drop(folder fid.FID, name string, counted bool) {
	b.publish(func(_ *store.Tx, o *op) {
		d, _, err := o.find(folder, []byte(name))
		if err != nil {
			b.t.Fatal(err)
		}
		o.deleteEntry(folder, &d)
		if counted {
			if err := o.get(folder, &o.folder); err != nil {
				b.t.Fatal(err)
			}
			nlink := int32(0)
			if uint32(d.kind) == attr.DirentType(attr.TypeDir) {
				nlink = -1
			}
			o.delta(&o.folder, nlink, -1)
		}
	})
}

func (b *broken) key(name string) []byte { return b.fids[name].AppendKey(nil) }

// enter puts an entry, counted, at the place that its name has, or at another.
func (b *broken) enter(folder fid.FID, d dirent, cookie uint64) {
	b.publish(func(_ *store.Tx, o *op) {
		d.cookie = cookie
		if cookie == 0 {
			_, s, _ := o.find(folder, d.name)
			d.cookie = s.cookie
		}
		o.putEntry(folder, &d)
		if o.get(folder, &o.folder) == nil {
			nlink := int32(0)
			if uint32(d.kind) == attr.DirentType(attr.TypeDir) {
				nlink = 1
			}
			o.delta(&o.folder, nlink, 1)
		}
	})
}

func (b *broken) kinds() []string {
	var kinds []string
	for _, p := range problemsOf(b.t, b.dev, b.tb, checkKey) {
		kinds = append(kinds, string(p.Kind))
	}
	slices.Sort(kinds)
	return kinds
}

// mend repairs in rounds, as server/check does.
func (b *broken) mend() {
	b.t.Helper()
	r, err := NewRepairer(b.dev, b.tb, checkKey)
	if err != nil {
		b.t.Fatal(err)
	}
	for range 8 {
		problems := problemsOf(b.t, b.dev, b.tb, checkKey)
		if len(problems) == 0 {
			return
		}
		structural := slices.ContainsFunc(problems, (*Problem).Structural)
		if err := r.Prepare(problems); err != nil {
			b.t.Fatal(err)
		}
		for _, p := range problems {
			if structural && !p.Structural() {
				continue
			}
			if done, err := r.Fix(context.Background(), p); err != nil || done == "" {
				b.t.Fatalf("%s: %q, %v", p.Kind, done, err)
			}
		}
	}
	b.t.Errorf("after repairs: %v", b.kinds())
}

const fileKind, dirKind = attr.TypeFile >> 12, attr.TypeDir >> 12

func TestEveryDamageIsFoundAndMended(t *testing.T) {
	stranger := fid.FID{Seq: fid.SeqFirst, OID: 77777}
	for name, c := range map[string]struct {
		damage func(b *broken)
		kinds  string
	}{
		"an inode's record goes": {func(b *broken) { b.publish(func(tx *store.Tx, _ *op) { tx.Delete(b.tb.Inode, b.key("file")) }) }, "dangling-entry"},
		"a folder's record goes": {func(b *broken) { b.publish(func(tx *store.Tx, _ *op) { tx.Delete(b.tb.Inode, b.key("sub")) }) }, "missing-folder"},
		"a name goes":            {func(b *broken) { b.drop(b.fids["dir"], "file", true) }, "lost-inode"},
		"a name goes uncounted":  {func(b *broken) { b.drop(b.fids["dir"], "file", false) }, "entry-count lost-inode"},
		"a folder's name goes":   {func(b *broken) { b.drop(b.fids["dir"], "sub", true) }, "lost-inode"},
		"one of two names goes":  {func(b *broken) { b.drop(b.fids["dir"], "two-again", true) }, "link-count parent-links"},
		"a link count":           {func(b *broken) { b.edit("file", func(n *inode) { n.Nlink = 7 }) }, "link-count"},
		"a link count of 0":      {func(b *broken) { b.edit("two", func(n *inode) { n.Nlink = 0 }) }, "link-count"},
		"a folder's links":       {func(b *broken) { b.edit("dir", func(n *inode) { n.Nlink = 9 }) }, "link-count"},
		"a folder's count":       {func(b *broken) { b.edit("dir", func(n *inode) { n.entries = 3 }) }, "entry-count"},
		"parent links": {func(b *broken) {
			b.edit("file", func(n *inode) { n.sec[secLinks] = appendLink(nil, parentLink{fid.Root, []byte("no")}) })
		}, "parent-links"},
		"no parent links":             {func(b *broken) { b.edit("sub", func(n *inode) { n.sec[secLinks] = nil }) }, "parent-links"},
		"an entry of nothing":         {func(b *broken) { b.enter(fid.Root, dirent{kind: fileKind, child: stranger, name: []byte("x")}, 0) }, "dangling-entry"},
		"an entry's type":             {func(b *broken) { b.retype("fifo") }, "entry-type"},
		"an entry at a wrong place":   {func(b *broken) { b.misplace("file") }, "entry-place"},
		"a run without a beginning":   {func(b *broken) { b.ordinal("file") }, "entry-place"},
		"a name twice":                {func(b *broken) { b.twice("file") }, "bad-entry link-count parent-links"},
		"an entry that leads to root": {func(b *broken) { b.enter(b.fids["dir"], dirent{kind: dirKind, child: fid.Root, name: []byte("up")}, 0) }, "bad-entry"},
		"a name with a slash": {func(b *broken) {
			b.enter(b.fids["dir"], dirent{kind: fileKind, child: b.fids["two"], name: []byte("a/b")}, 0)
		}, "bad-entry link-count parent-links"},
		"a folder with two names": {func(b *broken) {
			b.enter(fid.Root, dirent{kind: dirKind, child: b.fids["sub"], name: []byte("sub2")}, 0)
		}, "folder-names parent-links"},
		"a circle": {func(b *broken) {
			b.drop(fid.Root, "dir", true)
			b.enter(b.fids["sub"], dirent{kind: dirKind, child: b.fids["dir"], name: []byte("dir")}, 0)
			b.edit("dir", func(n *inode) { n.sec[secLinks] = appendLink(nil, parentLink{b.fids["sub"], []byte("dir")}) })
		}, "folder-circle"},
		"entries of a file": {func(b *broken) {
			b.enter(b.fids["file"], dirent{kind: fileKind, child: b.fids["two"], name: []byte("x")}, 0)
		}, "link-count not-a-folder parent-links"},
		"an orphan record too many":   {func(b *broken) { b.publish(func(_ *store.Tx, o *op) { o.putOrphan(b.fids["file"]) }) }, "orphan-record"},
		"an orphan record of nothing": {func(b *broken) { b.publish(func(_ *store.Tx, o *op) { o.putOrphan(stranger) }) }, "orphan-record"},
		"unlinked without a record": {func(b *broken) {
			b.drop(b.fids["dir"], "file", true)
			b.edit("file", func(n *inode) { n.Nlink, n.sec[secLinks] = 0, nil })
		}, "orphan-record"},
		"a large xattr goes": {func(b *broken) {
			b.publish(func(tx *store.Tx, _ *op) { tx.Delete(b.tb.Xattr, append(b.key("big"), "trusted.x"...)) })
		}, "xattr"},
		"a large xattr of nobody": {func(b *broken) {
			b.publish(func(tx *store.Tx, _ *op) { tx.Put(b.tb.Xattr, append(b.key("file"), "trusted.y"...), []byte("v")) })
		}, "xattr"},
		"an inode's first byte": {func(b *broken) { b.corrupt("file", 0, 0) }, "bad-record"},
		"an inode's sections":   {func(b *broken) { b.corrupt("file", recordFixed, 0xee) }, "bad-record"},
		"a root without record": {func(b *broken) {
			b.publish(func(tx *store.Tx, _ *op) { tx.Delete(b.tb.Inode, fid.Root.AppendKey(nil)) })
		}, "missing-root not-a-folder"},
		"an entry's record": {func(b *broken) {
			b.publish(func(tx *store.Tx, o *op) {
				d, _, _ := o.find(b.fids["dir"], []byte("file"))
				tx.Put(b.tb.Dirent, appendDirentKey(nil, b.fids["dir"], d.cookie), []byte("\x00hort"))
			})
		}, "bad-record lost-inode"},
		"a content stamp": {func(b *broken) {
			b.edit("dir", func(n *inode) { n.content.transno = 1 })
		}, "content-stamp"},
		"the next sequence": {func(b *broken) {
			b.publish(func(tx *store.Tx, o *op) {
				_ = b.dev.Scan(o.e, b.tb.Sequence, nil, nil, func(k, _ []byte) bool { tx.Delete(b.tb.Sequence, bytes.Clone(k)); return true })
			})
		}, "sequence"},
		"use of a sequence": {func(b *broken) {
			b.publish(func(tx *store.Tx, o *op) {
				v := make([]byte, seqAtUse+useMin)
				v[0], v[1] = seqVersion, seqAtUse
				tx.Put(b.tb.Sequence, o.seqKey(b.fids["dir"].Seq), v)
			})
		}, strings.Repeat("sequence ", 7)},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBroken(t)
			c.damage(b)
			if got, want := strings.Join(b.kinds(), " "), strings.TrimSpace(c.kinds); got != want {
				for _, p := range problemsOf(t, b.dev, b.tb, checkKey) {
					t.Logf("%+v", *p)
				}
				t.Fatalf("found %q, want %q", got, want)
			}
			b.mend()
			b.mend() // There is nothing left to do.
		})
	}
}

func (b *broken) retype(name string) {
	b.publish(func(_ *store.Tx, o *op) {
		d, _, err := o.find(b.fids["dir"], []byte(name))
		if err != nil {
			b.t.Fatal(err)
		}
		d.kind = fileKind
		o.putRaw(b.fids["dir"], &d)
	})
}

func (b *broken) move(name string, to func(cookie uint64) uint64, keep bool) {
	b.publish(func(_ *store.Tx, o *op) {
		d, _, err := o.find(b.fids["dir"], []byte(name))
		if err != nil {
			b.t.Fatal(err)
		}
		if !keep {
			o.deleteEntry(b.fids["dir"], &d)
		}
		if keep {
			first := d
			first.run = true
			o.putRaw(b.fids["dir"], &first)
		}
		d.cookie = to(d.cookie)
		o.putRaw(b.fids["dir"], &d)
		if keep {
			if err := o.get(b.fids["dir"], &o.folder); err != nil {
				b.t.Fatal(err)
			}
			o.delta(&o.folder, 0, 1)
		}
	})
}

func (b *broken) misplace(name string) {
	b.move(name, func(c uint64) uint64 { return c ^ 1<<40 }, false)
}
func (b *broken) ordinal(name string) { b.move(name, func(c uint64) uint64 { return c + 3 }, false) }
func (b *broken) twice(name string)   { b.move(name, func(c uint64) uint64 { return c + 1 }, true) }

func (b *broken) corrupt(name string, at int, with byte) {
	b.publish(func(tx *store.Tx, o *op) {
		v, err := b.dev.Get(o.e, b.tb.Inode, b.key(name))
		if err != nil {
			b.t.Fatal(err)
		}
		v = bytes.Clone(v)
		v[at] = with
		tx.Put(b.tb.Inode, b.key(name), v)
	})
}

// TestRecordsOfALaterVersionStay: a checker that is too old changes nothing that it does not know.
func TestRecordsOfALaterVersionStay(t *testing.T) {
	b := newBroken(t)
	b.corrupt("file", 0, recordVersion+1)
	problems := problemsOf(t, b.dev, b.tb, checkKey)
	r, err := NewRepairer(b.dev, b.tb, checkKey)
	if err != nil || len(problems) != 1 || r.Prepare(problems) != nil {
		t.Fatal(err, problems)
	}
	if _, err := r.Fix(context.Background(), problems[0]); !errors.Is(err, ErrNotRepaired) {
		t.Errorf("a record of version 2: %v", err)
	}
	if got := b.kinds(); len(got) != 1 {
		t.Errorf("after it: %v", got)
	}
}

// FuzzCheck: whatever stands in the tables, the checker ends and a repair leaves something that it can check.
func FuzzCheck(f *testing.F) {
	f.Add(byte(0), fid.Root.AppendKey(nil), []byte{1})
	f.Add(byte(1), appendDirentKey(nil, fid.Root, 1<<20), bytes.Repeat([]byte{1}, 40))
	f.Add(byte(4), binary.BigEndian.AppendUint64(nil, 7), bytes.Repeat([]byte{1}, 300))
	f.Fuzz(func(t *testing.T, table byte, key, value []byte) {
		if len(key) == 0 || len(key) > 1000 {
			return
		}
		dev, err := memdev.Open(memdev.NewDisk(), memdev.Options{Specs: testSpecs(), CommitInterval: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		tx := dev.Begin(env.New())
		tx.Put(store.Table(2+table%5), key, value)
		if _, err := dev.Publish(tx); err != nil {
			t.Fatal(err)
		}
		r, err := NewRepairer(dev, TablesAt(2), checkKey)
		if err != nil {
			t.Fatal(err)
		}
		for range 6 {
			problems, err := NewChecker(CheckOptions{Records: target.DeviceRecords{KV: dev}, Tables: TablesAt(2), Key: checkKey}).Check(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Prepare(problems); err != nil {
				t.Fatal(err)
			}
			for _, p := range problems {
				if _, err := r.Fix(context.Background(), p); err != nil && !errors.Is(err, ErrNotRepaired) {
					t.Fatal(fmt.Errorf("%+v: %w", *p, err))
				}
			}
		}
	})
}
