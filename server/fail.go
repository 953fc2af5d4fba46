package server

import (
	"fmt"
	"sync"

	"github.com/strakefs/strake/fs/failpoint"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/boltdev"
)

// fails knows which target lives in which data folder, for fail points that name a target: a device is opened before it knows
// which one it is.
type fails struct {
	mu    sync.Mutex
	names map[string]string // data folder to name; guarded by mu
}

// name notes that a target lives in dir.
func (f *fails) name(dir, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.names == nil {
		f.names = make(map[string]string)
	}
	f.names[dir] = name
}

func (f *fails) of(dir string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.names[dir]
}

// failDevice lets the fail points fail the device that o opens. Where none are allowed it changes nothing.
func (n *Node) failDevice(o *boltdev.Options) {
	fp, dir := n.o.FailPoints, o.Dir
	if fp == nil {
		return
	}
	o.Full = func() bool {
		if !fp.Armed() {
			return false
		}
		_, full := fp.Reach(failpoint.NoSpace, "", n.fails.of(dir))
		return full
	}
	o.Hold = func() bool {
		if !fp.Armed() {
			return false
		}
		_, hold := fp.Reach(failpoint.HoldTxg, "", n.fails.of(dir))
		return hold
	}
	o.Fault = func(point string) error {
		if point != "commit" || !fp.Armed() {
			return nil
		}
		target := n.fails.of(dir)
		if h, ok := fp.Reach(failpoint.PauseCommit, point, target); ok {
			h.Wait(nil) // Node.Close ends it
		}
		if h, ok := fp.Reach(failpoint.FailCommit, point, target); ok {
			if h.Kind() == status.NoSpace {
				return fmt.Errorf("%w: %w", store.ErrNoSpace, h.Err())
			}
			return h.Err()
		}
		return nil
	}
}
