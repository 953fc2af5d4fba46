package ldlm_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
)

// TestFlockTable compares the ranges with an array that says for each byte who holds it how.
func TestFlockTable(t *testing.T) {
	const bytes, owners = 24, 3
	rapid.Check(t, func(t *rapid.T) {
		var table ldlm.FlockTable
		var model [owners][bytes]byte // ' ', 'r' or 'w'
		for o := range model {
			for i := range model[o] {
				model[o][i] = ' '
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			o := rapid.IntRange(0, owners-1).Draw(t, "owner")
			r := ldlm.FlockRange{Owner: ldlm.FlockOwner{Client: ldlm.ClientID(o % 2), Owner: uint64(o)}}
			r.Start = rapid.Uint64Range(0, bytes-1).Draw(t, "start")
			r.End = rapid.Uint64Range(r.Start+1, bytes).Draw(t, "end")
			kind := rapid.SampledFrom([]byte(" rw")).Draw(t, "kind")
			r.Write = kind == 'w'
			conflict := false
			for p := range model {
				for i := r.Start; i < r.End && p != o && kind != ' '; i++ {
					conflict = conflict || model[p][i] == 'w' || model[p][i] == 'r' && kind == 'w'
				}
			}
			_, got := table.Conflict(&r)
			switch {
			case kind == ' ':
				table.Clear(&r)
			case got != conflict:
				t.Fatalf("conflict of %+v: %v, want %v", r, got, conflict)
			case got:
				continue
			default:
				table.Set(&r)
			}
			for i := r.Start; i < r.End; i++ {
				model[o][i] = kind
			}
			compareFlock(t, &table, model[:])
		}
	})
}

func compareFlock(t *rapid.T, table *ldlm.FlockTable, model [][24]byte) {
	var got [3][24]byte
	for o := range got {
		for i := range got[o] {
			got[o][i] = ' '
		}
	}
	want := 0
	for _, r := range table.Ranges() {
		for i := r.Start; i < r.End; i++ {
			got[r.Owner.Owner][i] = 'r'
			if r.Write {
				got[r.Owner.Owner][i] = 'w'
			}
		}
	}
	for o := range model {
		if got[o] != model[o] {
			t.Fatalf("owner %d: %q, want %q", o, got[o], model[o])
		}
		for i, k := range model[o] {
			if k != ' ' && (i == 0 || model[o][i-1] != k) {
				want++
			}
		}
	}
	if n := len(table.Ranges()); n != want {
		t.Fatalf("%d ranges, %d would do", n, want)
	}
}

// TestFlockDeadlock compares every answer with a search through the waits and holders themselves.
func TestFlockDeadlock(t *testing.T) {
	rounds := 100
	if raceOn {
		rounds = 20
	}
	for round := range rounds {
		seed := rand.Uint64()
		if round < 50 {
			seed = uint64(round)
		}
		if err := deadlockRun(rand.New(rand.NewPCG(seed, 5))); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// flockWait is a request that waits.
type flockWait struct {
	handle ldlm.Handle
	req    ldlm.FlockRequest
}

type flockWorld struct {
	ns    *ldlm.Namespace
	fx    ldlm.Effects
	waits map[ldlm.Handle]*flockWait
}

const flockFiles = 4

// stuck reports whether owner waits, over any number of others, for itself, were it to wait for r too.
func (w *flockWorld) stuck(owner ldlm.FlockOwner, r *ldlm.FlockRequest) bool {
	seen := map[ldlm.FlockOwner]bool{}
	var search func(r *ldlm.FlockRequest) bool
	search = func(r *ldlm.FlockRequest) bool {
		for _, h := range w.ns.FlockRanges(r.Res, nil) {
			if h.Owner == r.Range.Owner || !h.Overlaps(r.Range.Extent) || !h.Write && r.Op == ldlm.FlockShared {
				continue
			}
			if h.Owner == owner {
				return true
			}
			if seen[h.Owner] {
				continue
			}
			seen[h.Owner] = true
			for _, q := range w.waits {
				if q.req.Range.Owner == h.Owner && search(&q.req) {
					return true
				}
			}
		}
		return false
	}
	return search(r)
}

func deadlockRun(r *rand.Rand) error {
	w := &flockWorld{ns: ldlm.New(ldlm.Config{Shards: 4}), waits: map[ldlm.Handle]*flockWait{}}
	for range 200 {
		w.fx.Reset()
		req := ldlm.FlockRequest{Res: ldlm.FlockRes(fid.FID{Seq: fid.SeqFirst, OID: uint32(1 + r.IntN(flockFiles))}),
			Op: ldlm.FlockOp(r.IntN(3)), Wait: true}
		req.Range.Owner = ldlm.FlockOwner{Client: ldlm.ClientID(1 + r.IntN(3)), Owner: uint64(r.IntN(2))}
		req.Range.Start = uint64(r.IntN(4))
		req.Range.End = req.Range.Start + 1 + uint64(r.IntN(3))
		would := req.Op != ldlm.FlockUnlock && w.stuck(req.Range.Owner, &req)
		reply := w.ns.Flock(0, &req, &w.fx)
		if got := reply.Status == status.Deadlock; got != would {
			return fmt.Errorf("%+v: %+v, deadlock expected: %v", req, reply, would)
		}
		if reply.Outcome == ldlm.Waiting {
			w.waits[reply.Handle] = &flockWait{handle: reply.Handle, req: req}
		}
		for _, e := range w.fx.List {
			if w.waits[e.Handle] == nil {
				return fmt.Errorf("%v of nobody's request", e.Kind)
			}
			delete(w.waits, e.Handle)
		}
		for _, q := range w.waits {
			if w.stuck(q.req.Range.Owner, &q.req) {
				return fmt.Errorf("undetected: %+v", q.req)
			}
		}
		if err := w.ns.Verify(); err != nil {
			return err
		}
	}
	for c := range ldlm.ClientID(4) {
		w.fx.Reset()
		w.ns.Evict(0, c, &w.fx)
	}
	if s := w.ns.Stats(); s.Locks != 0 || s.Resources != 0 {
		return fmt.Errorf("left over: %+v", s)
	}
	if n := w.ns.WaitNodes(); n != 0 {
		return fmt.Errorf("%d nodes left in the graph", n)
	}
	return nil
}

// TestFlockWholeRange holds that the last byte of a file can be locked.
func TestFlockWholeRange(t *testing.T) {
	var table ldlm.FlockTable
	table.Set(&ldlm.FlockRange{Extent: extent.Extent{Start: 5, End: extent.EOF}, Write: true})
	table.Clear(&ldlm.FlockRange{Extent: extent.Extent{Start: 10, End: 11}})
	if r := table.Ranges(); len(r) != 2 || r[1].Extent != (extent.Extent{Start: 11, End: extent.EOF}) {
		t.Fatal(r)
	}
}

// TestFlockBound holds that a client cannot make a file's table grow without end.
func TestFlockBound(t *testing.T) {
	ns := ldlm.New(ldlm.Config{})
	var fx ldlm.Effects
	step := func(op ldlm.FlockOp, i uint64) ldlm.FlockReply {
		r := ldlm.FlockRequest{Res: ldlm.FlockRes(fid.Root), Op: op}
		r.Range.Owner.Client = 1 + ldlm.ClientID(i%2)
		r.Range.Extent = extent.Extent{Start: 2 * i, End: 2*i + 1}
		return ns.Flock(0, &r, &fx)
	}
	ns.SetFlockRanges(ldlm.FlockRes(fid.Root), 1<<16-1)
	if r := step(ldlm.FlockExclusive, 1<<20); r.Outcome != ldlm.Granted {
		t.Fatal(r)
	}
	if r := step(ldlm.FlockExclusive, 1<<20+1); r.Status != status.NoMemory {
		t.Fatal(r)
	}
	if r := step(ldlm.FlockUnlock, 1<<20); r.Outcome != ldlm.Granted {
		t.Fatal(r)
	}
	if r := step(ldlm.FlockShared, 1<<20); r.Outcome != ldlm.Granted {
		t.Fatal(r)
	}
}
