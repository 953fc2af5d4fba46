package ldlm

import (
	"time"

	"github.com/strakefs/strake/fs/extent"
)

// Cancel is one lock that a mirror is giving back: drop or write back what it covers, send Remote, then Drop Handle.
type Cancel struct {
	Handle, Remote Handle
	Res            ResID
	Desc           Desc
	Data           any
}

func (sh *shard) cancelLocked(l *lock, to []Cancel) []Cancel {
	sh.unlistLocked(l)
	l.state = stateCancelling
	return append(to, Cancel{Handle: l.handle, Remote: l.remote, Res: l.res.id, Desc: l.desc(), Data: l.data})
}

// Early is what an operation is about to change: the client's own locks that would be called back for it.
type Early struct {
	Res    ResID
	Mode   Mode // what the server will take
	Bits   Bits
	Extent extent.Extent
}

// EarlyCancel appends this client's own unused locks that conflict with what an operation is about to take, for the
// operation's request to carry their cancels (early lock cancel): no blocking AST comes back for them. Locks in use are
// left to their blocking AST. It appends no more than cap(to)-len(to), so that a request stays bounded.
func (ns *Namespace) EarlyCancel(e *Early, to []Cancel) []Cancel {
	if !e.Mode.Valid() {
		return to
	}
	sh, hash := ns.shardOf(e.Res)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	res := sh.table.find(e.Res, hash)
	if res == nil {
		return to
	}
	for set := e.Mode.conflicts(); set != 0; {
		var m Mode
		m, set = set.lowest()
		for l := res.granted[m.index()].head; l != nil && len(to) < cap(to); l = l.links[linkQueue].next {
			hit := l.bits&e.Bits != 0 || res.id.Type == TypePlain
			if res.id.Type == TypeExtent {
				hit = l.ext.Overlaps(e.Extent)
			}
			if hit && l.state == stateGranted && l.pins == 0 && l.marks&(markReturning|markBlocked) == 0 {
				to = sh.cancelLocked(l, to)
			}
		}
	}
	return to
}

// LRU is the policy of a mirror's unused locks.
type LRU struct {
	// Max is the number of unused locks to keep (lru_size); 0 sizes by Pool alone.
	Max int
	// MaxAge is lru_max_age: an unused lock older than this goes; 0 keeps any age.
	MaxAge time.Duration
	// Pool is the client's pool; its zero value keeps all.
	Pool ClientPool
}

// Trim appends unused locks to give back: first those beyond the number, then those too old or too voluminous for the
// server's lock volume, always the longest unused first. It appends no more than cap(to)-len(to). The locks in it are
// no longer matched.
func (ns *Namespace) Trim(now time.Duration, p *LRU, to []Cancel) []Cancel {
	for len(to) < cap(to) {
		sh := ns.oldest()
		if sh == nil {
			return to
		}
		sh.mu.Lock()
		l := sh.unused.head
		if l == nil { // matched meanwhile
			sh.mu.Unlock()
			continue
		}
		unused := ns.unused.Load()
		age := now - l.stamp
		goes := p.Max > 0 && unused > int64(p.Max) || p.MaxAge > 0 && age >= p.MaxAge || p.Pool.Exceeds(age, unused)
		if goes {
			to = sh.cancelLocked(l, to)
		}
		sh.mu.Unlock()
		if !goes {
			return to
		}
	}
	return to
}

// oldest returns the shard with the longest unused lock, nil when no lock is unused.
func (ns *Namespace) oldest() *shard {
	var found *shard
	stamp := never
	for i := range ns.shards {
		sh := &ns.shards[i]
		sh.mu.Lock()
		if l := sh.unused.head; l != nil && (found == nil || l.stamp < stamp) {
			found, stamp = sh, l.stamp
		}
		sh.mu.Unlock()
	}
	return found
}

// TrimAll appends unused locks to give back whatever the policy (lru_size=clear), no more than cap(to)-len(to).
func (ns *Namespace) TrimAll(to []Cancel) []Cancel {
	for i := range ns.shards {
		sh := &ns.shards[i]
		sh.mu.Lock()
		for l := sh.unused.head; l != nil && len(to) < cap(to); l = sh.unused.head {
			to = sh.cancelLocked(l, to)
		}
		sh.mu.Unlock()
	}
	return to
}
