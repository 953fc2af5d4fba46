package target

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
)

// Recovery is a target's replay window as it is now.
type Recovery struct {
	// Status is INACTIVE, WAITING_FOR_CLIENTS, RECOVERING or COMPLETE, as Lustre has it.
	Status string
	// Started and Ended are zero where that has not been.
	Started, Ended time.Time
	// Left is the time until those who keep others waiting are evicted, as far as that is known now.
	Left time.Duration
	// Clients is how many an earlier start had left; Connected have connected since, Replaying have not ended the replay of requests,
	// Locking hand back opens and locks, Completed have ended both, Evicted came too late.
	Clients, Connected, Replaying, Locking, Completed, Evicted int
	// Replayed and Refused are requests, Locks are locks handed back, Queued is replays that wait, Held other requests.
	Replayed, Refused, Locks, Queued, Held int
	// Last is the last transno that was replayed, at first the replay point; Next is the lowest one queued, 0 without.
	Last, Next wire.Transno
	// Versions says that a client was missing, so that what depends on its changes is refused by its versions.
	Versions bool
	// Missing are the clients that are waited for and have no connection.
	Missing []string
}

// Recovering reports whether the replay window is open.
func (t *Target) Recovering() bool { return t.recovery.open.Load() }

// Recovery tells how far the target's replay window is.
func (t *Target) Recovery() Recovery {
	r := &t.recovery
	r.mu.Lock()
	defer r.mu.Unlock()
	s := Recovery{
		Status: "COMPLETE", Clients: r.w.total, Completed: r.w.count(stageDone), Evicted: r.evicted,
		Replayed: r.ran, Refused: r.refused.count, Locks: r.locks, Held: len(r.held), Last: r.w.last, Versions: r.missed,
	}
	if r.w.total == 0 {
		s.Status = "INACTIVE"
		return s
	}
	s.Started, s.Ended = r.started, r.ended
	if !r.ended.IsZero() {
		s.Connected, s.Completed = r.completed, r.completed
		return s
	}
	s.Queued, s.Next = r.w.queued()
	for x, m := range r.w.members {
		if x.Connected() {
			s.Connected++
		} else {
			s.Missing = append(s.Missing, x.Peer)
		}
		switch m.at {
		case stageReplay:
			s.Replaying++
		case stageLocks:
			s.Locking++
		}
	}
	s.Status, s.Left = "RECOVERING", max(time.Until(r.w.deadline), 0)
	if s.Connected == 0 {
		s.Status = "WAITING_FOR_CLIENTS"
	}
	return s
}

// text is the window under Lustre's names.
func (r *recovery) text() string {
	s := r.t.Recovery()
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "\n%s: "+format, append([]any{name}, args...)...)
	}
	b.WriteString("status: " + s.Status)
	if s.Status == "INACTIVE" {
		return b.String()
	}
	line("recovery_start", "%d", s.Started.Unix())
	if s.Ended.IsZero() {
		line("time_remaining", "%d", int(s.Left.Seconds()))
	} else {
		line("recovery_duration", "%d", int(s.Ended.Sub(s.Started).Seconds()))
	}
	line("connected_clients", "%d/%d", s.Connected, s.Clients)
	line("req_replay_clients", "%d", s.Replaying)
	line("lock_replay_clients", "%d", s.Locking)
	line("completed_clients", "%d/%d", s.Completed, s.Clients)
	line("evicted_clients", "%d", s.Evicted)
	line("replayed_requests", "%d", s.Replayed)
	line("refused_requests", "%d", s.Refused)
	line("replayed_locks", "%d", s.Locks)
	line("queued_requests", "%d", s.Queued)
	line("held_requests", "%d", s.Held)
	line("next_transno", "%d", s.Next)
	line("last_transno", "%d", s.Last)
	line("VBR", "%s", enabled(s.Versions))
	line("IR", "%s", enabled(r.t.o.Noticed != nil && r.t.o.Noticed()))
	return b.String()
}

func enabled(on bool) string {
	if on {
		return "ENABLED"
	}
	return "DISABLED"
}

// register enters the window's parameters and state, and the verbs, under Lustre's names.
func (r *recovery) register(o *Options, base string) {
	o.Stats.Param(base+".evict_client", "Write a client's uuid, or its address as nid:<address>, to end its export.",
		func() string { return "" }, func(text string) error { return r.t.EvictNamed(strings.TrimSpace(text)) })
	if o.ReplayWindow <= 0 {
		return
	}
	limit := func(name, help string, of func(*window) *time.Duration) {
		o.Stats.Param(base+"."+name, help,
			func() string {
				r.mu.Lock()
				defer r.mu.Unlock()
				return strconv.FormatInt(int64(*of(&r.w)/time.Second), 10)
			},
			func(text string) error {
				n, err := strconv.Atoi(strings.TrimSpace(text))
				if err != nil || n < 1 || n > 3600 {
					return fmt.Errorf("target: %s is a number of seconds from 1 to 3600, not %q", name, text)
				}
				r.mu.Lock()
				*of(&r.w) = time.Duration(n) * time.Second
				r.w.hard = max(r.w.hard, r.w.soft)
				if name == "recovery_time_hard" {
					r.w.soft = min(r.w.soft, time.Duration(n)*time.Second)
					r.w.hard = time.Duration(n) * time.Second
				}
				r.w.deadline = r.w.begun.Add(r.w.soft)
				r.mu.Unlock()
				r.poke()
				return nil
			})
	}
	limit("recovery_time_soft", "Seconds that a target waits after a restart for clients that make no progress, 1 to 3600.",
		func(w *window) *time.Duration { return &w.soft })
	limit("recovery_time_hard", "Seconds that a stage of recovery lasts at most while nothing is replayed, 1 to 3600.",
		func(w *window) *time.Duration { return &w.hard })
	o.Stats.Param(base+".abort_recovery", "Write 1 to wait no longer for clients that are not back: they are evicted, and recovery goes on without them.",
		func() string { return "" }, func(text string) error {
			if strings.TrimSpace(text) != "1" {
				return fmt.Errorf("target: abort_recovery takes 1, not %q", text)
			}
			r.t.AbortRecovery()
			return nil
		})
	o.Stats.Text(base+".recovery_status", "Where the target is in its recovery after a restart.", r.text)
}

// AbortRecovery evicts the clients that are not back, now and when they lose their connection, and lets the others finish. It does
// not wait. Without a window it does nothing.
func (t *Target) AbortRecovery() {
	r := &t.recovery
	r.mu.Lock()
	r.aborted = true
	r.mu.Unlock()
	r.poke()
}

// EvictNamed ends the exports of the clients with a uuid (32 hexadecimal digits), or at an address (nid:<host>, with or without
// its port or a network's name behind @). It waits for what runs of them. Errors: kind NotExist when there is none.
func (t *Target) EvictNamed(name string) error {
	name = strings.TrimPrefix(name, "uuid:")
	address, byAddress := strings.CutPrefix(name, "nid:")
	address, _, _ = strings.Cut(address, "@")
	uuid := strings.ToLower(strings.ReplaceAll(name, "-", ""))
	found := 0
	for _, x := range t.Exports() {
		if x.Kind != rpc.KindClient {
			continue
		}
		if byAddress && x.at(address) || !byAddress && fmt.Sprintf("%x", x.UUID) == uuid {
			t.Evict(x, "evicted by the administrator")
			found++
		}
	}
	if found == 0 {
		return status.Errorf(status.NotExist, "%s has no client %q", t.o.Name, name)
	}
	return nil
}

// at reports whether the client's words name an address as a host, or as a host with its port.
func (x *Export) at(address string) bool {
	if address == "" {
		return false
	}
	for _, w := range strings.FieldsFunc(x.Peer, func(r rune) bool { return strings.ContainsRune(" ,()", r) }) {
		host := w
		if i := strings.LastIndexByte(w, ':'); i > 0 && !strings.HasSuffix(w, "]") {
			host = w[:i]
		}
		if w == address || host == address || strings.Trim(host, "[]") == address {
			return true
		}
	}
	return false
}
