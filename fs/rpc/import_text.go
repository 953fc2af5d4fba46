package rpc

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/strakefs/strake/fs/stats"
)

// historyMax is how many states an import remembers.
const historyMax = 16

// history is the last states of an import and when they began.
type history struct {
	list [historyMax]struct {
		at    time.Time
		state State
	}
	n int
}

func (h *history) add(at time.Time, s State) {
	e := &h.list[h.n%historyMax]
	e.at, e.state = at, s
	h.n++
}

// register enters the import's texts and parameters below path.
func (i *Import) register(r *stats.Registry, path string) {
	r.Text(path+".state", "State of the import and its last states with the time, in seconds since 1970.", i.stateText)
	r.Text(path+".import", "The import: target, state, connection, requests, as YAML.", i.text)
	r.Text(path+".timeouts", "Slowest answers of the target in seconds: now, ever, and in the parts of the time remembered.", i.timeoutsText)
	seconds := func(name, help string, v interface {
		Load() int64
		Store(int64)
	}, most int64) {
		r.Param(path+"."+name, help, func() string { return strconv.FormatInt(v.Load()/int64(time.Second), 10) }, func(text string) error {
			n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
			if err != nil || n < 1 || n > most {
				return fmt.Errorf("rpc: %s is a number of seconds from 1 to %d, not %q", name, most, text)
			}
			v.Store(n * int64(time.Second))
			return nil
		})
	}
	seconds("at_min", "Seconds that a target may be silent at least while it owes an answer.", &i.times.min, 600)
	seconds("at_max", "Seconds that a target may be silent at most while it owes an answer.", &i.times.max, 600)
	seconds("at_history", "Seconds for which slow answers are remembered.", &i.times.history, 86400)
	if i.kept == nil {
		return
	}
	r.Param(path+".max_replay_mb", "Memory of requests that are answered and not yet on the target's disk, in MiB: at the half a commit is asked for.",
		func() string { return strconv.FormatInt(i.kept.max.Load()>>20, 10) }, func(text string) error {
			n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
			if err != nil || n < 1 || n > 4096 {
				return fmt.Errorf("rpc: max_replay_mb is a number from 1 to 4096, not %q", text)
			}
			i.kept.setMax(n << 20)
			return nil
		})
	r.Func(path+".replay_requests", "Requests that are answered and not yet on the target's disk.", func() int64 {
		n, _, _ := i.kept.held()
		return int64(n)
	})
	r.Func(path+".replay_bytes", "Memory of those requests in bytes.", func() int64 {
		_, n, _ := i.kept.held()
		return n
	})
}

// stateText has the form of Lustre's file of that name.
func (i *Import) stateText() string {
	i.mu.Lock()
	state, h := i.state, i.history
	i.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "current_state: %s\nstate_history:", state)
	for k := max(0, h.n-historyMax); k < h.n; k++ {
		e := &h.list[k%historyMax]
		fmt.Fprintf(&b, "\n - [ %d, %s ]", e.at.Unix(), e.state)
	}
	return b.String()
}

// text tells of the import in the form of Lustre's file of that name: what it has and this import does not know is left out.
func (i *Import) text() string {
	i.mu.Lock()
	state, addresses, why := i.state, strings.Join(i.addresses, ", "), i.lastErr
	attempts, address := i.attempts, i.address
	i.mu.Unlock()
	var generation uint64
	ls := i.full.Load()
	if ls != nil {
		generation, why = ls.generation, nil
	}
	reads, mods := i.InFlight()
	now := time.Now()
	var b strings.Builder
	fmt.Fprintf(&b, "import:\n    target: %s\n    state: %s\n    import_flags: [ %s ]\n", i.o.Target, state, i.flags())
	fmt.Fprintf(&b, "    connection:\n       failover_nids: [ %s ]\n       current_connection: %q\n       connection_attempts: %d\n", addresses, address, attempts)
	fmt.Fprintf(&b, "       generation: %d\n       instance: %#x\n       reconnects: %d\n       evictions: %d\n",
		generation, i.instance.Load(), i.stats.reconnects.Load(), i.evictions.Load())
	if at := i.LastHeard(); !at.IsZero() {
		fmt.Fprintf(&b, "       last_heard_msec: %d\n", now.Sub(at).Milliseconds())
	}
	if why != nil {
		fmt.Fprintf(&b, "       last_error: %q\n", why)
	}
	fmt.Fprintf(&b, "    rpcs:\n       inflight: %d\n       max_rpcs_in_flight: %d\n       max_mod_rpcs_in_flight: %d\n       resends: %d\n       timeouts: %d\n",
		i.stats.inFlight.Load(), reads, mods, i.stats.resends.Load(), i.stats.timeouts.Load())
	if n := i.service.count.Load(); n > 0 {
		fmt.Fprintf(&b, "       avg_waittime: %d usec\n", i.service.sum.Load()/n/int64(time.Microsecond))
	}
	h := time.Duration(i.times.history.Load())
	fmt.Fprintf(&b, "    service_estimates:\n       services: %d sec\n       network: %d sec\n",
		ceilSeconds(i.service.figures(now, h).worst), ceilSeconds(i.network.figures(now, h).worst))
	fmt.Fprintf(&b, "    transactions:\n       last_replay: %d\n       peer_committed: %d\n       last_checked: %d", i.replayed.Load(), i.committed.Load(), i.newest())
	return b.String()
}

// flags are what import_flags lists.
func (i *Import) flags() string {
	flags := []string{"pingable"}
	if i.o.replays() {
		flags = append([]string{"replayable"}, flags...)
	}
	return strings.Join(flags, ", ")
}

// newest is the newest transno that is kept for replay, or was committed.
func (i *Import) newest() uint64 {
	n := i.committed.Load()
	if i.kept != nil {
		_, _, newest := i.kept.held()
		n = max(n, uint64(newest))
	}
	return n
}

func ceilSeconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// agoText prints how long ago something was, as Lustre does.
func agoText(d time.Duration) string {
	s := int64(max(d, 0) / time.Second)
	return fmt.Sprintf("%dd%dh%dm%ds ago", s/86400, s/3600%24, s/60%60, s%60)
}

// timeoutsText has the form of Lustre's file of that name.
func (i *Import) timeoutsText() string {
	now, h := time.Now(), time.Duration(i.times.history.Load())
	var b strings.Builder
	last := max(i.service.last.Load(), i.network.last.Load())
	if last == 0 {
		b.WriteString("last reply : none")
	} else {
		at := time.Unix(0, last)
		fmt.Fprintf(&b, "last reply : %d, %s", at.Unix(), agoText(now.Sub(at)))
	}
	for _, row := range []struct {
		name string
		a    *answers
	}{{"network", &i.network}, {"service", &i.service}} {
		f := row.a.figures(now, h)
		fmt.Fprintf(&b, "\n%-10s : cur %3d  worst %3d", row.name, ceilSeconds(f.worst), ceilSeconds(f.ever))
		if !f.everAt.IsZero() {
			fmt.Fprintf(&b, " (at %d, %s)", f.everAt.Unix(), agoText(now.Sub(f.everAt)))
		}
		for _, d := range f.bins {
			fmt.Fprintf(&b, " %3d", ceilSeconds(d))
		}
	}
	fmt.Fprintf(&b, "\nsilence    : cur %3d  from %d to %d", ceilSeconds(i.silence(now)), i.times.min.Load()/int64(time.Second), i.times.max.Load()/int64(time.Second))
	return b.String()
}
