package mdt

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/store"
)

// countingDevice counts the steps of what is published, by table and kind.
type countingDevice struct {
	store.Device
	mu    sync.Mutex
	steps map[string]int
}

func (d *countingDevice) Publish(tx *store.Tx) (store.Transno, error) {
	specs := testSpecs()
	kinds := map[store.Kind]string{store.Put: "put", store.Delete: "delete", store.Delta: "delta"}
	d.mu.Lock()
	for _, s := range tx.Steps {
		d.steps[specs[s.Table].Name+" "+kinds[s.Kind]]++
	}
	d.mu.Unlock()
	return d.Device.Publish(tx)
}

func (d *countingDevice) take() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []string
	for _, k := range slices.Sorted(maps.Keys(d.steps)) {
		out = append(out, fmt.Sprintf("%s %d", k, d.steps[k]))
	}
	clear(d.steps)
	return strings.Join(out, ", ")
}

// TestPutsOfACreate: a create with everything that it can set is one inode put, one dirent put and the folder's delta
// (LU-13239). Reply slots, last used ids and the use of the sequence merge per txg and are listed apart.
func TestPutsOfACreate(t *testing.T) {
	var d *countingDevice
	c := newCluster(t, func(c *cluster) {
		c.wrap = func(dev store.Device) store.Device {
			d = &countingDevice{Device: dev, steps: map[string]int{}}
			return d
		}
	})
	cl := c.client()
	p := cl.must(fid.Root, "p", dir|0o2775)
	if _, err := cl.xattr(wire.OpSetxattr, root, p, attr.XattrACLDefault, testACLs()[1], 0); err != nil {
		t.Fatal(err)
	}
	striped := layout.Plain(2, 1<<20)
	template := striped.Append(nil)
	if err := cl.do(wire.OpSetLayout, &wirepb.LayoutRequest{Caller: root.pb(), Seq: uint64(p.Seq), Oid: p.OID, Layout: template}, nil); err != nil {
		t.Fatal(err)
	}
	cl.must(p, "first", reg|0o644)
	w := who{uid: 1000, gid: 1000, umask: 0o022, project: 77}
	if _, err := cl.setattr(root, p, attr.ValidUID|attr.ValidProjID|attr.ValidFlags, &wirepb.Attr{Uid: 1000, Project: 77, Flags: uint32(attr.FlagProjInh)}, 0); err != nil {
		t.Fatal(err)
	}
	d.take()
	for _, k := range []struct {
		name string
		mode uint32
		more func(*wirepb.CreateRequest)
		want string
	}{
		{"file", reg | 0o666, withOpen(oRdwr), "dirent put 1, inode delta 1, inode put 1, ost_last_used delta 2, reply_slots put 1, sequence delta 1"},
		{"node", reg | 0o666, func(m *wirepb.CreateRequest) { m.Layout = template }, "dirent put 1, inode delta 1, inode put 1, ost_last_used delta 2, reply_slots put 1, sequence delta 1"},
		{"folder", dir | 0o777, func(m *wirepb.CreateRequest) { m.Layout = template }, "dirent put 1, inode delta 1, inode put 1, reply_slots put 1, sequence delta 1"},
		{"link", slnk | 0o777, withLink("target"), "dirent put 1, inode delta 1, inode put 1, reply_slots put 1, sequence delta 1"},
		{"fifo", attr.TypeFifo | 0o666, func(*wirepb.CreateRequest) {}, "dirent put 1, inode delta 1, inode put 1, reply_slots put 1, sequence delta 1"},
	} {
		r, err := cl.make(w, p, k.name, k.mode, k.more)
		if err != nil {
			t.Fatalf("%s: %v", k.name, err)
		}
		if got := d.take(); got != k.want {
			t.Errorf("%s: %s, want %s", k.name, got, k.want)
		}
		if r.Attr.Project != 77 || r.Attr.Uid != 1000 || k.name != "link" && !r.Attr.HasAcl {
			t.Errorf("%s: %v", k.name, r.Attr)
		}
	}
}

// TestPutsOfOpenForWrite: only the first open for write puts anything, and a file made open is one already.
func TestPutsOfOpenForWrite(t *testing.T) {
	var d *countingDevice
	c := newCluster(t, func(c *cluster) {
		c.wrap = func(dev store.Device) store.Device {
			d = &countingDevice{Device: dev, steps: map[string]int{}}
			return d
		}
	})
	cl := c.client()
	f := cl.must(fid.Root, "f", reg|0o644)
	d.take()
	for i, want := range []string{"inode put 1, reply_slots put 1", "", ""} {
		if _, err := cl.open(root, f, oWronly); err != nil {
			t.Fatal(err)
		}
		if got := d.take(); got != want {
			t.Errorf("open %d: %q, want %q", i, got, want)
		}
	}
}
