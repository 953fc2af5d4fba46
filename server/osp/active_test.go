package osp_test

import (
	"testing"

	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/server/osp"
)

// TestSwitchedOff: an OST that an administrator has switched off gets no new files, not even over a new configuration that
// has it active; switched on again it does.
func TestSwitchedOff(t *testing.T) {
	c := newCluster(t, 2, osp.Options{})
	set := func(value string) error {
		t.Helper()
		nodes, err := c.o.Stats.List("osp.strake-OST0001-osc-MDT0000.active", false)
		if err != nil || len(nodes) != 1 {
			t.Fatal(nodes, err)
		}
		return nodes[0].Set(value)
	}
	used := func() (n int) {
		t.Helper()
		for range 10 {
			if l := c.create(layout.Plain(1, layout.StripeSizeDefault)); l.Components[0].Stripes[0].OST == 1 {
				n++
			}
		}
		return n
	}
	eventually(t, "use of OST0001", func() bool { return used() > 0 }) // once its free space is known
	if err := set("0"); err != nil {
		t.Fatal(err)
	}
	if err := c.set.SetOST(1, []string{"oss1"}, true); err != nil {
		t.Fatal(err)
	}
	if n := used(); n != 0 {
		t.Errorf("OST0001 is used %d times", n)
	}
	if s := c.set.OSTs()[1].State(); s != "deactivated" {
		t.Error(s)
	}
	if err := set("on"); status.Of(err) != status.Invalid {
		t.Error(err)
	}
	if err := set("1"); err != nil {
		t.Fatal(err)
	}
	if err := c.set.Ready(ctx10(t)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "use of OST0001 again", func() bool { return used() > 0 })
}
