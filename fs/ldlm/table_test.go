package ldlm_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/stats"
)

// fillTable makes n resources with a lock each and returns the handles.
func fillTable(ns *ldlm.Namespace, n int) []ldlm.Handle {
	var fx ldlm.Effects
	all := make([]ldlm.Handle, n)
	for i := range all {
		all[i] = ns.Enqueue(0, &ldlm.Request{Res: ldlm.InodeRes(fid.FromIno(uint64(i + 2))), Mode: ldlm.PR, Client: 1,
			Bits: ldlm.Lookup}, &fx).Handle
	}
	return all
}

// TestTableGrows holds the rule: theta between 0.3 and 0.75 whatever the number of locks, chains short, every figure
// consistent with the others.
func TestTableGrows(t *testing.T) {
	ns := ldlm.New(ldlm.Config{Shards: 4, Seed: 5})
	var fx ldlm.Effects
	handles := fillTable(ns, 20000)
	check := func(entries int) ldlm.TableStats {
		s := ns.Stats().Table
		used, buckets := 0, 0
		for i, n := range s.Distribution {
			buckets += n
			if i > 0 {
				used += n
			}
		}
		switch {
		case s.Entries != entries, buckets != s.Buckets, s.Buckets-used != s.Empty, s.Distribution[0] != s.Empty:
			t.Fatalf("%d entries: %+v", entries, s)
		case s.Theta > 0.75, s.Theta < 0.3 && s.Buckets > 4*8, s.MaxDepth > 12:
			t.Fatalf("%d entries: %+v", entries, s)
		}
		return s
	}
	full := check(20000)
	if full.Grows == 0 || full.Misses != 20000 || full.Hits != 0 {
		t.Fatalf("%+v", full)
	}
	rand.Shuffle(len(handles), func(i, j int) { handles[i], handles[j] = handles[j], handles[i] })
	for len(handles) > 0 {
		n := min(len(handles), 5000)
		ns.Cancel(0, 1, handles[:n], &fx)
		handles = handles[n:]
		check(len(handles))
	}
	empty := ns.Stats()
	if empty.Table.Shrinks == 0 || empty.Table.Bytes > full.Bytes/10 {
		t.Fatalf("from %d bytes to %+v", full.Bytes, empty)
	}
}

func TestRegister(t *testing.T) {
	ns := ldlm.New(ldlm.Config{Shards: 2})
	reg := stats.NewRegistry()
	ns.Register(reg, "mdt-strake-MDT0000")
	fillTable(ns, 10)
	got := map[string]string{}
	err := reg.Walk("ldlm.namespaces.*.*", func(e stats.Entry) error {
		got[e.Path[strings.LastIndex(e.Path, ".")+1:]] = e.Text()
		if strings.HasSuffix(e.Path, ".contention_seconds") {
			if err := e.Set("99"); err == nil {
				t.Error("99 s accepted")
			}
			if err := e.Set("8"); err != nil || e.Text() != "8" {
				t.Error(err, e.Text())
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"lock_count": "10", "resource_count": "10", "granted": "10",
		"lock_timeouts": "0", "contended_locks": "16", "contention_hold_seconds": "30", "lock_timeout": "20"} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	if f := strings.Fields(got["hash_stats"]); !slices.Contains(f, "LDLM_RESOURCES") || !slices.Contains(f, "10") {
		t.Error(got["hash_stats"])
	}
	checkTable(t, reg, ns)
}

// TestHandlesDifferBetweenStarts holds that a handle of one start finds nothing in the next.
func TestHandlesDifferBetweenStarts(t *testing.T) {
	var fx ldlm.Effects
	old := fillTable(ldlm.New(ldlm.Config{Seed: 1}), 100)
	ns := ldlm.New(ldlm.Config{Seed: 2})
	fillTable(ns, 100)
	if n := ns.Cancel(0, 1, old, &fx); n != 0 {
		t.Fatalf("%d handles of the start before were good", n)
	}
	if s := ns.Stats(); s.Counts.BadHandle == 0 {
		t.Fatal("not counted")
	}
}

// checkTable compares what the registry shows of a table with the namespace's own figures.
func checkTable(t *testing.T, reg *stats.Registry, ns *ldlm.Namespace) {
	t.Helper()
	want, found := ns.Stats().Table, 0
	if err := reg.Walk("ldlm.namespaces.**", func(e stats.Entry) error {
		s, ok := e.Table()
		if !ok {
			return nil
		}
		found++
		for i, n := range want.Distribution {
			if s.Chains[i] != int64(n) {
				t.Errorf("%d chains of class %s, want %d", s.Chains[i], stats.ChainClassName(i), n)
			}
		}
		if s.Entries != int64(want.Entries) || s.Buckets != int64(want.Buckets) || s.Longest != int64(want.MaxDepth) ||
			s.Empty != int64(want.Empty) || s.Hits != int64(want.Hits) || s.Misses != int64(want.Misses) || s.Bytes != want.Bytes {
			t.Errorf("%+v, want %+v", s, want)
		}
		return nil
	}); err != nil || found != 1 {
		t.Errorf("%d tables, %v", found, err)
	}
}
