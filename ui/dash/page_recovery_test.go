package dash_test

import (
	"fmt"
	"time"

	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/ui/dash"
)

// recoveryWindow is how long the page's targets wait for their clients.
const recoveryWindow = 4 * time.Minute

// registerRecovery enters the connections and the commits on share of the page's process.
func (w *world) registerRecovery() {
	r := w.registry
	for _, c := range []struct{ device, target, state, more string }{
		{"osp.strake-OST0000-osc-MDT0000", "strake-OST0000", "FULL", ""},
		{"osp.strake-OST0001-osc-MDT0000", "strake-OST0001", "DISCONN", "\n       last_error: \"dial tcp 127.0.0.1:9880: " + hostile + "\""},
		{"mgc.MGS", "MGS", "FULL", ""},
	} {
		r.Text(c.device+".import", "The import.", func() string {
			return fmt.Sprintf("import:\n    target: %s\n    state: %s\n    connection:\n       failover_nids: [ 127.0.0.1:9880 ]%s", c.target, c.state, c.more)
		})
		at := w.began.Add(-time.Hour).Unix()
		r.Text(c.device+".state", "The state.", func() string {
			return fmt.Sprintf("current_state: %s\nstate_history:\n - [ %d, %s ]", c.state, at, c.state)
		})
		r.Counter(c.device+".reconnects", "Times that the connection was made anew.").Add(2)
	}
	r.Param("mdt.strake-MDT0000.commit_on_sharing", "Commit on share.", func() string { return "1" }, nil)
	r.Counter("mdt.strake-MDT0000.sync_count", "Waits.").Add(3)
	r.Histogram("mdt.strake-MDT0000.commit_on_sharing_wait", "Time of waits.").Observe(time.Second)
	r.Func("mdt.strake-MDT0000.async_commit_count", "Commits forced.", func() int64 { return int64(time.Since(w.began) / (100 * time.Millisecond)) },
		stats.Metric("strake_mdt_async_commit_count"))
}

// recovery is a target that waits for a client of a hostile name, and two that are in service.
func (w *world) recovery() []dash.RecoveryTarget {
	passed := time.Since(w.began)
	n := uint64(passed / time.Millisecond)
	return []dash.RecoveryTarget{
		{Name: "strake-MDT0000", Kind: "MDT", Status: "RECOVERING", Started: w.began, Left: recoveryWindow - passed, Known: 8, Connected: 7, Replaying: 2,
			Locking: 1, Completed: 4, Missing: []string{hostile}, Queued: 312, Held: 4, Replayed: int(n), Locks: 77, LastTransno: 5<<44 + n + 1500, LastCommitted: 5<<44 + n},
		{Name: "strake-OST0000", Kind: "OST", Status: "COMPLETE", Started: w.began.Add(-time.Hour), Ended: w.began.Add(-time.Hour + 2300*time.Millisecond),
			Known: 8, Connected: 8, Completed: 8, Replayed: 1204, LastTransno: 9<<44 + 881_203, LastCommitted: 9<<44 + 881_203},
		{Name: "strake-OST0001", Kind: "OST", Status: "INACTIVE", LastTransno: 2<<44 + 17, LastCommitted: 2<<44 + 17},
	}
}
