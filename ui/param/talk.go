package param

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
)

// Bounds of a conversation.
const (
	requestMax = 64 << 10
	idleTime   = 10 * time.Second
	// permanentTime bounds the wait for the disk of the MGS.
	permanentTime = 8 * time.Second
)

// talk is one peer's conversation.
type talk struct {
	s   *Server
	c   *net.UnixConn
	in  *bufio.Reader
	out *bufio.Writer
	enc *json.Encoder
}

func newTalk(s *Server, c *net.UnixConn) *talk {
	t := &talk{s: s, c: c, in: bufio.NewReaderSize(c, requestMax)}
	t.out = bufio.NewWriter(timedWriter{c})
	t.enc = json.NewEncoder(t.out)
	t.enc.SetEscapeHTML(false)
	return t
}

// timedWriter gives each piece its time: a peer that takes nothing is cut off, one that takes slowly is not.
type timedWriter struct{ c *net.UnixConn }

func (w timedWriter) Write(b []byte) (int, error) {
	if err := w.c.SetWriteDeadline(time.Now().Add(idleTime)); err != nil {
		return 0, err
	}
	return w.c.Write(b)
}

// run talks until the peer leaves, breaks the protocol or is idle for too long.
func (t *talk) run() {
	uid, err := peerUID(t.c)
	if err != nil || !mayTalk(uid, os.Geteuid()) {
		t.s.o.Log.Warn("parameter socket: peer refused", "uid", uid, "err", err)
		_ = t.end(status.Access, fmt.Errorf("only root and uid %d may talk to this process", os.Geteuid()), 0)
		return
	}
	err = t.send(greeting{
		Strake: protocolVersion, Role: t.s.o.Role, PID: os.Getpid(), FSName: t.s.o.FSName, Version: t.s.o.Version,
		MGS: t.s.o.Permanent != nil,
	})
	for err == nil {
		if err = t.out.Flush(); err == nil {
			err = t.one()
		}
	}
	if !errors.Is(err, io.EOF) {
		t.s.o.Log.Debug("parameter socket: peer cut off", "err", err)
	}
}

// one serves one request. An error ends the conversation.
func (t *talk) one() error {
	if err := t.c.SetReadDeadline(time.Now().Add(idleTime)); err != nil {
		return err
	}
	line, err := t.in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return t.broken(fmt.Errorf("a request of more than %d bytes", requestMax))
	}
	if err != nil {
		return err
	}
	var q request
	if err := json.Unmarshal(line, &q); err != nil {
		return t.broken(fmt.Errorf("no request: %w", err))
	}
	if q.V != protocolVersion {
		return t.broken(fmt.Errorf("version %d of the protocol, this process speaks %d: take lctl and strake from one build", q.V, protocolVersion))
	}
	switch q.Op {
	case opList, opGet:
		return t.show(&q)
	case opSet:
		return t.set(&q)
	case opPermanent:
		return t.permanent(&q)
	}
	return t.broken(fmt.Errorf("unknown operation %q", q.Op[:min(len(q.Op), 64)]))
}

// broken tells the peer why the conversation ends.
func (t *talk) broken(why error) error {
	return errors.Join(why, t.end(status.Protocol, why, 0))
}

func (t *talk) send(v any) error { return t.enc.Encode(v) }

// end closes an answer.
func (t *talk) end(kind status.Kind, err error, nodes int) error {
	a := answer{End: true, Nodes: nodes}
	if err != nil {
		a.Code, a.Error = uint32(kind), err.Error()
	}
	return errors.Join(t.send(a), t.out.Flush())
}

func (t *talk) show(q *request) error {
	nodes, err := t.s.o.Registry.List(q.Pattern, q.Recursive)
	if err != nil {
		return t.end(status.Invalid, err, 0)
	}
	for i := range nodes {
		n := &nodes[i]
		a := answer{Name: n.Path, Folder: n.Folder, Writable: n.Writable}
		if q.Op == opGet {
			if text, ok := n.Text(); ok {
				a.Text = &text
			}
		}
		if err := t.send(a); err != nil {
			return err
		}
	}
	return t.end(0, nil, len(nodes))
}

func (t *talk) set(q *request) error {
	nodes, err := t.s.o.Registry.List(q.Pattern, false)
	if err != nil {
		return t.end(status.Invalid, err, 0)
	}
	count := 0
	for i := range nodes {
		n := &nodes[i]
		if !n.Shows() {
			continue
		}
		count++
		a := answer{Name: n.Path, Writable: n.Writable}
		if err := n.Set(q.Value); err != nil {
			a.Code, a.Error = uint32(status.Invalid), reason(err)
			if errors.Is(err, stats.ErrReadOnly) {
				a.Code = uint32(status.Access)
			}
		} else {
			t.s.o.Log.Info("parameter set", "name", n.Path, "value", q.Value)
		}
		if err := t.send(a); err != nil {
			return err
		}
	}
	return t.end(0, nil, count)
}

// reason is what a setter said, without the path in front: the peer knows it.
func reason(err error) string {
	if inner := errors.Unwrap(err); inner != nil {
		err = inner
	}
	return err.Error()
}

func (t *talk) permanent(q *request) error {
	if t.s.o.Permanent == nil {
		return t.end(status.WrongTarget, errors.New("this process does not host the MGS"), 0)
	}
	ctx, cancel := context.WithTimeout(t.s.ctx, permanentTime)
	defer cancel()
	name := strings.ReplaceAll(q.Pattern, "/", ".")
	if err := t.s.o.Permanent(ctx, name, q.Value); err != nil {
		return t.end(status.Of(err), err, 0)
	}
	t.s.o.Log.Info("permanent parameter set", "name", name, "value", q.Value)
	return t.end(0, nil, 1)
}
