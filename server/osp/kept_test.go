package osp_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/server/osp"
	"github.com/strakefs/strake/store/memdev"
)

// ids are the ids of the objects that an OST has.
func (c *cluster) ids(i int) []uint64 {
	c.t.Helper()
	var ids []uint64
	err := c.osts[i].device.Objects().Walk(0, func(o fid.ObjectID) bool { ids = append(ids, o.ID); return true })
	if err != nil {
		c.t.Fatal(err)
	}
	slices.Sort(ids)
	return ids
}

// files makes n files of one object each and returns the ids of those on OST 0.
func (c *cluster) files(n int) []uint64 {
	c.t.Helper()
	var ids []uint64
	for range n {
		l := c.create(layout.Plain(1, layout.StripeSizeDefault))
		if st := l.Components[0].Stripes[0]; st.OST == 0 {
			ids = append(ids, st.Object.ID)
		}
	}
	c.commit()
	return ids
}

// restoreMDT starts the MDT with an empty device, as one restored from a backup that was made before everything.
func (c *cluster) restoreMDT() {
	c.t.Helper()
	c.stopMDT()
	c.blankDisk()
	c.startMDT()
}

// blankDisk gives the MDT a device that says nothing but that it was restored.
func (c *cluster) blankDisk() {
	c.t.Helper()
	c.disk = memdev.NewDisk()
	d, err := memdev.Open(c.disk, memdev.Options{Specs: osp.Specs(), CommitInterval: -1})
	if err != nil {
		c.t.Fatal(err)
	}
	tx := d.Begin(env.New())
	osp.MarkRestored(tx, osp.TablesAt(0), time.Unix(1700000000, 0))
	if _, err := d.Publish(tx); err != nil {
		c.t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) settled() error {
	for {
		r, on := c.set.Restored()
		if !on || r.Err != nil || !r.Settling {
			return r.Err
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx10(c.t).Done():
			return fmt.Errorf("it does not settle: %+v", r)
		}
	}
}

// TestRestoredKeepsOrphans: an MDT restored from an older backup destroys nothing that was made since, over restarts, gives
// no object twice, and destroys exactly that when it is told to.
func TestRestoredKeepsOrphans(t *testing.T) {
	c := newCluster(t, 1, osp.Options{})
	lost := c.files(20)
	had := c.ids(0)
	c.restoreMDT()
	for _, id := range had {
		if !slices.Contains(c.ids(0), id) {
			t.Fatalf("object %d is gone", id)
		}
	}
	r, on := c.set.Restored()
	if !on || len(r.Kept) != 1 || r.Kept[0].First > lost[0] || r.Kept[0].Last < had[len(had)-1] || r.Made.Unix() != 1700000000 || len(r.Unseen) > 0 {
		t.Fatalf("%+v %v", r, on)
	}
	used := c.files(5)
	// Again, with nothing told: what was kept is, and what was used since.
	c.stopMDT()
	c.startMDT()
	used = append(used, c.files(5)...)
	for _, id := range used {
		if id <= had[len(had)-1] {
			t.Errorf("object %d is given again", id)
		}
	}
	for _, id := range had {
		if !slices.Contains(c.ids(0), id) {
			t.Fatalf("object %d is gone", id)
		}
	}
	// An OST that is away keeps its objects, and the mode.
	if err := c.set.Settle(true); err != nil {
		t.Fatal(err)
	}
	if err := c.settled(); err != nil {
		t.Fatal(err)
	}
	now := c.ids(0)
	for _, id := range had {
		if slices.Contains(now, id) {
			t.Errorf("object %d is still there", id)
		}
	}
	for _, id := range used {
		if !slices.Contains(now, id) {
			t.Errorf("object %d is used and gone", id)
		}
	}
	if _, on := c.set.Restored(); on {
		t.Error("the mode goes on")
	}
	if err := c.set.Settle(true); err == nil {
		t.Error("it was settled twice")
	}
	// And it stays over.
	c.stopMDT()
	c.startMDT()
	if _, on := c.set.Restored(); on {
		t.Error("the mode is back")
	}
}

// TestRestoredMayKeepForGood: told to keep, the mode ends and the objects stay, over a restart.
func TestRestoredMayKeepForGood(t *testing.T) {
	c := newCluster(t, 1, osp.Options{})
	c.files(3)
	had := c.ids(0)
	c.restoreMDT()
	c.files(1)
	if err := c.set.Settle(false); err != nil {
		t.Fatal(err)
	}
	if err := c.settled(); err != nil {
		t.Fatal(err)
	}
	c.stopMDT()
	c.startMDT()
	for _, id := range had {
		if !slices.Contains(c.ids(0), id) {
			t.Fatalf("object %d is gone", id)
		}
	}
}

// TestRestoredWaitsForEveryOST: with an OST that was not seen since the restore nothing is settled.
func TestRestoredWaitsForEveryOST(t *testing.T) {
	c := newCluster(t, 2, osp.Options{})
	c.files(20)
	had := c.ids(1)
	c.stopMDT()
	c.stopOST(1)
	c.blankDisk()
	c.openMDT()
	for _, destroy := range []bool{true, false} {
		if err := c.set.Settle(destroy); err == nil {
			t.Error("it is settled without OST0001")
		}
	}
	c.startOST(1)
	if err := c.set.Ready(ctx10(t)); err != nil {
		t.Fatal(err)
	}
	for _, id := range had {
		if !slices.Contains(c.ids(1), id) {
			t.Fatalf("object %d is gone", id)
		}
	}
	if err := c.set.Settle(true); err != nil {
		t.Fatal(err)
	}
	if err := c.settled(); err != nil {
		t.Fatal(err)
	}
}
