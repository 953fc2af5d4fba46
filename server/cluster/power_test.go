package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/lov"
	"github.com/strakefs/strake/fs/osc"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/ost"
	"github.com/strakefs/strake/store/memdev"
)

// power is OSTs on disks in memory, all of which lose their power at once.
type power struct {
	t     testing.TB
	pipe  *rpc.Pipe
	disks []*memdev.Disk
	o     ost.Options

	devices []*memdev.Device
	osts    []*ost.OST
	server  *rpc.Server
	served  sync.WaitGroup
}

const powered = "oss"

func newPower(t testing.TB, osts int, o ost.Options) *power {
	p := &power{t: t, pipe: rpc.NewPipe(), o: o}
	for range osts {
		p.disks = append(p.disks, memdev.NewDisk())
	}
	p.on()
	t.Cleanup(p.off)
	for i := range osts {
		mdt, err := rpc.NewImport(rpc.ImportOptions{
			Transport: p.pipe, Addresses: []string{powered}, FSName: "strake", Target: fmt.Sprintf("strake-OST%04x", i),
			UUID: [16]byte{1, byte(i)}, Peer: "mds", Kind: rpc.KindMDT,
		})
		if err != nil {
			t.Fatal(err)
		}
		err = mdt.Connect(bg)
		if err == nil {
			err = mdt.Do(bg, &rpc.Request{Op: wire.OpPrecreate, Body: &wirepb.PrecreateRequest{Upto: 32}, Reply: &wirepb.PrecreateReply{}})
		}
		if err = errors.Join(err, mdt.Close(bg)); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// on starts the OSTs.
func (p *power) on() {
	p.t.Helper()
	targets := map[string]rpc.Target{}
	p.devices, p.osts = nil, nil
	for i, disk := range p.disks {
		dev, err := memdev.Open(disk, memdev.Options{Specs: ost.Specs(), CommitInterval: 20 * time.Millisecond})
		if err != nil {
			p.t.Error(err)
			return
		}
		o := p.o
		o.Name, o.FSName, o.Device = fmt.Sprintf("strake-OST%04x", i), "strake", dev
		x, err := ost.New(bg, o)
		if err != nil {
			p.t.Error(err)
			return
		}
		targets[o.Name] = x
		p.devices, p.osts = append(p.devices, dev), append(p.osts, x)
	}
	p.server = rpc.NewServer(rpc.ServerOptions{Find: func(n string) (rpc.Target, error) { return targets[n], nil }})
	l, err := p.pipe.Listen(powered)
	if err != nil {
		p.t.Error(err)
		return
	}
	srv := p.server
	p.served.Go(func() { _ = srv.Serve(l) })
}

// off ends what is left of the OSTs.
func (p *power) off() {
	ctx, cancel := context.WithTimeout(bg, 10*time.Second)
	defer cancel()
	_ = p.server.Close(ctx)
	p.served.Wait()
	for i, x := range p.osts {
		if err := errors.Join(x.Close(ctx), p.devices[i].Close()); err != nil {
			p.t.Error(err)
		}
	}
}

// cut takes the power from all of them: what was not flushed is lost. on follows.
func (p *power) cut() {
	for _, d := range p.devices {
		d.Crash()
	}
	p.off()
}

// open opens a file of two stripes.
func (d *data) openOn(t testing.TB, id, stripes int) *lov.File {
	return d.open(t, id, stripes, layout.MinStripeSize)
}

// cord is a network cable that can be pulled.
type cord struct {
	rpc.Transport
	mu     sync.Mutex
	pulled bool       // guarded by mu
	conns  []net.Conn // guarded by mu
}

func (c *cord) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pulled {
		return nil, errors.New("the cord is pulled")
	}
	nc, err := c.Transport.Dial(ctx, addr)
	if err == nil {
		c.conns = append(c.conns, nc)
	}
	return nc, err
}

func (c *cord) pull() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pulled = true
	for _, nc := range c.conns {
		_ = nc.Close()
	}
	c.conns = nil
}

func (c *cord) plug() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pulled = false
}

// shadow is a file and what it has to hold.
type shadow struct {
	files []*lov.File // of each client
	want  []byte
	rnd   *rand.Rand
	step  int
}

const shadowSpan = 300 << 10

// change does one call of one of the clients, and notes what it has changed once it is acknowledged.
func (s *shadow) change() error {
	s.step++
	f := s.files[s.rnd.IntN(len(s.files))]
	off := s.rnd.IntN(shadowSpan)
	n := min(1+s.rnd.IntN(60<<10), shadowSpan-off)
	switch s.rnd.IntN(10) {
	case 0:
		if err := f.Truncate(bg, uint64(off), now()); err != nil {
			return err
		}
		s.want = append(s.want[:min(off, len(s.want))], make([]byte, max(0, off-len(s.want)))...)
	case 1:
		if err := f.Fallocate(bg, lov.PunchHole|lov.KeepSize, uint64(off), uint64(n), now()); err != nil {
			return err
		}
		clear(s.want[min(off, len(s.want)):min(off+n, len(s.want))])
	case 2:
		return f.Sync(bg)
	default:
		b := bytes.Repeat([]byte{byte(s.step)}, n)
		h := lov.How{Direct: s.rnd.IntN(4) == 0}
		if k, err := f.Write(bg, [][]byte{b}, uint64(off), now(), &h); err != nil || k != n {
			return fmt.Errorf("%d of %d bytes: %w", k, n, err)
		}
		s.want = append(s.want, make([]byte, max(0, off+n-len(s.want)))...)
		copy(s.want[off:], b)
	}
	return nil
}

func (s *shadow) check(t *testing.T, f *lov.File, when string) {
	t.Helper()
	got := make([]byte, shadowSpan+1)
	n, err := f.ReadAt(bg, got, 0)
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	if got = got[:n]; !bytes.Equal(got, s.want) {
		at := 0
		for at < min(len(got), len(s.want)) && got[at] == s.want[at] {
			at++
		}
		t.Fatalf("%s: after %d steps the file has %d bytes, want %d; they differ from %d on", when, s.step, len(got), len(s.want), at)
	}
}

// TestPowerCutsOfAllOSTsLoseNothing: all OSTs lose power at once, again and again, while two clients write, cut and punch the same files
// in turn, so that locks move between them. No acknowledged byte is lost while the clients live; and after a sync none when they die
// together with the OSTs.
func TestPowerCutsOfAllOSTsLoseNothing(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	const osts, files, cuts = 2, 3, 5
	p := newPower(t, osts, ost.Options{CommitEvery: 40 * time.Millisecond, ReplayWindow: 20 * time.Second})
	cords := []*cord{{Transport: p.pipe}, {Transport: p.pipe}}
	var clients []*data
	for i, c := range cords {
		clients = append(clients, lockedClient(t, c, powered, osts, byte(i+1), osc.Options{MaxAge: 3 * time.Millisecond, RPCBytes: 64 << 10}))
	}
	var stop atomic.Bool
	var g sync.WaitGroup
	shadows := make([]*shadow, files)
	var steps atomic.Int64
	for i := range shadows {
		s := &shadow{rnd: rand.New(rand.NewPCG(seed, uint64(i)))}
		for _, c := range clients {
			s.files = append(s.files, c.openOn(t, i+1, 1+i%osts))
		}
		shadows[i] = s
		g.Go(func() {
			for !stop.Load() {
				if err := s.change(); err != nil {
					t.Errorf("file %d, step %d: %v", i+1, s.step, err)
					return
				}
				steps.Add(1)
			}
		})
	}
	rnd := rand.New(rand.NewPCG(seed, 99))
	for range cuts {
		for upTo := steps.Load() + 40 + rnd.Int64N(100); steps.Load() < upTo && !t.Failed(); {
			<-time.After(time.Millisecond)
		}
		p.cut()
		p.on()
	}
	stop.Store(true)
	g.Wait()
	for i, s := range shadows {
		if t.Failed() {
			return
		}
		for k, f := range s.files {
			s.check(t, f, fmt.Sprintf("file %d, client %d", i+1, k))
			if err := f.Sync(bg); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d steps, %d power cuts", steps.Load(), cuts)
	p.cut()
	for i, c := range cords {
		c.pull()
		ctx, cancel := context.WithTimeout(bg, 50*time.Millisecond)
		_ = clients[i].close(ctx) // What it says is that it could not say good-bye.
		cancel()
	}
	p.o.ReplayWindow = 200 * time.Millisecond
	p.on()
	late := lockedClient(t, p.pipe, powered, osts, 9, osc.Options{})
	for i, s := range shadows {
		s.check(t, late.openOn(t, i+1, 1+i%osts), fmt.Sprintf("file %d, after the end of all", i+1))
	}
}

// TestEvictedClientReplaysNothing: a client that misses the window keeps nothing of what it was answered. Its copies never reach a file, and
// the file's next call is told, once.
func TestEvictedClientReplaysNothing(t *testing.T) {
	p := newPower(t, 1, ost.Options{CommitEvery: time.Hour, ReplayWindow: 300 * time.Millisecond})
	line := &cord{Transport: p.pipe}
	a := lockedClient(t, line, powered, 1, 1, osc.Options{})
	b := lockedClient(t, p.pipe, powered, 1, 2, osc.Options{})
	fa, fb := a.openOn(t, 1, 1), b.openOn(t, 1, 1)
	write(t, fa, bytes.Repeat([]byte("a"), 1000), 0, false)
	if err := fa.Flush(bg); err != nil {
		t.Fatal(err)
	}
	line.pull()
	p.cut()
	p.on()
	write(t, fb, []byte("bbbb"), 0, false)
	if err := fb.Sync(bg); err != nil {
		t.Fatal(err)
	}
	line.plug()
	var err error
	for begin := time.Now(); err == nil && time.Since(begin) < 20*time.Second; {
		if _, err = fa.Glimpse(bg); err == nil {
			err = fa.TakeError()
		}
	}
	if status.Of(err) != status.IO {
		t.Fatalf("the file whose data is lost was told %v", err)
	}
	if err := fa.TakeError(); err != nil {
		t.Errorf("told again: %v", err)
	}
	p.cut()
	p.on()
	got := make([]byte, 2000)
	n, err := fb.ReadAt(bg, got, 0)
	if err != nil || !slices.Equal(got[:n], []byte("bbbb")) {
		t.Fatalf("the file holds %q: %v", got[:n], err)
	}
}
