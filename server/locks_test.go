package server_test

import (
	"context"
	"testing"

	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/config"
)

// TestLockParameters: the targets of a process have a namespace each under one timeout, which clients are told.
func TestLockParameters(t *testing.T) {
	reg := stats.NewRegistry()
	o := options(config.Config{HostMGS: true, Targets: targets(t.TempDir(), config.MDT, config.OST)})
	o.Stats = reg
	n, stop := start(t, o)
	defer stop()
	view(t, n, 2)
	set := false
	if err := reg.Walk("ldlm.lock_timeout", func(e stats.Entry) error { set = true; return e.Set("7") }); err != nil || !set {
		t.Fatalf("ldlm.lock_timeout: found %v, %v", set, err)
	}
	for path, want := range map[string]int{
		"ldlm.namespaces.*.lock_count": 2, "ldlm.lock_bytes": 1, "ldlm.lock_limit_mb": 1, "ldlm.lock_reclaim_threshold_mb": 1,
		"obdfilter.*.recovery_time_hard": 1, "obdfilter.*.recovery_status": 1,
	} {
		found := 0
		if err := reg.Walk(path, func(stats.Entry) error { found++; return nil }); err != nil || found != want {
			t.Errorf("%s: %d entries, want %d: %v", path, found, want, err)
		}
	}
	for _, target := range []string{"MDT0000", "OST0000"} {
		var told wirepb.ConnectReply
		i, err := rpc.NewImport(rpc.ImportOptions{
			Transport: n.Network(), Addresses: n.MGSAddresses(), FSName: o.Config.FSName, Target: o.Config.FSName + "-" + target,
			UUID: [16]byte{1}, Peer: "test", Kind: rpc.KindClient, OnConnect: func(r *wirepb.ConnectReply) {
				told.LockTimeoutMsec, told.EvictAfterMsec, told.Recovering = r.LockTimeoutMsec, r.EvictAfterMsec, r.Recovering
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := i.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		if told.LockTimeoutMsec != 7000 || told.EvictAfterMsec != 60000 || told.Recovering {
			t.Errorf("%s tells %v", target, &told)
		}
		if err := i.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}
}
