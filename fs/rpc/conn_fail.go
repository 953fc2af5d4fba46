package rpc

import (
	"errors"

	"github.com/strakefs/strake/fs/failpoint"
	"github.com/strakefs/strake/fs/wire"
)

// errInjected ends a connection that a fail point cuts.
var errInjected = errors.New("rpc: cut by a fail point")

// failRequest does what the fail points say of a request that is about to be served. It reports whether that is all that happens to
// it: c is given back then.
func (cn *Conn) failRequest(w *worker, c *Call) bool {
	fp, op := cn.s.o.FailPoints, c.Header.Op.String()
	if h, ok := fp.Reach(failpoint.DelayRequest, op, cn.target); ok {
		w.e.WillWait()
		h.Wait(cn.ctx.Done())
	}
	if h, ok := fp.Reach(failpoint.DropRequest, op, cn.target); ok {
		cn.lose(h)
		cn.mu.Lock()
		cn.answeredLocked(c)
		cn.mu.Unlock()
	} else if h, ok := fp.Reach(failpoint.ErrorReply, op, cn.target); ok {
		cn.answer(c, h.Err())
	} else {
		return false
	}
	cn.recycle(c)
	w.e.Reset()
	return true
}

// failReply loses the reply of a request that was served, if a fail point says so.
func (cn *Conn) failReply(c *Call) {
	if h, ok := cn.s.o.FailPoints.Reach(failpoint.DropReply, c.Header.Op.String(), cn.target); ok {
		cn.lose(h)
	}
}

// failConnect reports whether the connection is to be cut at its CONNECT.
func (cn *Conn) failConnect() bool {
	if !cn.s.o.FailPoints.Armed() {
		return false
	}
	_, ok := cn.s.o.FailPoints.Reach(failpoint.DropRequest, wire.OpConnect.String(), cn.target)
	return ok
}

// lose makes the connection lose what would be said next: it is cut, or falls silent and stays so.
func (cn *Conn) lose(h failpoint.Hit) {
	if h.Val == 0 {
		cn.l.close(errInjected)
		return
	}
	cn.l.wmu.Lock()
	cn.l.mute = true
	cn.l.wmu.Unlock()
}
