package server

import (
	"log/slog"
	"time"

	"github.com/shirou/gopsutil/v4/mem"
)

// memory is the machine's in bytes, which bounds the memory of locks and of cached objects; 0 when it cannot be known.
func memory(log *slog.Logger) uint64 {
	m, err := mem.VirtualMemory()
	if err != nil {
		log.Warn("the machine's memory is not known: the memory of locks has no bound until ldlm.lock_limit_mb is set", "err", err)
		return 0
	}
	return m.Total
}

// memoryEvery is how often the node looks at what memory the machine has left.
const memoryEvery = 2 * time.Second

// memoryLoop lets the object caches give memory back while the machine is short of it.
func (n *Node) memoryLoop() {
	tick := time.NewTicker(memoryEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-n.ctx.Done():
			return
		}
		if m, err := mem.VirtualMemory(); err == nil {
			n.objects.Look(m.Available)
		}
	}
}
