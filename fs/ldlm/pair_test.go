package ldlm_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
)

// message is on its way between a client and the server; they arrive in any order.
type message struct {
	toServer bool
	client   ldlm.ClientID
	kind     string
	local    ldlm.Handle // the client's handle
	remote   ldlm.Handle // the server's
	req      *ldlm.Request
	answer   ldlm.Answer
	bits     ldlm.Bits
}

// use is a lock that a client works under.
type use struct {
	handle ldlm.Handle
	res    ldlm.ResID
	desc   ldlm.Desc
}

// cluster is a server and the mirrors of its clients, with nothing between them but messages.
type cluster struct {
	r       *rand.Rand
	now     time.Duration
	server  *ldlm.Namespace
	mirrors []*ldlm.Namespace // by ClientID-1
	wire    []message
	using   [][]use         // by client
	asked   [][]ldlm.Handle // handles that wait for an answer, by client
	fx      ldlm.Effects
	granted int
	matched int
}

func newCluster(r *rand.Rand, clients int) *cluster {
	c := &cluster{r: r, server: ldlm.New(ldlm.Config{Shards: 2, Seed: 1}), using: make([][]use, clients),
		asked: make([][]ldlm.Handle, clients)}
	for i := range clients {
		c.mirrors = append(c.mirrors, ldlm.New(ldlm.Config{Mirror: true, Shards: 2, Seed: uint64(10 + i)}))
	}
	return c
}

func (c *cluster) random(client int) *ldlm.Request {
	r := &ldlm.Request{Client: ldlm.ClientID(client + 1), Mode: []ldlm.Mode{ldlm.PR, ldlm.PR, ldlm.PR, ldlm.PR, ldlm.PW, ldlm.EX, ldlm.CW}[c.r.IntN(7)]}
	if c.r.IntN(2) == 0 {
		r.Res = ldlm.ObjectRes(fid.ObjectID{ID: uint64(c.r.IntN(2))})
		r.Extent.Start = uint64(c.r.IntN(8)) * 4096
		r.Extent.End = r.Extent.Start + uint64(1+c.r.IntN(4))*4096
	} else {
		r.Res = ldlm.InodeRes(fid.FromIno(uint64(2 + c.r.IntN(2))))
		r.Bits, r.TryBits = ldlm.Bits(1+c.r.IntN(127)), ldlm.Bits(c.r.IntN(128))
	}
	return r
}

// begin lets a client use a lock that it has, or ask for one. A client holds one lock at a time: it waits for none
// while it uses another.
func (c *cluster) begin(i int) {
	if len(c.using[i])+len(c.asked[i]) > 0 {
		return
	}
	r := c.random(i)
	m := c.mirrors[i]
	if got, ok := m.Match(&ldlm.Wanted{Res: r.Res, Modes: r.Mode | ldlm.EX, Bits: r.Bits, Extent: r.Extent}); ok {
		c.matched++
		d := got.Desc
		if r.Bits != 0 {
			d.Bits = r.Bits
		}
		c.using[i] = append(c.using[i], use{got.Handle, r.Res, d})
		return
	}
	for _, e := range m.EarlyCancel(&ldlm.Early{Res: r.Res, Mode: r.Mode, Bits: r.Bits, Extent: r.Extent}, make([]ldlm.Cancel, 0, 8)) {
		r.Cancels = append(r.Cancels, e.Remote)
		m.Drop(e.Handle)
	}
	r.Remote = m.Prepare(r)
	c.asked[i] = append(c.asked[i], r.Remote)
	c.wire = append(c.wire, message{toServer: true, client: r.Client, kind: "enqueue", req: r})
}

func (c *cluster) end(i int) {
	if len(c.using[i]) == 0 {
		return
	}
	u := c.using[i][0]
	c.using[i] = c.using[i][1:]
	c.fx.Reset()
	c.mirrors[i].Unpin(c.now, u.handle, &c.fx)
	c.mirrorEffects(i)
}

func (c *cluster) mirrorEffects(i int) {
	for _, e := range c.fx.List {
		m := message{toServer: true, client: ldlm.ClientID(i + 1), kind: e.Kind.String(), local: e.Handle, remote: e.Remote}
		if e.Kind == ldlm.EffectConvert {
			m.bits = e.Desc.Bits &^ e.Cancel
		} else {
			c.mirrors[i].Drop(e.Handle)
		}
		c.wire = append(c.wire, m)
	}
	c.fx.Reset()
}

// deliver takes one message off the wire.
func (c *cluster) deliver() error {
	k := c.r.IntN(len(c.wire))
	m := c.wire[k]
	c.wire[k] = c.wire[len(c.wire)-1]
	c.wire = c.wire[:len(c.wire)-1]
	c.fx.Reset()
	if m.toServer {
		c.atServer(&m)
		return nil
	}
	return c.atClient(&m)
}

func (c *cluster) atServer(m *message) {
	reply := func(r ldlm.Reply, local ldlm.Handle, kind string) {
		if r.Outcome == ldlm.Granted {
			c.wire = append(c.wire, message{client: m.client, kind: kind, local: local,
				answer: ldlm.Answer{Remote: r.Handle, Desc: r.Desc}})
		}
	}
	switch m.kind {
	case "enqueue":
		reply(c.server.Enqueue(c.now, m.req, &c.fx), m.req.Remote, "granted")
	case "cancel":
		c.server.Cancel(c.now, m.client, []ldlm.Handle{m.remote}, &c.fx)
	case "convert":
		r := c.server.Convert(c.now, &ldlm.Conversion{Client: m.client, Handle: m.remote, Bits: m.bits}, &c.fx)
		reply(r, m.local, "converted")
		if r.Status == status.BadHandle {
			panic("convert of a lock that is gone")
		}
	}
	for _, e := range c.fx.List {
		out := message{client: e.Client, kind: e.Kind.String(), local: e.Remote, bits: e.Cancel}
		if e.Kind == ldlm.EffectCompletion {
			a, ok := c.server.Told(e.Client, e.Handle)
			if !ok {
				panic("completion of nothing")
			}
			out.kind, out.answer = "granted", a
		}
		c.wire = append(c.wire, out)
	}
}

func (c *cluster) atClient(m *message) error {
	i := int(m.client) - 1
	ns := c.mirrors[i]
	switch m.kind {
	case "granted":
		if !ns.Settle(m.local, &m.answer) {
			return fmt.Errorf("client %d: granted lock is gone", m.client)
		}
		c.granted++
		c.asked[i] = c.asked[i][:0]
		info, _ := ns.Lock(ldlm.Local, m.local)
		c.using[i] = append(c.using[i], use{m.local, info.Res, info.Desc})
	case "converted":
		ns.Converted(c.now, m.local, m.answer.Desc, &c.fx)
	case "blocking":
		ns.CallBack(c.now, m.local, &ldlm.Recall{Bits: m.bits}, &c.fx)
	}
	c.mirrorEffects(i)
	return nil
}

// coherent checks that no two clients use conflicting locks at once.
func (c *cluster) coherent() error {
	for i := range c.using {
		for j := range i {
			for _, a := range c.using[i] {
				for _, b := range c.using[j] {
					shared := a.desc.Bits&b.desc.Bits != 0 || a.desc.Extent.Overlaps(b.desc.Extent)
					if a.res == b.res && shared && !ldlm.Compatible(a.desc.Mode, b.desc.Mode) {
						return fmt.Errorf("clients %d and %d use %v: %+v and %+v", i+1, j+1, a.res, a.desc, b.desc)
					}
				}
			}
		}
	}
	return c.server.Verify()
}

// TestServerAndMirrors plays both halves against each other: whatever the order of messages, uses never conflict, and
// everybody who asks gets the lock in the end.
func TestServerAndMirrors(t *testing.T) {
	rounds := 60
	if soak() {
		rounds = 5000
	}
	granted, matched := 0, 0
	for round := range rounds {
		seed := uint64(round)
		if round >= rounds/2 {
			seed = rand.Uint64()
		}
		c := newCluster(rand.New(rand.NewPCG(seed, 9)), 2+round%3)
		if err := c.play(600); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		granted, matched = granted+c.granted, matched+c.matched
	}
	t.Logf("%d granted, %d matched", granted, matched)
	if matched < granted/10 {
		t.Errorf("%d granted and only %d matched: locks are not kept", granted, matched)
	}
}

func (c *cluster) play(steps int) error {
	lru := ldlm.LRU{Max: 3}
	for range steps {
		c.now += 10 * time.Millisecond
		i := c.r.IntN(len(c.mirrors))
		switch op := c.r.IntN(12); {
		case op < 4:
			c.begin(i)
		case op < 6:
			c.end(i)
		case op == 6:
			for _, e := range c.mirrors[i].Trim(c.now, &lru, make([]ldlm.Cancel, 0, 1)) {
				c.mirrors[i].Drop(e.Handle)
				c.wire = append(c.wire, message{toServer: true, client: ldlm.ClientID(i + 1), kind: "cancel", remote: e.Remote})
			}
		case len(c.wire) > 0:
			if err := c.deliver(); err != nil {
				return err
			}
		}
		if err := c.coherent(); err != nil {
			return err
		}
	}
	// The end: all stop using what they have as soon as they have it; every request must come through.
	for range 100 * steps {
		if len(c.wire) > 0 {
			if err := c.deliver(); err != nil {
				return err
			}
		}
		busy := len(c.wire)
		for i := range c.mirrors {
			c.end(i)
			busy += len(c.asked[i]) + len(c.using[i])
		}
		if busy == 0 {
			return nil
		}
		if len(c.wire) == 0 && busy > 0 {
			return fmt.Errorf("nobody has anything to send, and %d still wait: %v", busy, c.asked)
		}
	}
	return fmt.Errorf("no end: %d messages", len(c.wire))
}
