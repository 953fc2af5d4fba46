package lockd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// perClient is how many goroutines send to one client at once: half of what its connection carries, so that a client that
// has stopped takes few of max_parallel_ast.
const perClient = rpc.CallbacksMax / 2

// queueKept is the room that an empty queue keeps: 64 KiB, about.
const queueKept = 256

// jobKind says what is to be sent.
type jobKind uint8

const (
	jobBlocking   jobKind = iota // effect
	jobCompletion                // w, detached
	jobFinish                    // w, held
	jobGlimpse                   // effect, g
	jobReply                     // g: its asker's answer
	jobParked                    // call
)

// job is one thing to send to a client.
type job struct {
	kind   jobKind
	effect ldlm.Effect
	w      *waiter
	g      *glimpse
	call   *rpc.Call
}

// answers reports whether the job answers a call, which needs no connection to call the client on.
func (j *job) answers() bool { return j.answered() != nil }

// answered is the call that the job answers, nil when it calls the client.
func (j *job) answered() *rpc.Call {
	switch j.kind {
	case jobFinish:
		return j.w.call
	case jobReply:
		return j.g.call
	case jobParked:
		return j.call
	}
	return nil
}

// queue is a client's place in the sender. All of it is guarded by sender.mu.
type queue struct {
	jobs    []job
	head    int
	sending int
	ready   bool // in sender.ready
}

func (q *queue) empty() bool { return q.head == len(q.jobs) }

func (q *queue) push(j job) {
	if q.head > 64 && q.head > len(q.jobs)/2 { // a queue that is never empty does not creep through memory
		n := copy(q.jobs, q.jobs[q.head:])
		clear(q.jobs[n:])
		q.jobs, q.head = q.jobs[:n], 0
	}
	q.jobs = append(q.jobs, j)
}

func (q *queue) pop() job {
	j := q.jobs[q.head]
	q.jobs[q.head] = job{}
	if q.head++; q.head == len(q.jobs) {
		q.jobs, q.head = q.jobs[:0], 0
		if cap(q.jobs) > queueKept {
			q.jobs = nil
		}
	}
	return j
}

// sender sends jobs with a bounded number of goroutines, which live while there is something to send. Clients take turns.
type sender struct {
	s    *Server
	idle sync.Pool // *work

	mu      sync.Mutex
	max     int       // guarded by mu
	workers int       // guarded by mu
	ready   []*Client // guarded by mu
}

func (t *sender) init(s *Server, most int) { t.s, t.max = s, most }

// post adds a job for a client; of one that is gone it is dropped.
func (t *sender) post(cl *Client, j job) {
	t.mu.Lock()
	if cl.gone.Load() {
		t.mu.Unlock()
		t.s.abandon(&j)
		return
	}
	cl.queue.push(j)
	t.wakeLocked(cl)
	t.mu.Unlock()
}

// back puts a job that found no connection to the front again.
func (t *sender) back(cl *Client, j job) {
	t.mu.Lock()
	if cl.gone.Load() {
		t.mu.Unlock()
		t.s.abandon(&j)
		return
	}
	q := &cl.queue
	if q.head > 0 {
		q.head--
		q.jobs[q.head] = j
	} else {
		q.jobs = append(q.jobs, job{})
		copy(q.jobs[1:], q.jobs)
		q.jobs[0] = j
	}
	t.wakeLocked(cl)
	t.mu.Unlock()
}

// wake looks whether something can be sent to the client now.
func (t *sender) wake(cl *Client) {
	t.mu.Lock()
	t.wakeLocked(cl)
	t.mu.Unlock()
}

func (t *sender) wakeLocked(cl *Client) {
	q := &cl.queue
	if q.ready || q.empty() || q.sending >= perClient || !q.jobs[q.head].answers() && cl.connection() == nil {
		return
	}
	q.ready = true
	t.ready = append(t.ready, cl)
	if t.workers < t.max && t.s.goroutine(t.work) {
		t.workers++
	}
}

// next takes the next job of the next client; false ends the worker.
func (t *sender) next() (*Client, job, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.ready) > 0 && t.s.ctx.Err() == nil {
		cl := t.ready[0]
		t.ready[0] = nil
		t.ready = t.ready[1:]
		q := &cl.queue
		q.ready = false
		if q.empty() || q.sending >= perClient {
			continue
		}
		j := q.pop()
		q.sending++
		t.wakeLocked(cl)
		return cl, j, true
	}
	t.workers--
	return nil, job{}, false
}

func (t *sender) work() {
	k := t.s.takeWork()
	defer t.s.giveWork(k)
	for {
		cl, j, ok := t.next()
		if !ok {
			return
		}
		again := t.s.do(k, cl, &j)
		k.e.Reset()
		t.mu.Lock()
		cl.queue.sending--
		if !again {
			t.wakeLocked(cl)
		}
		t.mu.Unlock()
		if again {
			t.back(cl, j)
		}
	}
}

// takeFinishes takes the answers to calls out of the client's queue that which picks.
func (t *sender) takeFinishes(cl *Client, which func(*rpc.Call) bool) []*rpc.Call {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := &cl.queue
	var taken []*rpc.Call
	kept := q.jobs[:0]
	for _, j := range q.jobs[q.head:] {
		if c := j.answered(); c != nil && which(c) {
			taken = append(taken, c)
		} else {
			kept = append(kept, j)
		}
	}
	clear(q.jobs[len(kept):])
	q.jobs, q.head = kept, 0
	return taken
}

// drop abandons all jobs of a client that is gone.
func (t *sender) drop(cl *Client) {
	t.mu.Lock()
	jobs := cl.queue.jobs[cl.queue.head:]
	cl.queue.jobs, cl.queue.head = nil, 0
	t.mu.Unlock()
	for i := range jobs {
		t.s.abandon(&jobs[i])
	}
}

// abandon ends a job whose client is gone.
func (s *Server) abandon(j *job) {
	if j.kind == jobGlimpse {
		s.glimpsed(j.g)
	} else if c := j.answered(); c != nil {
		c.Finish(status.NotConnected)
	}
}

// takeWork returns a worker's bundle for a goroutine that has none.
func (s *Server) takeWork() *work {
	if k, ok := s.send.idle.Get().(*work); ok {
		return k
	}
	return workOf(env.New())
}

func (s *Server) giveWork(k *work) {
	k.e.Reset()
	s.send.idle.Put(k)
}

// do sends one job. It returns true when the connection turned out to be gone: the job waits for the next one.
func (s *Server) do(k *work, cl *Client, j *job) (again bool) {
	switch j.kind {
	case jobFinish:
		j.w.finish(k)
		return false
	case jobReply:
		s.glimpseReply(k, j.g)
		return false
	case jobParked:
		s.unpark(k, cl, j.call)
		return false
	case jobBlocking:
		return s.blocking(k, cl, &j.effect)
	case jobCompletion:
		return s.completion(k, cl, j.w)
	default:
		return s.glimpseAST(k, cl, j)
	}
}

// errGone says that a job has nobody to go to any more.
var errGone = errors.New("lockd: the client is gone")

// call makes one callback. A dead connection is status.NotConnected, an answer that did not come in time status.TimedOut.
func (s *Server) call(cl *Client, r *rpc.Request) error {
	p := cl.connection()
	if p == nil {
		if cl.gone.Load() {
			return errGone
		}
		return status.NotConnected
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.ns.Limits().LockTimeout)
	defer cancel()
	begin := time.Now()
	err := p.Callback(ctx, r)
	switch {
	case err == nil:
		s.count.asts.Observe(time.Since(begin))
		return nil
	case s.ctx.Err() != nil || cl.gone.Load():
		return errGone
	case ctx.Err() != nil:
		s.count.noAnswer.Inc()
		return status.TimedOut
	case status.Of(err) == status.NotConnected:
		cl.lost(p)
		return status.NotConnected
	}
	return err
}

// blocking sends a blocking AST.
func (s *Server) blocking(k *work, cl *Client, f *ldlm.Effect) (again bool) {
	if l, ok := s.ns.Lock(cl.id, f.Handle); !ok || !l.Blocked {
		return false // given back, or made smaller, meanwhile
	}
	m := wirepb.BlockingASTFromVTPool()
	defer m.ReturnToVTPool()
	wire.PutBlocking(m, f)
	err := s.call(cl, &rpc.Request{Op: wire.OpBlockingAST, Body: m})
	return s.told(k, cl, f, err, "a blocking AST for "+f.Res.String())
}

// told deals with the answer to a blocking or completion AST.
func (s *Server) told(k *work, cl *Client, f *ldlm.Effect, err error, what string) (again bool) {
	switch {
	case err == nil, err == errGone:
		return false
	case err == status.NotConnected:
		return true
	case status.Of(err) == status.BadHandle:
		// The client knows no such lock: its cancel is on the way, or the reply that granted it was lost.
		s.count.unknown.Inc()
		s.ns.Cancel(s.now(), cl.id, append(k.handles[:0], f.Handle), &k.fx)
		s.run(k)
		return false
	}
	s.evict(cl, fmt.Sprintf("it answered %s with: %v", what, err))
	return false
}

// completion sends a completion AST.
func (s *Server) completion(k *work, cl *Client, w *waiter) (again bool) {
	m := wirepb.CompletionASTFromVTPool()
	defer m.ReturnToVTPool()
	var a ldlm.Answer
	kind := w.outcome(k, &a)
	if kind == status.Interrupted {
		return false // withdrawn, or gone with its client
	}
	wire.PutCompletion(m, &w.effect, &a, kind)
	m.Contended = w.reply.Contended
	if kind == status.OK && w.res.Type == ldlm.TypeExtent && s.o.Objects != nil {
		var err error
		if m.Lvb, err = s.ns.FillLVB(k.e, w.res, m.Lvb[:0]); err != nil {
			s.log.Error("no lock value block for a lock", "resource", w.res.String(), "error", err)
		}
	}
	err := s.call(cl, &rpc.Request{Op: wire.OpCompletionAST, Body: m})
	if kind == status.OK && w.res.Type == ldlm.TypeFlock && status.Of(err) == status.BadHandle {
		s.count.unknown.Inc()
		s.ns.Flock(s.now(), &ldlm.FlockRequest{Res: w.res, Op: ldlm.FlockUnlock, Range: w.flock}, &k.fx)
		s.run(k)
		return false
	}
	return s.told(k, cl, &w.effect, err, "a completion AST for "+w.res.String())
}
