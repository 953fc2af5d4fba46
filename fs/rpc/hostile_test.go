package rpc_test

import (
	"errors"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// raw is a peer that sends what it likes.
type raw struct {
	t  testing.TB
	nc net.Conn
}

func (c *cluster) raw() *raw {
	c.t.Helper()
	nc, err := c.transport.Dial(testContext(c.t), c.addr)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { nc.Close() })
	nc.SetDeadline(time.Now().Add(10 * time.Second))
	return &raw{c.t, nc}
}

func frame(h wire.Header, body []byte) []byte {
	h.BodyLen = uint32(len(body))
	b := make([]byte, wire.HeaderSize, wire.HeaderSize+len(body))
	h.Put(b, body)
	return append(b, body...)
}

func (r *raw) send(b []byte) { r.nc.Write(b) } // the peer may have cut us off already

func (r *raw) receive() (h wire.Header, body []byte, err error) {
	var b [wire.HeaderSize]byte
	if _, err = io.ReadFull(r.nc, b[:]); err != nil {
		return h, nil, err
	}
	if err = h.Parse(b[:]); err != nil {
		return h, nil, err
	}
	body = make([]byte, h.BodyLen+h.BulkLen)
	_, err = io.ReadFull(r.nc, body)
	return h, body, err
}

func connectFrame() []byte {
	return frame(wire.Header{Op: wire.OpConnect, XID: 1}, encode(&wirepb.ConnectRequest{
		Version: wire.Version, Target: []byte(targetName), Uuid: make([]byte, 16), Kind: rpc.KindClient,
	}))
}

func (r *raw) connect() {
	r.t.Helper()
	r.send(connectFrame())
	if h, _, err := r.receive(); err != nil || h.Status != 0 {
		r.t.Fatal(h.Status, err)
	}
}

// cutOff waits for the connection's end.
func (r *raw) cutOff() {
	r.t.Helper()
	for {
		if _, _, err := r.receive(); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || !isTimeout(err) {
				return
			}
			r.t.Fatalf("not cut off: %v", err)
		}
	}
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func patched(b []byte, at int, v byte) []byte {
	b = append([]byte(nil), b...)
	b[at] = v
	return b
}

func TestServerCutsOffHostilePeers(t *testing.T) {
	const gen = 1
	get := func(xid uint64, slot uint32) []byte {
		return frame(wire.Header{Op: wire.OpGetattr, XID: wire.XID(xid), Slot: slot, Generation: gen}, nil)
	}
	for _, tt := range []struct {
		name    string
		connect bool
		send    []byte
	}{
		{"http", false, []byte("GET / HTTP/1.1\r\nHost: this one is long enough for a whole header of ours\r\n\r\n")},
		{"magic after connect", true, patched(get(2, 0), 0, 'x')},
		{"no connect first", false, get(2, 0)},
		{"reply first", false, frame(wire.Header{Op: wire.OpConnect, Flags: wire.FlagReply}, nil)},
		{"connect with garbage", false, frame(wire.Header{Op: wire.OpConnect}, []byte{0xff, 0xff, 0xff})},
		{"connect of a short uuid", false, frame(wire.Header{Op: wire.OpConnect}, encode(&wirepb.ConnectRequest{Version: 1, Uuid: []byte{1}}))},
		{"second connect", true, connectFrame()},
		{"huge body", true, patched(get(2, 0), 51, 0xff)},
		{"huge bulk", true, patched(get(2, 0), 55, 0xff)},
		{"bulk over brw_size", true, frame(wire.Header{Op: wire.OpWrite, XID: 2, BulkLen: 2 << 20, Generation: gen}, nil)},
		{"unknown flags", true, patched(get(2, 0), 5, 0x80)},
		{"header checksum", true, patched(get(2, 0), 9, 7)},
		{"body checksum", true, patched(frame(wire.Header{Op: wire.OpGetattr, XID: 2, Generation: gen}, make([]byte, 100)), 100, 7)},
		{"slot out of range", true, frame(wire.Header{Op: wire.OpSetattr, XID: 2, Slot: 9999, Generation: gen}, nil)},
		{"modifying without a slot", true, frame(wire.Header{Op: wire.OpSetattr, XID: 2, Generation: gen}, nil)},
		{"reading with a slot", true, get(2, 3)},
		{"reply to nothing", true, frame(wire.Header{Op: wire.OpConfigChanged, Flags: wire.FlagReply | wire.FlagCallback, XID: 5}, nil)},
		{"reply without callback", true, frame(wire.Header{Op: wire.OpGetattr, Flags: wire.FlagReply, XID: 5}, nil)},
		{"callback to a server", true, frame(wire.Header{Op: wire.OpConfigChanged, Flags: wire.FlagCallback, XID: 5}, nil)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachTransport(t, func(t *testing.T, c *cluster) {
				reg := stats.NewRegistry()
				c.options.Stats = reg
				c.target.brwSize = 1 << 20
				c.start()
				r := c.raw()
				if tt.connect {
					r.connect()
				}
				r.send(tt.send)
				r.cutOff()
				i := c.connect(func(o *rpc.ImportOptions) { o.UUID[5] = 1 })
				if err := echo(testContext(t), i, "others go on"); err != nil {
					t.Fatal(err)
				}
				closeImport(t, i)
				r.nc.Close()
				c.stop()
				if n := reg.Counter("rpc.server.protocol_errors", "").Load(); n != 1 {
					t.Errorf("%d protocol errors counted", n)
				}
			})
		})
	}
}

func TestServerCutsOffWhoExceedsTheAgreedInFlight(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		c.target.maxInFlight = 4
		c.target.serve = func(_ *env.Env, call *rpc.Call) error {
			<-call.Context().Done()
			return nil
		}
		c.start()
		before := runtime.NumGoroutine()
		r := c.raw()
		r.connect()
		for n := range 500 {
			r.send(frame(wire.Header{Op: wire.OpGetattr, XID: wire.XID(n + 2), Generation: 1}, nil))
		}
		if n := runtime.NumGoroutine(); n > before+20 {
			t.Errorf("%d goroutines for one peer", n-before)
		}
		r.cutOff()
	})
}

// A peer that asks and never takes the replies costs bounded memory and is cut off.
func TestServerCutsOffWhoTakesNoReplies(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		c.target.maxInFlight = 2
		c.options.StuckTimeout = 50 * time.Millisecond
		c.start()
		r := c.raw()
		r.connect()
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			body := encode(&wirepb.ReadRequest{Length: 4 << 20})
			for n := 2; ; n++ {
				if _, err := r.nc.Write(frame(wire.Header{Op: wire.OpRead, XID: wire.XID(n), Generation: 1}, body)); err != nil {
					return
				}
			}
		}()
		<-gone
	})
}

func TestSlowLoris(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		c.options.ConnectTimeout = 50 * time.Millisecond
		c.start()
		silent, slow := c.raw(), c.raw()
		slow.send(connectFrame()[:20])
		silent.cutOff()
		slow.cutOff()
	})
}

// hostileServer accepts connections, answers CONNECT and then does as told.
func hostileServer(t *testing.T, c *cluster, then func(r *raw)) *rpc.Import {
	l, err := c.transport.Listen(c.addr)
	if err != nil {
		t.Fatal(err)
	}
	c.addr = l.Addr().String()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			r := &raw{t, nc}
			nc.SetDeadline(time.Now().Add(5 * time.Second))
			if h, _, err := r.receive(); err == nil {
				r.send(frame(wire.Header{Op: wire.OpConnect, XID: h.XID, Flags: wire.FlagReply}, encode(&wirepb.ConnectReply{
					Version: wire.Version, Generation: 1, Instance: 1, Recovered: true})))
				then(r)
			}
			nc.Close()
		}
	}()
	i, err := rpc.NewImport(c.options4(nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		closeImport(t, i)
		l.Close()
		<-done
	})
	if err := i.Connect(testContext(t)); err != nil {
		t.Fatal(err)
	}
	return i
}

func TestClientCutsOffHostileServers(t *testing.T) {
	reply := func(h wire.Header, bulk int) []byte {
		h.Flags, h.BulkLen = wire.FlagReply, uint32(bulk)
		return append(frame(h, nil), make([]byte, bulk)...)
	}
	for name, answer := range map[string]func(h wire.Header) []byte{
		"reply to nothing":     func(h wire.Header) []byte { h.XID += 1 << 20; return reply(h, 0) },
		"reply to a free slot": func(h wire.Header) []byte { h.XID++; return reply(h, 0) },
		"index out of range":   func(h wire.Header) []byte { h.XID |= 1023; return reply(h, 0) },
		"other operation":      func(h wire.Header) []byte { h.Op = wire.OpStatfs; return reply(h, 0) },
		"bulk over Into":       func(h wire.Header) []byte { return reply(h, 101) },
		"huge bulk":            func(h wire.Header) []byte { return patched(reply(h, 0), 55, 0xff) },
		"request":              func(h wire.Header) []byte { h.Flags = 0; return frame(h, nil) },
		"callback reply":       func(h wire.Header) []byte { h.Flags = wire.FlagReply | wire.FlagCallback; return frame(h, nil) },
		"two replies":          func(h wire.Header) []byte { return append(reply(h, 0), reply(h, 0)...) },
		"callbacks over the agreed": func(h wire.Header) (all []byte) {
			for n := range 200 {
				all = append(all, frame(wire.Header{Op: wire.OpConfigChanged, Flags: wire.FlagCallback, XID: wire.XID(n)}, nil)...)
			}
			return all
		},
		"callback with bulk": func(h wire.Header) []byte {
			return frame(wire.Header{Op: wire.OpConfigChanged, Flags: wire.FlagCallback, BulkLen: 9}, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachTransport(t, func(t *testing.T, c *cluster) {
				hostile := true
				i := hostileServer(t, c, func(r *raw) {
					for {
						h, _, err := r.receive()
						if err != nil {
							return
						}
						if hostile {
							hostile = false
							r.send(answer(h))
							r.cutOff() // by the client
							return
						}
						r.send(reply(wire.Header{Op: h.Op, XID: h.XID}, 100))
					}
				})
				// After the cut the client connects anew and asks again; a guard of bytes behind Into stays as it was.
				into := make([]byte, 200)
				for n := range into {
					into[n] = 0xaa
				}
				for range 2 {
					r := &rpc.Request{Op: wire.OpGetattr, Into: into[:100:100]}
					if err := i.Do(testContext(t), r); err != nil {
						t.Fatal(err)
					}
				}
				for _, b := range into[100:] {
					if b != 0xaa {
						t.Fatal("bytes behind Into were written")
					}
				}
			})
		})
	}
}

func TestGarbageReplyBodyIsAnError(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		c.target.serve = func(_ *env.Env, call *rpc.Call) error {
			call.RawReply = []byte{0xff, 0xff, 0xff, 0xff}
			return nil
		}
		c.start()
		i := c.connect(nil)
		err := i.Do(testContext(t), &rpc.Request{Op: wire.OpGetattr, Reply: &wirepb.EntryReply{}})
		if !errors.Is(err, status.Protocol) {
			t.Fatal(err)
		}
	})
}

// FuzzServerInput gives a server whatever bytes after a good CONNECT: it must neither panic nor hang, and go on.
func FuzzServerInput(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add(frame(wire.Header{Op: wire.OpGetattr, XID: 2, Generation: 1}, nil))
	f.Add(frame(wire.Header{Op: wire.OpGetxattr, XID: 2, Generation: 1}, encode(&wirepb.XattrRequest{Name: []byte("x")})))
	f.Add(append(frame(wire.Header{Op: wire.OpWrite, XID: 2, Generation: 1, BulkLen: 3}, nil), 1, 2, 3))
	c := newCluster(f, "pipe")
	c.start()
	f.Fuzz(func(t *testing.T, b []byte) {
		nc, err := c.transport.Dial(t.Context(), c.addr)
		if err != nil {
			t.Fatal(err)
		}
		r := &raw{t, nc}
		nc.SetDeadline(time.Now().Add(5 * time.Second))
		r.connect()
		go func() { io.Copy(io.Discard, nc) }()
		nc.Write(b)
		nc.Close()
	})
}

// FuzzClientInput is a server that answers a request with whatever bytes: the client must neither panic nor hang.
func FuzzClientInput(f *testing.F) {
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
	f.Add(frame(wire.Header{Op: wire.OpGetattr, XID: 2, Flags: wire.FlagReply}, nil))
	f.Add(frame(wire.Header{Op: wire.OpConfigChanged, XID: 2, Flags: wire.FlagCallback}, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := newCluster(t, "pipe")
		l, err := c.transport.Listen(c.addr)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			nc, err := l.Accept()
			l.Close()
			if err != nil {
				return
			}
			defer nc.Close()
			nc.SetDeadline(time.Now().Add(5 * time.Second))
			r := &raw{t, nc}
			h, _, err := r.receive()
			if err != nil {
				return
			}
			r.send(frame(wire.Header{Op: wire.OpConnect, XID: h.XID, Flags: wire.FlagReply},
				encode(&wirepb.ConnectReply{Version: wire.Version, Generation: 1, Instance: 1})))
			if h, _, err = r.receive(); err != nil {
				return
			}
			if len(b) >= 16 { // so that the fuzzer gets past the look-up of the request
				copy(b[8:16], frame(h, nil)[8:16])
			}
			r.send(b)
		}()
		i := c.connect(func(o *rpc.ImportOptions) { o.RetryLimit = time.Millisecond })
		i.Do(testContext(t), &rpc.Request{Op: wire.OpGetattr, Reply: &wirepb.EntryReply{}, Into: make([]byte, 100)})
		closeImport(t, i)
		<-done
	})
}
