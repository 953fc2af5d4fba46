package dash_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/ui/dash"
)

// locksAnswer is what a reader of /api/v1/locks relies on.
type locksAnswer struct {
	Health struct {
		Tone, Title string
		Findings    []struct{ Tone, Subject, Title, Remedy string }
	}
	Namespaces []struct {
		Namespace, Side  string
		LockCount        int64              `json:"lock_count"`
		LockWaitingCount int64              `json:"lock_waiting_count"`
		ResourceCount    int64              `json:"resource_count"`
		LockTimeouts     int64              `json:"lock_timeouts"`
		ContendedLocks   int64              `json:"contended_locks"`
		PerSec           map[string]float64 `json:"per_sec"`
	}
	Resources []struct {
		Namespace, Resource, Type, FID, Object string
		Stripe                                 *int
		Name, Contended                        bool
		Paths                                  []string
		Granted, Waiting, Converting           int
		Holders, Waiters                       []struct {
			Client, Mode, Bits, Extent string
			CalledBack                 bool `json:"called_back"`
		}
	}
}

func readLocks(t *testing.T, base string) locksAnswer {
	t.Helper()
	var a locksAnswer
	resp, body := get(t, request(t, "GET", base+"/api/v1/locks"))
	if err := json.Unmarshal([]byte(body), &a); err != nil || resp.StatusCode != 200 {
		t.Fatalf("%d %v: %s", resp.StatusCode, err, body)
	}
	return a
}

// A process without locks and tables says so, with empty lists.
func TestNoLocksNoTables(t *testing.T) {
	_, base := startServer(t, dash.Options{})
	for _, tt := range []struct{ path, lists, title string }{
		{"/api/v1/locks", `"namespaces":[],"resources":[]`, "This process has no locks"},
		{"/api/v1/hashtables", `"tables":[]`, "no hash table"},
	} {
		resp, body := get(t, request(t, "GET", base+tt.path))
		if resp.StatusCode != 200 || !strings.Contains(body, tt.lists) || !strings.Contains(body, tt.title) {
			t.Errorf("%s: %d %s", tt.path, resp.StatusCode, body)
		}
	}
	if resp, _ := get(t, request(t, "GET", base+"/api/v1/events?about=everything")); resp.StatusCode != 400 {
		t.Errorf("an unknown topic: %d", resp.StatusCode)
	}
}

// lockWorld is a real namespace with a holder and a waiter.
type lockWorld struct {
	ns     *ldlm.Namespace
	file   fid.FID
	object ldlm.ResID
	holder ldlm.Handle
}

func newLockWorld(r *stats.Registry) *lockWorld {
	w := &lockWorld{ns: ldlm.New(ldlm.Config{Shards: 2}), file: fid.FID{Seq: 0x200000401, OID: 5}, object: ldlm.ObjectRes(fid.ObjectID{ID: 7})}
	w.ns.Register(r, "mdt-strake-MDT0000")
	return w
}

// fight has client 1 hold a lock that client 2 waits for.
func (w *lockWorld) fight() {
	var fx ldlm.Effects
	w.holder = w.ns.Enqueue(0, &ldlm.Request{Res: ldlm.InodeRes(w.file), Mode: ldlm.PR, Client: 1, Bits: ldlm.Lookup | ldlm.Update}, &fx).Handle
	w.ns.Enqueue(0, &ldlm.Request{Res: ldlm.InodeRes(w.file), Mode: ldlm.EX, Client: 2, Bits: ldlm.Update}, &fx)
}

func (w *lockWorld) resources(limit int) []dash.LockResource {
	var all []dash.LockResource
	for _, in := range w.ns.MostContended(0, limit) {
		r := dash.LockResource{Namespace: "mdt-strake-MDT0000", Resource: in.Res.String(), Type: "ibits", FID: in.Res.FID(), Stripe: -1,
			Granted: in.Granted, Waiting: in.Waiting, Conflicts: in.Conflicts, Contended: in.Contended}
		for _, l := range in.Holders {
			r.Holders = append(r.Holders, dash.LockParty{Client: "<script>alert(1)</script>\x1b", Mode: l.Desc.Mode.String(),
				Bits: l.Desc.Bits.String(), CalledBack: l.Blocked})
		}
		for _, l := range in.Waiters {
			r.Waiters = append(r.Waiters, dash.LockParty{Client: "c2", Mode: l.Desc.Mode.String(), Bits: l.Desc.Bits.String()})
		}
		all = append(all, r)
	}
	return all
}

// What a namespace does is seen under lctl's names; what several want is listed with holder, waiter and path.
func TestLocks(t *testing.T) {
	r := stats.NewRegistry()
	w := newLockWorld(r)
	asked := atomic.Int64{}
	_, base := startServer(t, dash.Options{Registry: r, Interval: 20 * time.Millisecond, Locks: w.resources,
		Paths: func(_ context.Context, f fid.FID) ([]string, error) {
			asked.Add(1)
			if f != w.file {
				return nil, errors.New("no such file")
			}
			return []string{"dir/a\u202eb"}, nil
		}})
	a := readLocks(t, base)
	if len(a.Namespaces) != 1 || a.Namespaces[0].Side != "server" || a.Health.Title != "No request waits for a lock." {
		t.Fatalf("before: %+v", a)
	}
	w.fight()
	for deadline := time.Now().Add(10 * time.Second); ; {
		a = readLocks(t, base)
		if len(a.Resources) == 1 && len(a.Resources[0].Paths) == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no path in 10 s: %+v", a)
		}
	}
	ns, res := a.Namespaces[0], a.Resources[0]
	if ns.Namespace != "mdt-strake-MDT0000" || ns.LockCount != 2 || ns.LockWaitingCount != 1 || ns.ResourceCount != 1 || ns.ContendedLocks != 16 {
		t.Errorf("%+v", ns)
	}
	if res.FID != "[0x200000401:0x5:0x0]" || res.Granted != 1 || res.Waiting != 1 || len(res.Holders) != 1 || len(res.Waiters) != 1 {
		t.Fatalf("%+v", res)
	}
	if h := res.Holders[0]; h.Mode != "PR" || h.Bits != "LOOKUP|UPDATE" || !h.CalledBack || h.Client != `"<script>alert(1)</script>\x1b"` {
		t.Errorf("holder %+v", h)
	}
	if res.Waiters[0].Mode != "EX" || res.Waiters[0].CalledBack {
		t.Errorf("waiter %+v", res.Waiters[0])
	}
	if want := `"/dir/a\u202eb"`; res.Paths[0] != want {
		t.Errorf("path %s, want %s", res.Paths[0], want)
	}
	if a.Health.Tone != "busy" || !strings.HasPrefix(a.Health.Title, "1 request waits for a lock: ") {
		t.Errorf("%+v", a.Health)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the path was searched %d times", n)
	}
}

// A page that asks for a topic hears of it with every tick; one that does not, does not.
func TestTopics(t *testing.T) {
	r := stats.NewRegistry()
	newLockWorld(r).fight()
	_, base := startServer(t, dash.Options{Registry: r, Interval: 20 * time.Millisecond})
	for about, want := range map[string][]string{"": nil, "locks": {"locks"}, "hashtables": {"hashtables"}} {
		t.Run("about "+about, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, "GET", base+"/api/v1/events?about="+about, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			ticks := 0
			lines := bufio.NewScanner(resp.Body)
			lines.Buffer(nil, 1<<20)
			for ticks < 3 && lines.Scan() {
				data, ok := strings.CutPrefix(lines.Text(), "data: {\"")
				if !ok || strings.HasPrefix(data, "keys") {
					continue
				}
				ticks++
				var fields map[string]json.RawMessage
				if err := json.Unmarshal([]byte("{\""+data), &fields); err != nil {
					t.Fatal(err)
				}
				var got []string
				for _, topic := range []string{"hashtables", "locks"} {
					if fields[topic] != nil {
						got = append(got, topic)
					}
				}
				if !slices.Equal(got, want) {
					t.Fatalf("tick %d has %q, want %q", ticks, got, want)
				}
			}
			if ticks < 3 {
				t.Fatalf("%d ticks: %v", ticks, lines.Err())
			}
		})
	}
}

// A server that evicted a client is said so for a while, with a remedy; rates are what the counters grew by.
func TestEvictionAndRates(t *testing.T) {
	r := stats.NewRegistry()
	w := newLockWorld(r)
	var evictions atomic.Int64
	r.Func("ldlm.namespaces.mdt-strake-MDT0000.evictions", "Evictions.", evictions.Load)
	_, base := startServer(t, dash.Options{Registry: r, Interval: 20 * time.Millisecond})
	until(t, func() bool {
		return readLocks(t, base).Namespaces[0].PerSec["granted"] == 0 && readLocks(t, base).Namespaces[0].PerSec != nil
	})
	evictions.Add(1)
	var fx ldlm.Effects
	until(t, func() bool {
		w.ns.Enqueue(0, &ldlm.Request{Res: w.object, Mode: ldlm.PR, Client: 1, Extent: extent.Extent{End: 10}}, &fx)
		fx.Reset()
		a := readLocks(t, base)
		return a.Namespaces[0].PerSec["granted"] > 0 && a.Health.Tone == "warn" && len(a.Health.Findings) == 1 &&
			strings.Contains(a.Health.Findings[0].Title, "evicted a client") && a.Health.Findings[0].Remedy != ""
	})
}

func until(t *testing.T, check func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !check(); {
		if time.Now().After(deadline) {
			t.Fatal("not seen in 10 s")
		}
	}
}

// Tables come with lctl's names, without what was not measured, and with a word when one is in bad shape.
func TestHashTables(t *testing.T) {
	r := stats.NewRegistry()
	_, base := startServer(t, dash.Options{Registry: r})
	r.Table("llite.strake-0.inodes", "Inodes.", func(s *stats.TableStats) {
		s.Buckets, s.Entries, s.Longest, s.Bytes, s.LimitBytes, s.Rule = 16, 4, 20, 1000, 2000, "1/40 of memory"
		s.Hits, s.Misses, s.Evictions = 10, 0, 3
		s.Chains = [stats.ChainClasses]int64{15, 0, 0, 0, 0, 1}
	})
	r.Table("mdt.strake-MDT0000.exports", "Exports.", func(s *stats.TableStats) { s.Entries = 2 })
	var a struct {
		Health struct {
			Tone     string
			Findings []struct{ Subject string }
		}
		Tables []map[string]any
	}
	_, body := get(t, request(t, "GET", base+"/api/v1/hashtables"))
	if err := json.Unmarshal([]byte(body), &a); err != nil {
		t.Fatal(err)
	}
	if len(a.Tables) != 2 || a.Health.Tone != "warn" || len(a.Health.Findings) != 1 || a.Health.Findings[0].Subject != "llite.strake-0.inodes" {
		t.Fatal(body)
	}
	inodes, exports := a.Tables[0], a.Tables[1]
	for name, want := range map[string]any{"table": "llite.strake-0.inodes", "cur": 16.0, "count": 4.0, "theta": 0.25, "maxdep": 20.0,
		"cache_hit": 10.0, "cache_miss": 0.0, "lru_purged": 3.0, "bytes": 1000.0, "limit_bytes": 2000.0, "rule": "1/40 of memory"} {
		if inodes[name] != want {
			t.Errorf("%s is %v, want %v", name, inodes[name], want)
		}
	}
	if len(exports) != 5 || exports["count"] != 2.0 { // table, name, help, tone, count
		t.Errorf("exports: %v", exports)
	}
}
