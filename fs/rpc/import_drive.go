package rpc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

const (
	// connectTimeout bounds one try: dial and CONNECT.
	connectTimeout = 10 * time.Second
	// pingInterval is how long a connection may be silent before the import pings.
	pingInterval = 5 * time.Second
	// stuckTimeout is how long one frame may take to pass.
	stuckTimeout = 60 * time.Second
)

// driver is the goroutine that connects an import and keeps it connected. Its decisions are machine's.
type driver struct {
	i       *Import
	m       machine
	started time.Time
	ls      *links       // nil while not connected
	first   bool         // not connected yet
	kind    string       // of the last loss, for the log
	after   wire.Transno // last_committed as the connect said
	stage   stage
}

// stage is a part of a recovery that runs beside the driver.
type stage struct {
	cancel context.CancelFunc // nil while none runs
	ended  chan event         // what to step with when it has ended, nothing when its connection was lost
	wg     sync.WaitGroup
}

func newDriver(i *Import) *driver {
	d := &driver{i: i, started: time.Now(), first: true}
	d.m.replays = i.o.replays()
	d.stage.ended = make(chan event, 1)
	i.mu.Lock()
	d.m.setAddresses(len(i.addresses))
	i.mu.Unlock()
	return d
}

// run drives until ctx ends.
func (d *driver) run(ctx context.Context) {
	in := d.wait(ctx, -1)
	for {
		in.now, in.jitter = time.Since(d.started), rand.Float64()
		out := d.m.step(in)
		d.publish(out.action)
		switch out.action {
		case actDial:
			in = d.dial(ctx, out.address)
		case actReplay:
			i, v, after := d.i, d.recovery(), d.after
			i.stats.recoveries.Inc()
			i.log.Info("the target was started again, replaying", "after", uint64(after))
			d.begin(evReplayed, func(ctx context.Context) error { return i.replay(ctx, v, after) })
			in = d.wait(ctx, -1)
		case actRestore:
			i, v := d.i, d.recovery()
			d.begin(evRestored, func(ctx context.Context) error { return i.restore(ctx, v) })
			in = d.wait(ctx, -1)
		case actAwait:
			d.begin(evWindowOver, d.recovery().await)
			in = d.wait(ctx, -1)
		case actResend:
			d.resend()
			in = input{event: evRecovered}
		case actFail:
			d.fail()
			in = input{event: evFlushed}
		case actWait, actRefuse:
			d.cut()
			in = d.wait(ctx, out.delay)
		case actStop:
			d.cut()
			d.i.table.releaseOrphans()
			return
		default: // actFlow, actNothing
			in = d.wait(ctx, -1)
		}
	}
}

func (d *driver) recovery() *Recovery { return &Recovery{i: d.i, ls: d.ls} }

// begin runs a part of a recovery; ev follows when it has ended with its connection standing.
func (d *driver) begin(ev event, run func(ctx context.Context) error) {
	s := &d.stage
	s.wg.Wait() // the part before is over, but for its last instructions
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.wg.Go(func() {
		defer cancel()
		if run(ctx) == nil {
			s.ended <- ev
		}
	})
}

// end gives up the part that runs, and waits for it. Precondition: the connection is closed.
func (s *stage) end() {
	if s.cancel == nil {
		return
	}
	s.cancel()
	s.wg.Wait()
	s.cancel = nil
	select {
	case <-s.ended:
	default:
	}
}

// publish shows the machine's state to the import, and lets requests flow when it says so.
func (d *driver) publish(a action) {
	i := d.i
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.state == StateClosed {
		return
	}
	if a == actFlow {
		i.refusal, i.lastErr = nil, nil
		i.heard.Store(d.ls.control.lastHeard.Load())
		i.full.Store(d.ls)
		select {
		case <-d.ls.ended: // its reader may have looked before
			i.full.CompareAndSwap(d.ls, nil)
		default:
		}
	}
	if i.state != d.m.state || a == actRefuse {
		if i.state != d.m.state {
			i.history.add(time.Now(), d.m.state)
		}
		i.state = d.m.state
		i.changedLocked()
	}
}

// wait returns the next event that the machine's state can take; delay below 0 is for ever.
func (d *driver) wait(ctx context.Context, delay time.Duration) input {
	until := time.Now().Add(delay)
	for {
		if ev, ok := d.wanted(); ok {
			return input{event: ev}
		}
		var ended chan struct{}
		next := time.Until(until)
		if d.ls != nil {
			ended = d.ls.ended
			next = d.ping(time.Now())
		}
		var timer *time.Timer
		var fired <-chan time.Time
		if d.ls != nil || delay >= 0 {
			timer = time.NewTimer(max(next, 0))
			fired = timer.C
		}
		select {
		case <-ctx.Done():
			return input{event: evClose}
		case <-ended:
			return input{event: evLost}
		case ev := <-d.stage.ended:
			return input{event: ev}
		case <-d.i.kick:
		case <-fired:
			if d.ls == nil {
				return input{event: evTimer}
			}
		}
		if timer != nil {
			timer.Stop()
		}
	}
}

// wanted takes what others have asked of the driver.
func (d *driver) wanted() (event, bool) {
	i := d.i
	i.mu.Lock()
	w := i.want
	i.want.connect, i.want.evicted, i.want.resend, i.want.addresses = false, false, false, false
	if w.addresses {
		d.m.setAddresses(len(i.addresses))
	}
	i.mu.Unlock()
	switch {
	case d.ls == nil && d.m.state == StateNew:
		return evConnect, w.connect
	case d.ls == nil:
		return evConnect, w.connect || w.addresses
	case w.evicted:
		return evEvicted, true
	case w.resend && d.m.state == StateFull:
		d.resend()
	}
	return 0, false
}

// dial tries one address.
func (d *driver) dial(ctx context.Context, address int) input {
	i := d.i
	i.mu.Lock()
	addr := i.addresses[min(address, len(i.addresses)-1)]
	i.want.connect, i.want.evicted = false, false
	i.attempts++
	i.mu.Unlock()
	try, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	ls, reply, err := d.connect(try, addr)
	if ctx.Err() != nil {
		if ls != nil {
			ls.close(errClosed)
		}
		return input{event: evClose}
	}
	if err != nil {
		return d.dialFailed(addr, err)
	}
	d.ls = ls
	d.after = wire.Transno(reply.LastCommitted)
	if d.m.generation != 0 && d.m.instance != reply.Instance && reply.Recovered && !reply.Recovering {
		i.unreplayed(ctx, d.after)
	}
	i.instance.Store(reply.Instance)
	i.mu.Lock()
	i.address = addr
	i.mu.Unlock()
	n := i.o.MaxInFlight
	if reply.MaxRpcsInFlight > 0 {
		n = min(n, int(reply.MaxRpcsInFlight))
	}
	i.grantInFlight(n)
	i.advance(d.after)
	if !d.first {
		i.stats.reconnects.Inc()
	}
	d.first = false
	i.log.Debug("connected", "address", addr, "instance", reply.Instance, "recovered", reply.Recovered)
	if i.o.OnConnect != nil {
		i.o.OnConnect(reply)
	}
	ls.readers.Go(func() { i.read(ls, ls.control) })
	if ls.bulk != ls.control {
		ls.readers.Go(func() { i.read(ls, ls.bulk) })
	}
	return input{
		event: evConnected, generation: reply.Generation, instance: reply.Instance, recovered: reply.Recovered, recovering: reply.Recovering,
	}
}

func (d *driver) dialFailed(addr string, err error) input {
	i := d.i
	refused := status.Of(err) == status.Refused
	i.mu.Lock()
	i.lastErr = fmt.Errorf("rpc: %s at %s: %w", i.o.Target, addr, err)
	if refused {
		i.refusal = i.lastErr
	}
	i.mu.Unlock()
	if k := err.Error(); k != d.kind { // the same failure again is no news
		d.kind = k
		i.log.Warn("cannot connect, trying again", "address", addr, "error", err)
	}
	if refused {
		return input{event: evRefused}
	}
	// Nobody listens there, or the server says something: the host is up, and the target is about to be.
	var said *status.Error
	return input{event: evFailed, quick: errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &said)}
}

// connect opens the connections to a server.
func (d *driver) connect(ctx context.Context, addr string) (*links, *wirepb.ConnectReply, error) {
	control, reply, err := d.open(ctx, addr, false, nil)
	if err != nil {
		return nil, nil, err
	}
	ls := &links{control: control, bulk: control, generation: reply.Generation, instance: reply.Instance, ended: make(chan struct{})}
	if d.i.o.Bulk {
		bulk, second, err := d.open(ctx, addr, true, reply)
		if err == nil && second.Generation != reply.Generation {
			bulk.close(errClosed)
			err = status.Errorf(status.Protocol, "rpc: the bulk connection joined export %d instead of %d", second.Generation, reply.Generation)
		}
		if err != nil {
			control.close(errClosed)
			return nil, nil, fmt.Errorf("rpc: bulk connection: %w", err)
		}
		ls.bulk = bulk
	}
	return ls, reply, nil
}

// open makes one connection and says CONNECT. joins is the reply on the control connection, for the bulk one.
func (d *driver) open(ctx context.Context, addr string, bulk bool, joins *wirepb.ConnectReply) (*link, *wirepb.ConnectReply, error) {
	o := &d.i.o
	nc, err := o.Transport.Dial(ctx, addr)
	if err != nil {
		return nil, nil, err
	}
	l := newLink(nc)
	limit := leadLimit
	if o.Callback != nil {
		limit = servingLimit
	}
	l.role = newRole(l, limit)
	stop := context.AfterFunc(ctx, func() { l.close(context.Cause(ctx)) })
	defer stop()
	r := &wirepb.ConnectRequest{
		Version: wire.Version, Fsname: []byte(o.FSName), Target: []byte(o.Target), Uuid: o.UUID[:], Peer: []byte(o.Peer),
		Kind: o.Kind, ReadOnly: o.ReadOnly, Bulk: bulk, Generation: d.m.generation, Instance: d.m.instance,
		LastCommitted: d.i.committed.Load(),
	}
	if joins != nil {
		r.Generation, r.Instance = joins.Generation, joins.Instance
	}
	reply, err := d.handshake(l, r)
	if err == nil && !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		err = l.err(err)
		l.close(err)
		return nil, nil, err
	}
	return l, reply, nil
}

// handshake sends CONNECT and takes its reply. Nobody else uses the link yet.
func (d *driver) handshake(l *link, r *wirepb.ConnectRequest) (*wirepb.ConnectReply, error) {
	var buf []byte
	if err := encodeBody(&buf, r); err != nil {
		return nil, err
	}
	d.i.table.mu.Lock()
	d.i.table.seq++
	h := wire.Header{Op: wire.OpConnect, XID: wire.XID(d.i.table.seq<<indexBits | indexLimit - 1)}
	d.i.table.mu.Unlock()
	h.BodyLen = uint32(len(buf) - wire.HeaderSize)
	h.Put(buf, buf[wire.HeaderSize:])
	if err := l.send(buf, nil, 0); err != nil {
		return nil, err
	}
	var got wire.Header
	if err := l.header(&got); err != nil {
		return nil, err
	}
	if got.Op != wire.OpConnect || got.XID != h.XID || got.Flags&wire.FlagReply == 0 || got.BulkLen > 0 {
		return nil, errUnasked(&got)
	}
	body, err := l.body(&buf, &got)
	if err != nil {
		return nil, err
	}
	l.frameDone()
	if got.Status != status.OK {
		return nil, errorOf(got.Status, body)
	}
	reply := &wirepb.ConnectReply{}
	if err := reply.UnmarshalVT(body); err != nil {
		return nil, fmt.Errorf("rpc: %w: the reply to CONNECT: %w", status.Protocol, err)
	}
	if v := reply.Version; v+1 < wire.Version || v > wire.Version+1 {
		return nil, status.Errorf(status.Refused, "rpc: the server speaks protocol version %d, this program %d: upgrade the older one", v, wire.Version)
	}
	return reply, nil
}

// cut closes the connections and waits for their readers.
func (d *driver) cut() {
	ls := d.ls
	if ls == nil {
		return
	}
	d.ls = nil
	d.i.full.CompareAndSwap(ls, nil)
	if d.stage.cancel != nil {
		d.stage.cancel()
	}
	lost := ls.control.err(nil)
	if lost == nil {
		lost = ls.bulk.err(nil)
	}
	ls.close(errors.New("rpc: the other connection ended"))
	ls.readers.Wait()
	d.stage.end()
	if lost != nil && d.m.state != StateClosed {
		d.kind = ""
		d.i.log.Info("connection lost", "error", lost)
	}
}

// fail ends what was in flight when the export went.
func (d *driver) fail() {
	d.i.evictions.Add(1)
	d.i.stats.evictions.Inc()
	if !d.m.connected {
		d.cut()
	}
	d.i.table.releaseOrphans()
	lost := 0
	if d.i.kept != nil && d.i.table.settle(d.i.life) == nil {
		lost = d.i.kept.clear()
	}
	d.i.log.Warn("evicted by the target; what was in flight has failed", "given_up", lost)
}

// resend sends the orphans that were lost with the last connection.
func (d *driver) resend() {
	for _, f := range d.i.table.lostOrphans() {
		h := wire.Header{Op: f.op}
		if !d.i.transmit(f, d.ls, &h, nil) {
			return
		}
	}
}

// ping asks for a sign of life on silent connections, closes dead ones, and returns when to look again.
func (d *driver) ping(now time.Time) time.Duration {
	next, dead := pingInterval, pingInterval+d.i.silence(now)
	for n, l := range [...]*link{d.ls.control, d.ls.bulk} {
		if n == 1 && l == d.ls.control {
			break
		}
		silent := now.Sub(time.Unix(0, l.lastHeard.Load()))
		if err := l.stuck(now, stuckTimeout); err != nil {
			l.close(err)
		}
		switch {
		case silent >= dead:
			d.i.stats.timeouts.Inc()
			l.close(status.Errorf(status.TimedOut, "rpc: no sign of life for %v", silent.Round(time.Second)))
		case silent >= pingInterval:
			d.sendPing(l)
			next = min(next, max(dead-silent, time.Second))
		default:
			next = min(next, pingInterval-silent)
		}
	}
	return max(next, time.Millisecond)
}

// sendPing sends a ping whose reply the reader drops; one per connection is on its way at most.
func (d *driver) sendPing(l *link) {
	i := d.i
	if l.pinging.Swap(true) {
		return
	}
	index, ok := i.pings.try()
	if !ok {
		return
	}
	f := &i.table.flights[index]
	f.op, f.pool, f.slot = wire.OpPing, i.pings, 0
	if err := encodeBody(&f.buf, nil); err != nil {
		panic(err) // an empty body
	}
	l.pinged.Store(time.Now().UnixNano())
	if !i.table.beginOrphan(f, l) {
		i.table.free(f)
		return
	}
	h := wire.Header{Op: wire.OpPing, XID: f.xid, Generation: d.ls.generation}
	h.Put(f.buf, f.buf[wire.HeaderSize:])
	if sent, _ := l.trySend(f.buf, d.i.silence(time.Now())); !sent { // an error closes the link, and its reader drops the ping
		i.table.undo(f, l)
		l.pinging.Store(false)
	}
}
