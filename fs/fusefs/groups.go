package fusefs

import (
	"bytes"
	"os"
	"strconv"
	"sync"
	"time"
)

// groupsAge is how long the groups of a thread are believed; a change (newgrp, setgroups) is seen after it. The kernel
// checks each call with the groups of the moment too.
const groupsAge = time.Second

// groupsMax bounds the threads whose groups are remembered.
const groupsMax = 4096

// groupCache remembers the supplementary groups of calling threads, which a FUSE request does not carry.
type groupCache struct {
	mu sync.Mutex
	m  map[groupKey]groupEntry // guarded by mu
}

// groupKey is a thread as it called: one that changes its ids has other groups at once.
type groupKey struct {
	tid, uid, gid uint32
}

type groupEntry struct {
	groups []uint32
	until  time.Time
}

// of gives the supplementary groups of a thread that calls with these ids. The result is shared: not to be changed.
func (g *groupCache) of(tid, uid, gid uint32) []uint32 {
	now, key := time.Now(), groupKey{tid, uid, gid}
	g.mu.Lock()
	e, ok := g.m[key]
	g.mu.Unlock()
	if ok && now.Before(e.until) {
		return e.groups
	}
	e = groupEntry{groups: readGroups(tid), until: now.Add(groupsAge)}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.m == nil || len(g.m) >= groupsMax {
		g.m = make(map[groupKey]groupEntry)
	}
	g.m[key] = e
	return e.groups
}

func readGroups(tid uint32) []uint32 {
	b, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(tid), 10) + "/status")
	if err != nil {
		return nil
	}
	v, ok := statusField(b, "\nGroups:\t")
	if !ok {
		return nil
	}
	var out []uint32
	for _, w := range bytes.Fields(v) {
		if n, err := strconv.ParseUint(string(w), 10, 32); err == nil {
			out = append(out, uint32(n))
		}
	}
	return out
}
