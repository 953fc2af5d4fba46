package cli

import (
	"io"
	"log/slog"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// maxHeldBytes bounds what is held back of the log of a start; beyond it the log flows.
const maxHeldBytes = 64 << 10

// newLogger makes the process's log: text on a terminal, JSON otherwise. The writer returned with it holds lines
// back until release or drop is called, unless w is a terminal or the level is debug.
func newLogger(w io.Writer, level slog.Level) (*slog.Logger, *heldWriter) {
	opts := &slog.HandlerOptions{Level: level}
	terminal := isTerminal(w)
	held := &heldWriter{w: w, holding: !terminal && level > slog.LevelDebug}
	if terminal {
		return slog.New(slog.NewTextHandler(held, opts)), held
	}
	return slog.New(slog.NewJSONHandler(held, opts)), held
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// heldWriter keeps what is written until it is released or dropped, then passes everything on.
type heldWriter struct {
	mu      sync.Mutex
	w       io.Writer
	holding bool   // guarded by mu
	buf     []byte // guarded by mu
}

// Write takes whole lines.
func (h *heldWriter) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.holding {
		return h.w.Write(p)
	}
	h.buf = append(h.buf, p...)
	if len(h.buf) > maxHeldBytes {
		return len(p), h.flushLocked()
	}
	return len(p), nil
}

// release writes out what was held and holds no more.
func (h *heldWriter) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	// A log that cannot be written has nowhere to say so.
	_ = h.flushLocked()
}

// drop forgets what was held and holds no more.
func (h *heldWriter) drop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.holding, h.buf = false, nil
}

func (h *heldWriter) flushLocked() error {
	h.holding = false
	if len(h.buf) == 0 {
		return nil
	}
	_, err := h.w.Write(h.buf)
	h.buf = nil
	return err
}
