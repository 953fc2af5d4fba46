package client

import (
	"testing"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/mdc"
)

// believer is a client of which only the node cache works.
func believer() *Client {
	c := &Client{}
	c.nodes.init()
	return c
}

// lookedUp is the answer to a lookup: f, under a new lock with all bits.
func lookedUp(f fid.FID) *mdc.Entry {
	return &mdc.Entry{Attr: attr.Attr{FID: f}, Lock: ldlm.Handle(f.OID), Bits: wanted}
}

// believes reports whether e is answered from the cache with f.
func (c *Client) believes(e name, f fid.FID) bool {
	n := c.nodes.byName(e.parent, e.name)
	if n == nil || n.fid != f {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.valid&ldlm.Lookup != 0 && n.leadsLocked(e)
}

var (
	folder = fid.FID{Seq: 7, OID: 1}
	one    = fid.FID{Seq: 7, OID: 2}
	two    = fid.FID{Seq: 7, OID: 3}
	here   = name{folder.Ino(), "here"}
	there  = name{folder.Ino(), "there"}
)

// TestALookupBesideAnOwnChangeIsNotBelieved: whatever order the answers to a lookup and to this client's own change of that name
// come in, the cache does not lead to what was removed.
func TestALookupBesideAnOwnChangeIsNotBelieved(t *testing.T) {
	for _, known := range []bool{false, true} {
		for _, late := range []bool{false, true} {
			c := believer()
			if known {
				c.keep(&asked{at: c.changes.now()}, lookedUp(one), false, here)
				if !c.believes(here, one) {
					t.Fatal("a lookup that nothing disturbs is not believed")
				}
			}
			k := asked{at: c.changes.now()} // the lookup is sent
			c.nodes.hide(here)              // the change is sent
			if !late {
				c.keep(&k, lookedUp(one), false, here)
			}
			pk := c.entering(folder)
			c.entered(&pk, folder, &attr.Attr{FID: folder}, 1)
			c.nodes.removed(here)
			if late {
				c.keep(&k, lookedUp(one), false, here)
			}
			if c.believes(here, one) {
				t.Errorf("known %v, lookup late %v: the entry that was removed is believed", known, late)
			}
		}
	}
}

// TestARenameMovesOnlyWhatTheServerMoved: another client may have exchanged the names before the server came to a rename.
func TestARenameMovesOnlyWhatTheServerMoved(t *testing.T) {
	rename := func(c *Client, moved fid.FID, meanwhile func()) {
		h := c.nodes.hide(here)
		meanwhile()
		pk := c.entering(folder)
		c.entered(&pk, folder, &attr.Attr{FID: folder}, 1)
		c.nodes.removed(here)
		c.nodes.removed(there)
		c.nodes.moved(h, moved, there)
	}
	tests := []struct {
		name      string
		moved     fid.FID
		meanwhile func(c *Client)
		want      bool
	}{
		{"alone", one, func(*Client) {}, true},
		{"another inode was moved", two, func(*Client) {}, false},
		{"the lock went and came back", one, func(c *Client) {
			c.revoke(c.nodes.find(one.Ino()), wanted, true)
			c.keep(&asked{at: c.changes.now()}, lookedUp(one), false, name{folder.Ino(), "elsewhere"})
		}, false},
	}
	for _, tt := range tests {
		c := believer()
		c.keep(&asked{at: c.changes.now()}, lookedUp(one), false, here)
		rename(c, tt.moved, func() { tt.meanwhile(c) })
		if got := c.believes(there, one); got != tt.want {
			t.Errorf("%s: the new name leads to the inode: %v, want %v", tt.name, got, tt.want)
		}
		if c.believes(here, one) {
			t.Errorf("%s: the old name is believed", tt.name)
		}
	}
}
