package osc

import (
	"testing"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/lockcache"
)

// TestSizeOfALockThatAWriteCrosses: a write goes past the locks and is answered before the lock that was asked for meanwhile is here.
// The lock's value block may be from before the write, so that a smaller size in it is not believed, and neither is the write's
// end: somebody may have cut it off before the lock was granted.
func TestSizeOfALockThatAWriteCrosses(t *testing.T) {
	const end = 8700
	for _, c := range []struct {
		what   string
		change func(o *Object)
		lvb    uint64
		known  bool
		size   uint64
	}{
		{"nothing", func(*Object) {}, 0, true, 0},
		{"a write inside", func(o *Object) { o.osc.covers.doubt(o.id, end) }, end, true, end},
		{"a write behind the end", func(o *Object) { o.osc.covers.doubt(o.id, end) }, 0, false, 0},
		{"an answer behind the end", func(o *Object) { o.osc.covers.wrote(&write{obj: o, end: end}, 0) }, 100, false, 0},
		{"an answer under a lock", func(o *Object) { o.osc.covers.wrote(&write{obj: o, end: end, lock: 1}, 0) }, 100, false, 0},
	} {
		o := &Object{osc: new(OSC), id: fid.ObjectID{ID: 3}}
		v := o.newCover()
		c.change(o)
		g := lockcache.Grant{Handle: 1, HasLVB: true, LVB: ldlm.LVB{Size: c.lvb}}
		o.osc.granted(v, &g)
		p := Pin{v: v, extent: whole}
		if size, _, known := p.Size(); known != c.known || known && size != c.size {
			t.Errorf("%s, value block %d: size %d, known %v; want %d, %v", c.what, c.lvb, size, known, c.size, c.known)
		}
		if c.known {
			continue
		}
		missed := v.missed.Load()
		v.asked(&Glimpse{Size: end}, end, missed)
		if size, _, known := p.Size(); !known || size != end {
			t.Errorf("%s: size %d, known %v after the OST was asked, want %d", c.what, size, known, end)
		}
		v.asked(&Glimpse{Size: 0}, 0, missed-1)
		if size, _, known := p.Size(); known {
			t.Errorf("%s: size %d is believed though a write came between", c.what, size)
		}
	}
}

// TestWriteWithoutALockIsNotBelieved: its answer may be heard of after a lock was granted for which another client's cut was waited.
func TestWriteWithoutALockIsNotBelieved(t *testing.T) {
	o := &Object{osc: new(OSC), id: fid.ObjectID{ID: 3}}
	v := o.newCover()
	o.osc.granted(v, &lockcache.Grant{Handle: 1, HasLVB: true, LVB: ldlm.LVB{Size: 100}})
	p := Pin{v: v, extent: whole}
	o.osc.covers.doubt(o.id, 100)
	if size, exact, known := p.Size(); size != 100 || !exact || !known {
		t.Errorf("size %d, exact %v, known %v after a write inside", size, exact, known)
	}
	o.osc.covers.doubt(o.id, 101)
	if size, _, known := p.Size(); known {
		t.Errorf("size %d is believed", size)
	}
	p.Wrote(200) // under the lock: that does not make known what is behind it
	if size, _, known := p.Size(); known {
		t.Errorf("size %d is believed after a write under the lock", size)
	}
}

// TestCoversOfRefusedLocksGo: only locks that are here stay among the covers.
func TestCoversOfRefusedLocksGo(t *testing.T) {
	o := &Object{osc: new(OSC), id: fid.ObjectID{ID: 3}}
	for _, g := range []lockcache.Grant{{}, {Handle: 1, Matched: true}} {
		o.osc.granted(o.newCover(), &g)
	}
	v := o.newCover()
	o.osc.granted(v, &lockcache.Grant{Handle: 1})
	o.osc.covers.ensure(v)
	if o.osc.covers.of[o.id] != v || v.next != nil {
		t.Error("not exactly the granted lock's cover is there")
	}
	o.osc.covers.remove(v)
	if len(o.osc.covers.of) != 0 {
		t.Error("a cover is left")
	}
}
