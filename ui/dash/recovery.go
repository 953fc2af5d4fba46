package dash

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/strakefs/strake/fs/stats"
)

// RecoveryTarget is where a target of this process is in getting its clients back after a restart.
type RecoveryTarget struct {
	// Name is the target's, Kind "MDT" or "OST".
	Name, Kind string
	// Status is INACTIVE (no client was left by an earlier start), WAITING_FOR_CLIENTS, RECOVERING or COMPLETE.
	Status string
	// Started and Ended are zero where that has not been; Left is the time until clients that keep others waiting are evicted.
	Started, Ended time.Time
	Left           time.Duration
	// Known is how many clients there were; Replaying of them have not replayed all requests, Locking hand back opens and locks, Completed
	// are done, Evicted came too late.
	Known, Connected, Replaying, Locking, Completed, Evicted int
	// Missing names those that are waited for and have no connection.
	Missing []string
	// Queued are replays that wait for earlier ones, Held other requests that wait for the end; Replayed, Refused and Locks are done.
	Queued, Held, Replayed, Refused, Locks int
	// LastTransno is the newest transaction, LastCommitted the newest one on disk.
	LastTransno, LastCommitted uint64
	// Versions says that changes which depend on a missing client's are refused.
	Versions bool
}

// recoveryView is the JSON of /api/v1/recovery.
type recoveryView struct {
	AtMs    int64                `json:"atMs"`
	Health  health               `json:"health"`
	Targets []recoveryTargetView `json:"targets"`
	Imports []importView         `json:"imports"`
}

type recoveryTargetView struct {
	Name    string          `json:"name"`
	Kind    string          `json:"kind"`
	Status  string          `json:"status"`
	Tone    string          `json:"tone"`
	Clients recoveryClients `json:"clients"`

	QueuedRequests   int `json:"queued_requests"`
	HeldRequests     int `json:"held_requests"`
	ReplayedRequests int `json:"replayed_requests"`
	RefusedRequests  int `json:"refused_requests"`
	ReplayedLocks    int `json:"replayed_locks"`

	TimeRemainingSec *float64 `json:"time_remaining_sec,omitempty"` // while it recovers
	DurationSec      *float64 `json:"duration_sec,omitempty"`       // until now while it recovers
	EndedMs          *int64   `json:"ended_ms,omitempty"`

	// Transnos are text: they are above what a JavaScript number holds.
	LastTransno   string `json:"last_transno"`
	LastCommitted string `json:"last_committed"`
	Uncommitted   uint64 `json:"uncommitted"`
	VBR           bool   `json:"vbr"`
	// Restored is what is kept since the target was restored from a backup, as lctl restored prints it.
	Restored string   `json:"restored,omitempty"`
	COS      *cosView `json:"cos,omitempty"` // of an MDT
}

type recoveryClients struct {
	Known     int      `json:"known"`
	Connected int      `json:"connected"`
	Replaying int      `json:"replaying"`
	Locking   int      `json:"locking"`
	Completed int      `json:"completed"`
	Evicted   int      `json:"evicted"`
	Missing   []string `json:"missing"`
}

// cosView is commit on share.
type cosView struct {
	Mode          int64    `json:"mode"`
	ForcedCommits int64    `json:"forced_commits"`
	Waits         int64    `json:"waits"`
	WaitedSec     float64  `json:"waited_sec"`
	ForcedPerSec  *float64 `json:"forced_per_sec,omitempty"`
}

// importView is one connection of this process to a target.
type importView struct {
	Name       string `json:"name"`
	Target     string `json:"target"`
	State      string `json:"state"`
	Tone       string `json:"tone"`
	Active     bool   `json:"active"`
	SinceMs    int64  `json:"since"`
	Address    string `json:"address,omitempty"`
	Error      string `json:"error,omitempty"`
	Reconnects int64  `json:"reconnects"`
	Evictions  int64  `json:"evictions"`
	InFlight   int64  `json:"rpcs_in_flight"`
	Replay     *int64 `json:"replay_requests,omitempty"` // answered, and kept until they are on the target's disk
}

// recoveries makes the view and remembers what it needs from one time to the next.
type recoveries struct {
	ask func() []RecoveryTarget // nil: there is none

	mu      sync.Mutex
	entered map[string]entered // import -> its state, and when it was first seen in it; guarded by mu
	forced  map[string]forced  // target -> commits forced; guarded by mu
}

type entered struct {
	state string
	at    time.Time
}

type forced struct {
	n      int64
	at     time.Time
	perSec *float64
}

// rateAfter is the time over which a rate is measured at least.
const rateAfter = 900 * time.Millisecond

func newRecoveries(ask func() []RecoveryTarget) *recoveries {
	return &recoveries{ask: ask, entered: map[string]entered{}, forced: map[string]forced{}}
}

func (v *recoveries) view(r *stats.Registry, now time.Time) recoveryView {
	out := recoveryView{AtMs: now.UnixMilli(), Targets: []recoveryTargetView{}}
	if v.ask != nil {
		for _, t := range v.ask() {
			out.Targets = append(out.Targets, v.target(r, &t, now))
		}
	}
	out.Imports = v.imports(r, now)
	out.Health = judgeRecovery(&out, now)
	return out
}

func (v *recoveries) target(r *stats.Registry, t *RecoveryTarget, now time.Time) recoveryTargetView {
	w := recoveryTargetView{
		Name: t.Name, Kind: t.Kind, Status: t.Status, Tone: toneOK, VBR: t.Versions,
		Clients: recoveryClients{Known: t.Known, Connected: t.Connected, Replaying: t.Replaying, Locking: t.Locking,
			Completed: t.Completed, Evicted: t.Evicted, Missing: []string{}},
		QueuedRequests: t.Queued, HeldRequests: t.Held, ReplayedRequests: t.Replayed, RefusedRequests: t.Refused, ReplayedLocks: t.Locks,
		LastTransno: strconv.FormatUint(t.LastTransno, 10), LastCommitted: strconv.FormatUint(t.LastCommitted, 10),
	}
	for _, name := range t.Missing {
		w.Clients.Missing = append(w.Clients.Missing, printable(name))
	}
	slices.Sort(w.Clients.Missing)
	// Of two starts the difference says nothing: nothing of this one is committed then.
	if start := t.LastTransno >> startShift; start == t.LastCommitted>>startShift {
		w.Uncommitted = t.LastTransno - min(t.LastCommitted, t.LastTransno)
	} else if t.LastTransno > t.LastCommitted {
		w.Uncommitted = t.LastTransno & (1<<startShift - 1)
	}
	if !t.Started.IsZero() {
		end := now
		if !t.Ended.IsZero() {
			end = t.Ended
			ms := t.Ended.UnixMilli()
			w.EndedMs = &ms
		} else {
			left := max(t.Left, 0).Seconds()
			w.TimeRemainingSec, w.Tone = &left, toneBusy
		}
		took := max(end.Sub(t.Started), 0).Seconds()
		w.DurationSec = &took
	}
	if t.Kind == "MDT" {
		w.COS = v.cos(r, t.Name, now)
		w.Restored = textAt(r, "mdt."+stats.Element(t.Name)+".restored")
	}
	return w
}

// startShift is where in a transno the start count stands: 20 bits above a counter of 44.
const startShift = 44

// cos reads commit on share, nil for a target that does not do it.
func (v *recoveries) cos(r *stats.Registry, name string, now time.Time) *cosView {
	base := "mdt." + stats.Element(name) + "."
	mode, err := strconv.ParseInt(textAt(r, base+"commit_on_sharing"), 10, 64)
	if err != nil {
		return nil
	}
	c := &cosView{Mode: mode}
	_ = r.Walk(base+"{async_commit_count,sync_count,commit_on_sharing_wait}", func(e stats.Entry) error {
		n, _ := e.Value()
		switch {
		case strings.HasSuffix(e.Path, ".async_commit_count"):
			c.ForcedCommits = n
		case strings.HasSuffix(e.Path, ".sync_count"):
			c.Waits = n
		default:
			if h, ok := e.Histogram(); ok {
				c.WaitedSec = float64(h.SumNs) / 1e9
			}
		}
		return nil
	})
	v.mu.Lock()
	defer v.mu.Unlock()
	f, known := v.forced[name]
	switch passed := now.Sub(f.at); {
	case !known:
		f = forced{n: c.ForcedCommits, at: now}
	case passed >= rateAfter:
		rate := float64(max(c.ForcedCommits-f.n, 0)) / passed.Seconds()
		f = forced{n: c.ForcedCommits, at: now, perSec: &rate}
	}
	v.forced[name] = f
	c.ForcedPerSec = f.perSec
	return c
}

// textAt is the text of one parameter, empty when there is none.
func textAt(r *stats.Registry, path string) (text string) {
	_ = r.Walk(path, func(e stats.Entry) error {
		text = e.Text()
		return nil
	})
	return text
}

// imports reads the connections of this process, those of servers first.
func (v *recoveries) imports(r *stats.Registry, now time.Time) []importView {
	all := []importView{}
	_ = r.Walk("*.*.import", func(e stats.Entry) error {
		parts := strings.Split(e.Path, ".")
		all = append(all, v.imported(r, parts[0]+"."+parts[1], e.Text(), now))
		return nil
	})
	slices.SortStableFunc(all, func(a, b importView) int {
		return cmp.Or(cmp.Compare(rankOf(a.Name), rankOf(b.Name)), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// rankOf orders connections: an MDT's to its OSTs, a client's, everybody's to the MGS.
func rankOf(name string) int {
	return slices.Index([]string{"osp", "mdc", "osc", "mgc"}, name[:max(strings.IndexByte(name, '.'), 0)])
}

func (v *recoveries) imported(r *stats.Registry, base, text string, now time.Time) importView {
	i := importView{Name: base, Active: true, State: lineOf(text, "state"), Target: lineOf(text, "target"),
		Address: cmp.Or(lineOf(text, "current_connection"), lineOf(text, "failover_nids")), Error: printable(lineOf(text, "last_error"))}
	since := int64(0)
	_ = r.Walk(base+".{active,state,reconnects,evictions,rpcs_in_flight,replay_requests}", func(e stats.Entry) error {
		n, _ := e.Value()
		switch e.Path[len(base)+1:] {
		case "active":
			i.Active = e.Text() != "0"
		case "state":
			since = lastSince(e.Text())
		case "reconnects":
			i.Reconnects = n
		case "evictions":
			i.Evictions = n
		case "rpcs_in_flight":
			i.InFlight = n
		case "replay_requests":
			i.Replay = &n
		}
		return nil
	})
	v.mu.Lock()
	seen := v.entered[base]
	if seen.state != i.State {
		seen = entered{i.State, now}
		v.entered[base] = seen
	}
	v.mu.Unlock()
	if i.SinceMs = seen.at.UnixMilli(); since > 0 {
		i.SinceMs = since * 1000
	}
	switch {
	case !i.Active:
		i.Tone = toneIdle
	case i.State == stateFull:
		i.Tone, i.Error = toneOK, ""
	case i.State == "DISCONN" || i.State == "EVICTED":
		i.Tone = toneWarn
	default:
		i.Tone = toneBusy
	}
	return i
}

// stateFull is the state in which requests flow.
const stateFull = "FULL"

// lineOf is the value of a "key: value" line.
func lineOf(text, key string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), key+":"); ok {
			value = strings.TrimSpace(value)
			if s, err := strconv.Unquote(value); err == nil {
				return s
			}
			return strings.Trim(value, "[] ")
		}
	}
	return ""
}

// lastSince is the time of the newest line of a state history, "- [ seconds, STATE ]"; 0 without one.
func lastSince(text string) (sec int64) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "- [ "); ok {
			at, _, _ := strings.Cut(rest, ",")
			if n, err := strconv.ParseInt(at, 10, 64); err == nil {
				sec = n
			}
		}
	}
	return sec
}
