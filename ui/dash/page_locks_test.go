package dash_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/server/lockd"
	"github.com/strakefs/strake/ui/dash"
)

// hostile is a name as a browser must never take it.
const hostile = `<img src=x onerror="document.title='taken'">`

// locking is two lock servers at work: locks granted and given back, and a file that several want.
type locking struct {
	mdt, ost *lockd.Server
	mirror   *ldlm.Namespace
	shared   fid.FID
	stripe   ldlm.ResID
}

// startLocks works until stop is called, which waits.
func startLocks(t *testing.T, r *stats.Registry) (l *locking, stop func()) {
	t.Helper()
	l = &locking{shared: fid.FID{Seq: 0x200000401, OID: 0x51}, stripe: ldlm.ObjectRes(fid.ObjectID{ID: 4711})}
	l.mdt = lockd.New(lockd.Options{Name: "mdt-strake-MDT0000", Seed: 1, Stats: r})
	l.ost = lockd.New(lockd.Options{Name: "ost-strake-OST0000", Seed: 2, Stats: r})
	l.mirror = ldlm.New(ldlm.Config{Mirror: true, Shards: 4, Seed: 3})
	l.mirror.Register(r, "strake-MDT0000-mdc-1")
	l.fill(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 5 {
		wg.Go(func() { l.fight(ctx, l.mdt, ldlm.InodeRes(l.shared), i) })
		wg.Go(func() { l.fight(ctx, l.ost, l.stripe, i) })
	}
	var once sync.Once
	return l, func() {
		once.Do(func() {
			cancel()
			wg.Wait()
			l.mdt.Close()
			l.ost.Close()
		})
	}
}

// fill has two clients hold locks on many files, and the mirror some of its own.
func (l *locking) fill(t *testing.T) {
	t.Helper()
	var fx ldlm.Effects
	one, two := l.mdt.Join("node-a client 1"), l.mdt.Join(hostile)
	for i := range 6000 {
		f := fid.FID{Seq: 0x200000402, OID: uint32(i + 1)}
		cl := one
		if i%3 == 0 {
			cl = two
		}
		l.mdt.Namespace().Enqueue(0, &ldlm.Request{Res: ldlm.InodeRes(f), Mode: ldlm.PR, Bits: ldlm.Lookup | ldlm.Perm, Client: cl.ID()}, &fx)
		fx.Reset()
	}
	// Both read a file that operations of the server want for themselves.
	for _, cl := range []*lockd.Client{one, two} {
		l.mdt.Namespace().Enqueue(0, &ldlm.Request{Res: ldlm.InodeRes(l.shared), Mode: ldlm.CR, Bits: ldlm.Open, Client: cl.ID()}, &fx)
		fx.Reset()
	}
	for i := range 300 {
		l.mirror.Prepare(&ldlm.Request{Res: ldlm.InodeRes(fid.FID{Seq: 0x200000403, OID: uint32(i + 1)}), Mode: ldlm.PR, Bits: ldlm.Lookup})
	}
}

// fight takes and drops one lock again and again, holding it for a moment.
func (l *locking) fight(ctx context.Context, s *lockd.Server, res ldlm.ResID, i int) {
	e := env.New()
	lock := lockd.LocalLock{Res: res, Mode: ldlm.PW, Bits: ldlm.Update, Extent: extent.Extent{Start: uint64(i) << 10, End: extent.EOF}}
	for s.Lock(ctx, e, &lock) == nil {
		select {
		case <-ctx.Done():
		case <-time.After(30 * time.Millisecond):
		}
		s.Unlock(e, &lock)
		e.Reset()
	}
}

// resources is what a process tells the dashboard of its lock servers.
func (l *locking) resources(limit int) []dash.LockResource {
	var all []dash.LockResource
	for name, s := range map[string]*lockd.Server{"mdt-strake-MDT0000": l.mdt, "ost-strake-OST0000": l.ost} {
		for _, c := range s.Contended(limit) {
			r := dash.LockResource{Namespace: name, Resource: c.Res.String(), Type: "ibits", FID: l.shared, Stripe: -1, Granted: c.Granted,
				Waiting: c.Waiting, Converting: c.Converting, Conflicts: c.Conflicts, Contended: c.Lockless,
				Holders: parties(c.Holders), Waiters: parties(c.Waiters)}
			if c.Res.Type == ldlm.TypeExtent {
				r.Type, r.Object, r.Stripe = "extent", fmt.Sprintf("%d:0x%x", c.Res.Seq, c.Res.OID), 1
			}
			all = append(all, r)
		}
	}
	return all
}

func parties(all []lockd.Party) []dash.LockParty {
	var out []dash.LockParty
	for _, p := range all {
		d := dash.LockParty{Client: p.Client, Mode: p.Mode.String(), CalledBack: p.Blocked}
		if p.Bits != 0 {
			d.Bits = p.Bits.String()
		} else {
			d.Extent = fmt.Sprintf("[%d, EOF)", p.Extent.Start)
		}
		out = append(out, d)
	}
	return out
}

func (l *locking) paths(_ context.Context, f fid.FID) ([]string, error) {
	if f != l.shared {
		return nil, errors.New("no such file")
	}
	return []string{"projects/" + hostile + "/results.db", "home/link"}, nil
}

// lruTable is a small real cache with chains: what a mount's inode table is to the page.
type lruTable struct {
	mu                        sync.Mutex
	chains                    [64][]uint64 // guarded by mu
	n, hits, misses, put, out int64        // guarded by mu
}

const lruLimit = 200

func (c *lruTable) touch(key uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := &c.chains[key*0x9e3779b97f4a7c15>>58]
	for _, k := range *at {
		if k == key {
			c.hits++
			return
		}
	}
	c.misses++
	c.put++
	*at = append(*at, key)
	if c.n++; c.n > lruLimit {
		*at = (*at)[1:]
		c.n--
		c.out++
	}
}

func (c *lruTable) read(s *stats.TableStats) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Buckets, s.Entries, s.Empty, s.Longest = int64(len(c.chains)), c.n, 0, 0
	s.Hits, s.Misses, s.Created, s.Evictions, s.Busy = c.hits, c.misses, c.put, c.out, 0
	s.Bytes, s.LimitEntries, s.Rule = 8*c.n, lruLimit, "max_cached_objects: "+hostile
	s.Chains = [stats.ChainClasses]int64{}
	for _, chain := range c.chains {
		s.Chains[stats.ChainClass(len(chain))]++
		s.Longest = max(s.Longest, int64(len(chain)))
		if len(chain) == 0 {
			s.Empty++
		}
	}
}
