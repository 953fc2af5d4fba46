package lockd

import (
	"sync"
	"time"
)

// lockMemory is the last measurement of what locks cost. Measuring walks the resource table, so it is done at most once in
// memoryAge, and takes a fiftieth of the time at most.
type lockMemory struct {
	mu   sync.Mutex
	each int64     // guarded by mu
	next time.Time // when each has become too old; guarded by mu
}

const (
	memoryAge   = 2 * time.Second
	memoryShare = 50
)

// BytesPerLock is the memory of the namespace's locks, with their resources, handles and chains, by the number of locks; 0 while
// there are none. It may be some seconds old.
func (s *Server) BytesPerLock() int64 {
	m := &s.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	began := time.Now()
	if began.Before(m.next) {
		return m.each
	}
	st := s.ns.Stats()
	if m.each = 0; st.Locks > 0 {
		m.each = (st.LockBytes + st.Table.Bytes) / st.Locks
	}
	ended := time.Now()
	m.next = ended.Add(max(memoryAge, memoryShare*ended.Sub(began)))
	return m.each
}
