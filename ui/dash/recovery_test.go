package dash_test

import (
	"encoding/json"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/ui/dash"
)

// recoveryAnswer is what a reader of /api/v1/recovery relies on.
type recoveryAnswer struct {
	Health struct {
		Tone, Title string
		Findings    []struct{ Tone, Subject, Title, Remedy string }
	}
	Targets []struct {
		Name, Kind, Status string
		Clients            struct {
			Known, Connected, Completed, Evicted int
			Missing                              []string
		}
		QueuedRequests   int      `json:"queued_requests"`
		ReplayedRequests int      `json:"replayed_requests"`
		TimeRemainingSec *float64 `json:"time_remaining_sec"`
		DurationSec      *float64 `json:"duration_sec"`
		LastTransno      string   `json:"last_transno"`
		LastCommitted    string   `json:"last_committed"`
		Uncommitted      uint64
		Restored         string
		COS              *struct {
			Mode          int64
			ForcedCommits int64    `json:"forced_commits"`
			WaitedSec     float64  `json:"waited_sec"`
			ForcedPerSec  *float64 `json:"forced_per_sec"`
		}
	}
	Imports []struct {
		Name, Target, State, Address, Error string
		Active                              bool
		Since                               int64
		Reconnects                          int64
	}
}

func readRecovery(t *testing.T, base string) recoveryAnswer {
	t.Helper()
	var a recoveryAnswer
	resp, body := get(t, request(t, "GET", base+"/api/v1/recovery"))
	if err := json.Unmarshal([]byte(body), &a); err != nil || resp.StatusCode != 200 {
		t.Fatalf("%d %v: %s", resp.StatusCode, err, body)
	}
	return a
}

func TestNoRecovery(t *testing.T) {
	_, base := startServer(t, dash.Options{})
	_, body := get(t, request(t, "GET", base+"/api/v1/recovery"))
	if !strings.Contains(body, `"targets":[],"imports":[]`) || !strings.Contains(body, "no target and no connection") {
		t.Error(body)
	}
}

// A recovery is told with its clients, queue, time and transnos; what is missing, away, switched off, or restored is a finding with a
// remedy; commit on share has a rate.
func TestRecovery(t *testing.T) {
	r := stats.NewRegistry()
	began := time.Now()
	var restored atomic.Value
	restored.Store("")
	var mode atomic.Value
	mode.Store("1")
	r.Param("mdt.strake-MDT0000.commit_on_sharing", "", func() string { return mode.Load().(string) }, nil)
	commits := r.Counter("mdt.strake-MDT0000.async_commit_count", "Commits.")
	commits.Add(10)
	r.Counter("mdt.strake-MDT0000.sync_count", "Waits.").Add(12)
	r.Histogram("mdt.strake-MDT0000.commit_on_sharing_wait", "Time.").Observe(1500 * time.Millisecond)
	r.Text("mdt.strake-MDT0000.restored", "", func() string { return restored.Load().(string) })
	for name, text := range map[string]string{
		"osp.strake-OST0001-osc-MDT0000": "import:\n    target: strake-OST0001\n    state: DISCONN\n    connection:\n       failover_nids: [ 10.0.0.2:9880 ]\n       last_error: \"dial: refused\\x1b[2J\"",
		"osc.strake-OST0000-osc":         "import:\n    target: strake-OST0000\n    state: FULL\n    connection:\n       current_connection: \"10.0.0.1:9880\"",
	} {
		r.Text(name+".import", "", func() string { return text })
	}
	r.Text("osp.strake-OST0001-osc-MDT0000.state", "", func() string {
		return "current_state: DISCONN\nstate_history:\n - [ 1000, FULL ]\n - [ 2000, DISCONN ]"
	})
	r.Counter("osp.strake-OST0001-osc-MDT0000.reconnects", "Times.").Add(3)
	active := "1"
	r.Param("osc.strake-OST0000-osc.active", "", func() string { return active }, nil)
	missing := []string{"node-b:/mnt (10.0.0.9:1)", "a\x1b"}
	_, base := startServer(t, dash.Options{Registry: r, Recovery: func() []dash.RecoveryTarget {
		return []dash.RecoveryTarget{
			{Name: "strake-MDT0000", Kind: "MDT", Status: "RECOVERING", Started: began, Left: 12 * time.Second, Known: 3, Connected: 1, Completed: 1,
				Missing: missing, Queued: 7, Replayed: 40, Refused: 1, LastTransno: 3<<44 + 50, LastCommitted: 2<<44 + 900},
			{Name: "strake-OST0000", Kind: "OST", Status: "COMPLETE", Started: began.Add(-time.Minute), Ended: began.Add(-50 * time.Second), Known: 2,
				Connected: 2, Completed: 2, Evicted: 1, LastTransno: 100, LastCommitted: 90},
		}
	}})
	a := readRecovery(t, base)
	if len(a.Targets) != 2 || len(a.Imports) != 2 {
		t.Fatalf("%+v", a)
	}
	m, o := a.Targets[0], a.Targets[1]
	if m.Name != "strake-MDT0000" || m.Status != "RECOVERING" || m.Clients.Known != 3 || m.Clients.Connected != 1 || m.QueuedRequests != 7 ||
		m.ReplayedRequests != 40 || m.TimeRemainingSec == nil || *m.TimeRemainingSec != 12 || m.LastTransno != "52776558133298" || m.Uncommitted != 50 {
		t.Errorf("%+v", m)
	}
	if len(m.Clients.Missing) != 2 || m.Clients.Missing[0] != `"a\x1b"` || m.Clients.Missing[1] != missing[0] {
		t.Error(m.Clients.Missing)
	}
	if m.COS == nil || m.COS.Mode != 1 || m.COS.ForcedCommits != 10 || m.COS.WaitedSec != 1.5 || m.COS.ForcedPerSec != nil {
		t.Errorf("%+v", m.COS)
	}
	if o.COS != nil || o.TimeRemainingSec != nil || o.DurationSec == nil || *o.DurationSec != 10 || o.Uncommitted != 10 {
		t.Errorf("%+v", o)
	}
	if i := a.Imports[0]; i.Name != "osp.strake-OST0001-osc-MDT0000" || i.Target != "strake-OST0001" || i.State != "DISCONN" || i.Since != 2000_000 ||
		i.Address != "10.0.0.2:9880" || i.Error != `"dial: refused\x1b[2J"` || i.Reconnects != 3 || !i.Active {
		t.Errorf("%+v", i)
	}
	if i := a.Imports[1]; i.State != "FULL" || i.Since < began.UnixMilli() || i.Address != "10.0.0.1:9880" {
		t.Errorf("%+v", i)
	}
	if a.Health.Tone != "warn" || a.Health.Title != "strake-MDT0000 takes its clients back: 1 of 3 are here, 1 are done." {
		t.Errorf("%+v", a.Health)
	}
	said := func(a recoveryAnswer) string {
		var b strings.Builder
		for _, f := range a.Health.Findings {
			b.WriteString(f.Subject + " " + f.Title + " | " + f.Remedy + "\n")
		}
		return b.String()
	}
	for _, want := range []string{
		"strake-MDT0000 waits for 2 clients: ", "lctl abort_recovery strake-MDT0000", "strake-MDT0000 refused to replay 1 request",
		"strake-OST0000 evicted 1 client that was not back in time", "strake-OST0001 cannot be reached from here",
	} {
		if !strings.Contains(said(a), want) {
			t.Errorf("no %q in\n%s", want, said(a))
		}
	}
	// What changes.
	restored.Store("state: waiting")
	active = "0"
	commits.Add(20)
	deadline := time.Now().Add(10 * time.Second)
	for a = readRecovery(t, base); a.Targets[0].COS.ForcedPerSec == nil; a = readRecovery(t, base) {
		if time.Now().After(deadline) {
			t.Fatal("no rate")
		}
		<-time.After(20 * time.Millisecond)
	}
	if v := *a.Targets[0].COS.ForcedPerSec; v <= 0 || v > 30 {
		t.Error(v)
	}
	for _, want := range []string{"was restored from a backup", "lctl restored strake-MDT0000", "strake-OST0000 is deactivated here and fails its requests at once | When it is to be used again: lctl activate strake-OST0000-osc"} {
		if !strings.Contains(said(a), want) {
			t.Errorf("no %q in\n%s", want, said(a))
		}
	}
	if a.Imports[1].Active {
		t.Error("it is active")
	}
}
