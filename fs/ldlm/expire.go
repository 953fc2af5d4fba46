package ldlm

import "time"

// Expired makes an eviction effect for every client lock that was called back longer than the lock timeout ago, and
// gives each another timeout, so that one which the caller spares comes up again. At most most effects per shard.
// GROUP locks do not expire, nor do flock's, which are never called back.
func (ns *Namespace) Expired(now time.Duration, most int, fx *Effects) {
	for i := range ns.shards {
		sh := &ns.shards[i]
		sh.mu.Lock()
		for n := 0; n < most; n++ {
			l := sh.called.head
			if l == nil || l.stamp > now {
				break
			}
			fx.add(EffectEvict, l)
			sh.count.Expired++
			sh.unlistLocked(l)
			sh.listCalledLocked(l, now+time.Duration(ns.lockTimeout.Load()))
		}
		sh.mu.Unlock()
	}
}

// NextDeadline is when the next called-back lock expires; false when none is called back.
func (ns *Namespace) NextDeadline() (time.Duration, bool) {
	next := never
	for i := range ns.shards {
		sh := &ns.shards[i]
		sh.mu.Lock()
		if l := sh.called.head; l != nil {
			next = min(next, l.stamp)
		}
		sh.mu.Unlock()
	}
	return next, next != never
}

// Prolong moves the deadline of a client's called-back lock to until, if that is later: it works under it, or its
// holder says that it still lives. It reports whether the lock is the client's and called back.
func (ns *Namespace) Prolong(client ClientID, h Handle, until time.Duration) bool {
	sh := ns.shardByHandle(h)
	if sh == nil {
		return false
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	l := sh.locks.find(h, client)
	if l == nil || l.state != stateGranted || !l.has(markBlocked) || ns.mirror {
		return false
	}
	if until > l.stamp {
		sh.unlistLocked(l)
		sh.listCalledLocked(l, until)
	}
	return true
}

// Reclaim calls back the n client locks, about, that were granted or converted longest ago, to free memory. It goes round
// the shards and takes an equal part from each; GROUP locks are left alone. It returns how many were called back.
func (ns *Namespace) Reclaim(now time.Duration, n int, fx *Effects) int {
	each := (n + len(ns.shards) - 1) / len(ns.shards)
	total := 0
	for i := range ns.shards {
		sh := &ns.shards[i]
		sh.mu.Lock()
		s := step{sh: sh, ns: ns, now: now, fx: fx}
		l := sh.unused.head
		for k := 0; k < each && l != nil; {
			next := l.links[linkAge].next
			if l.mode != GROUP {
				s.block(l, nil, l.bits)
				sh.count.Revoked++
				k++
				total++
			}
			l = next
		}
		sh.mu.Unlock()
	}
	return total
}
