package server

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/server/osp"
	"github.com/strakefs/strake/store/boltdev"
)

// Words that the parameters backup and restored take beside a file's name.
const (
	wordCancel  = "cancel"
	wordKeep    = "keep"
	wordDestroy = "destroy"
)

// backup is the backup of an MDT that runs, or the last one.
type backup struct {
	wait sync.WaitGroup

	mu      sync.Mutex
	cancel  context.CancelFunc // nil while none runs; guarded by mu
	closed  bool               // guarded by mu
	file    string             // guarded by mu
	started time.Time          // guarded by mu
	took    time.Duration      // guarded by mu
	written int64              // guarded by mu
	made    boltdev.Backup     // guarded by mu
	err     error              // guarded by mu
}

// registerBackup enters the parameters that start a backup and settle a restore.
func (m *mds) registerBackup(n *Node) {
	r := n.o.Stats
	if r == nil {
		return
	}
	r.Param("mdt."+m.name+".backup", "The last backup. Set to a file's name it makes one, set to cancel it ends the one that runs.",
		m.backup.text, func(text string) error { return m.startBackup(strings.TrimSpace(text)) })
	r.Param("mdt."+m.name+".restored", "What is kept since the target was restored from a backup. Set to destroy or keep it settles that.",
		m.restoredText, func(text string) error {
			switch text := strings.TrimSpace(text); text {
			case wordDestroy, wordKeep:
				return m.objects.Settle(text == wordDestroy)
			default:
				return status.Errorf(status.Invalid, "restored is set to %s or %s, not to %q", wordDestroy, wordKeep, text)
			}
		})
}

// startBackup begins a backup, which goes on by itself.
func (m *mds) startBackup(file string) error {
	b := &m.backup
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case file == wordCancel && b.cancel != nil:
		b.cancel()
		return nil
	case file == wordCancel:
		return status.Errorf(status.Invalid, "no backup of %s runs", m.name)
	case !filepath.IsAbs(file):
		return status.Errorf(status.Invalid, "%q is no absolute path of a file", file)
	case b.closed:
		return status.Errorf(status.Stopping, "%s is stopping", m.name)
	case b.cancel != nil:
		return status.Errorf(status.Busy, "a backup of %s to %s runs", m.name, b.file)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.cancel, b.file, b.started, b.written, b.err, b.made = cancel, file, time.Now(), 0, nil, boltdev.Backup{}
	o := boltdev.BackupOptions{Path: file, Target: m.name, Instance: m.mdt.Target().Instance(), Progress: b.progress}
	b.wait.Go(func() {
		defer cancel()
		made, err := m.dev.Backup(ctx, o)
		if errors.Is(err, context.Canceled) {
			err = errors.New("cancelled")
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.cancel, b.made, b.err, b.took = nil, made, err, time.Since(b.started)
	})
	return nil
}

func (b *backup) progress(written int64) {
	b.mu.Lock()
	b.written = written
	b.mu.Unlock()
}

// stop ends the backup that runs, for good.
func (b *backup) stop() {
	b.mu.Lock()
	b.closed = true
	if b.cancel != nil {
		b.cancel()
	}
	b.mu.Unlock()
	b.wait.Wait()
}

// text tells of the last backup, empty when there was none.
func (b *backup) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.file == "" {
		return ""
	}
	state, took := "complete", b.took
	switch {
	case b.cancel != nil:
		state, took = "running", time.Since(b.started)
	case b.err != nil:
		state = "failed"
	}
	var t strings.Builder
	fmt.Fprintf(&t, "state: %s\nfile: %s\nstarted: %s\nseconds: %.1f\nbytes: %d", state, b.file, b.started.UTC().Format(time.RFC3339), took.Seconds(), b.written)
	switch state {
	case "complete":
		fmt.Fprintf(&t, "\ntransno: %#x\nkeys: %d", uint64(b.made.Transno), b.made.Keys)
	case "failed":
		fmt.Fprintf(&t, "\nerror: %v", b.err)
	}
	return t.String()
}

// restoredText tells what is kept since a restore, empty when nothing is.
func (m *mds) restoredText() string {
	r, on := m.objects.Restored()
	if !on {
		return ""
	}
	var t strings.Builder
	state := "waiting"
	if r.Settling {
		state = "settling"
	}
	fmt.Fprintf(&t, "state: %s\nbackup_made: %s", state, r.Made.UTC().Format(time.RFC3339))
	for _, k := range r.Kept {
		fmt.Fprintf(&t, "\nkept: %s objects %d to %d", osp.TargetName(m.dev.Label().FSName, k.OST), k.First, k.Last)
	}
	for _, name := range r.Unseen {
		fmt.Fprintf(&t, "\nunseen: %s", name)
	}
	if r.Err != nil {
		fmt.Fprintf(&t, "\nerror: %v", r.Err)
	}
	return t.String()
}
