package boltdev

import (
	"sync"

	"github.com/strakefs/strake/store"
)

// tail is what commits write while a backup runs: values as they are in the database afterwards, in the order of the
// commits. The committer appends and never waits; past tailMax what there is is dropped, and the backup fails.
type tail struct {
	mu    sync.Mutex
	buf   []byte        // records; guarded by mu
	whole int           // buf[:whole] ends where a commit ended; guarded by mu
	last  store.Transno // the newest of buf[:whole]; guarded by mu
	over  bool          // it was too much; guarded by mu
}

func (t *tail) put(table store.Table, key, value []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.over {
		t.buf = appendPut(t.buf, table, key, value)
		t.checkLocked()
	}
}

func (t *tail) remove(table store.Table, key []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.over {
		t.buf = appendDelete(t.buf, table, key)
		t.checkLocked()
	}
}

func (t *tail) checkLocked() {
	if len(t.buf) > tailMax {
		t.buf, t.whole, t.over = nil, 0, true
	}
}

// committed notes the end of a commit.
func (t *tail) committed(n store.Transno) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.whole, t.last = len(t.buf), n
}

func (t *tail) lost() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.over
}

// take returns the records of whole commits and the transno of the last; false if they were too many. The tail is not to
// be used by its reader after.
func (t *tail) take() ([]byte, store.Transno, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf[:t.whole:t.whole], t.last, !t.over
}
