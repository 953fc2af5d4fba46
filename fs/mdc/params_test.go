package mdc_test

import (
	"testing"

	"github.com/strakefs/strake/fs/mdc"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
)

func TestInFlightParameters(t *testing.T) {
	c, _ := newMDC(t, 0, func(*rpc.Call) error { return nil })
	reg := stats.NewRegistry()
	second := mdc.New(mdc.Options{Import: c.Import(), Stats: reg, StatsPrefix: "mdc.fs-MDT0000-mdc."})
	defer second.Close(t.Context())
	get := func(name string) (e stats.Entry) {
		t.Helper()
		if err := reg.Walk("mdc.fs-MDT0000-mdc."+name, func(x stats.Entry) error { e = x; return nil }); err != nil || e.Path == "" {
			t.Fatalf("%s: %v", name, err)
		}
		return e
	}
	reads, mods := get("max_rpcs_in_flight"), get("max_mod_rpcs_in_flight")
	if err := reads.Set("5"); err != nil {
		t.Error(err)
	}
	if err := mods.Set(" 3\n"); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"0", "17", "-1", "many", ""} {
		if reads.Set(bad) == nil {
			t.Errorf("%q was taken", bad)
		}
	}
	if reads.Text() != "5" || mods.Text() != "3" {
		t.Errorf("%s and %s", reads.Text(), mods.Text())
	}
	if r, m := c.Import().InFlight(); r != 5 || m != 3 {
		t.Errorf("the import allows %d and %d", r, m)
	}
}
