package ldlm_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
)

// TestScripts runs testdata/script/*.txt: one line of input is one step, the output is its reply and effects.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/script", func(t *testing.T, path string) {
		s := newScript()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "new" {
				s = newScript()
			}
			s.out.Reset()
			for _, line := range strings.Split(d.Input, "\n") {
				s.line(t, d, line)
			}
			if err := s.ns.Verify(); err != nil {
				d.Fatalf(t, "%v", err)
			}
			return s.out.String()
		})
	})
}

type script struct {
	ns     *ldlm.Namespace
	mirror *ldlm.Namespace
	now    time.Duration
	fx     ldlm.Effects
	out    strings.Builder
	names  map[ldlm.Handle]string
	locks  map[string]ldlm.Handle
	owner  map[string]ldlm.ClientID
	lru    ldlm.LRU
}

func newScript() *script {
	return &script{ns: ldlm.New(ldlm.Config{Shards: 1, Seed: 1}), mirror: ldlm.New(ldlm.Config{Mirror: true, Shards: 2, Seed: 2}),
		names: map[ldlm.Handle]string{}, locks: map[string]ldlm.Handle{}, owner: map[string]ldlm.ClientID{}}
}

// args are a line's words: the first is the command, key=value pairs, and bare ones.
type args struct {
	kv   map[string]string
	bare []string
	bad  func(format string, a ...any)
}

func (a *args) num(key string) uint64 {
	v := a.kv[key]
	if v == "" {
		return 0
	}
	return a.bytes(v)
}

func (a *args) bytes(v string) uint64 {
	if v == "EOF" {
		return extent.EOF
	}
	shift := strings.Index("..........k.........M.........G", v[len(v)-1:])
	if shift < 10 {
		shift = 0
	} else {
		v = v[:len(v)-1]
	}
	n, err := strconv.ParseUint(v, 0, 64)
	if err != nil {
		a.bad("%q: %v", v, err)
	}
	return n << shift
}

func (a *args) extent(key string) extent.Extent {
	v := a.kv[key]
	if v == "" {
		return extent.Extent{}
	}
	from, to, ok := strings.Cut(v, "-")
	if !ok {
		a.bad("extent %q", v)
	}
	return extent.Extent{Start: a.bytes(from), End: a.bytes(to)}
}

func (a *args) bits(key string) ldlm.Bits {
	var b ldlm.Bits
	for _, name := range strings.Split(a.kv[key], "|") {
		switch {
		case name == "":
		case name == "FULL":
			b |= ldlm.Full
		default:
			i := ldlm.Bits(1)
			for i&ldlm.Full != 0 && i.String() != name {
				i <<= 1
			}
			b |= i
		}
	}
	return b
}

func (a *args) mode(key string) ldlm.Mode {
	var m ldlm.Mode
	for _, name := range strings.Split(a.kv[key], "|") {
		one, ok := ldlm.ParseMode(name)
		if !ok && name != "" {
			a.bad("mode %q", name)
		}
		m |= one
	}
	return m
}

func (a *args) res() ldlm.ResID {
	switch {
	case a.kv["object"] != "":
		return ldlm.ObjectRes(fid.ObjectID{ID: a.num("object")})
	case a.kv["flock"] != "":
		return ldlm.FlockRes(fid.FID{Seq: fid.SeqFirst, OID: uint32(a.num("flock"))})
	case a.kv["plain"] != "":
		return ldlm.PlainRes(1, a.num("plain"))
	case a.kv["name"] != "":
		return ldlm.NameRes(fid.Root, a.num("name"))
	}
	return ldlm.InodeRes(fid.FID{Seq: fid.SeqFirst, OID: uint32(a.num("inode"))})
}

func (a *args) flags() ldlm.Flags {
	var f ldlm.Flags
	for name, bit := range map[string]ldlm.Flags{"noexpansion": ldlm.NoExpansion, "nowait": ldlm.NoWait,
		"speculative": ldlm.Speculative, "glimpse": ldlm.Glimpse, "replay": ldlm.Replay, "discard": ldlm.DiscardData,
		"own": ldlm.Own} {
		for _, b := range a.bare {
			if b == name {
				f |= bit
			}
		}
	}
	return f
}

func (s *script) request(a *args) *ldlm.Request {
	r := &ldlm.Request{Res: a.res(), Mode: a.mode("mode"), Client: ldlm.ClientID(a.num("client")), Extent: a.extent("ext"),
		Bits: a.bits("bits"), TryBits: a.bits("try"), GID: a.num("gid"), Flags: a.flags(), KnownSize: a.num("size"),
		Cause: ldlm.ClientID(a.num("cause")), Initiator: uint32(a.num("initiator"))}
	for _, n := range strings.Split(a.kv["cancels"], ",") {
		if n != "" {
			r.Cancels = append(r.Cancels, s.locks[n])
		}
	}
	return r
}

func (s *script) line(t *testing.T, d *datadriven.TestData, line string) {
	words := strings.Fields(line)
	if len(words) == 0 || strings.HasPrefix(line, "#") {
		return
	}
	a := &args{kv: map[string]string{}, bad: func(f string, v ...any) { d.Fatalf(t, "%s: %s", line, fmt.Sprintf(f, v...)) }}
	for _, w := range words[1:] {
		if k, v, ok := strings.Cut(w, "="); ok {
			a.kv[k] = v
		} else {
			a.bare = append(a.bare, w)
		}
	}
	s.fx.Reset()
	fmt.Fprintf(&s.out, "> %s\n", strings.Join(words, " "))
	if !s.server(a, words[0]) && !s.flock(a, words[0]) && !s.client(a, words[0]) {
		a.bad("no such command")
	}
	for i := range s.fx.List {
		s.effect(&s.fx.List[i])
	}
}

func (s *script) printf(format string, a ...any) { fmt.Fprintf(&s.out, format+"\n", a...) }

func (s *script) learn(name string, c ldlm.ClientID, h ldlm.Handle) {
	if h != 0 {
		s.names[h], s.locks[name], s.owner[name] = name, h, c
	}
}

func (s *script) handle(a *args) ldlm.Handle {
	if len(a.bare) == 0 || s.locks[a.bare[0]] == 0 {
		a.bad("no such lock")
	}
	return s.locks[a.bare[0]]
}

func desc(d ldlm.Desc) string {
	s := d.Mode.String()
	if d.Bits != 0 {
		s += " " + d.Bits.String()
	}
	if d.Extent != (extent.Extent{}) {
		s += " " + ext(d.Extent)
	}
	if d.GID != 0 {
		s += fmt.Sprintf(" gid %d", d.GID)
	}
	return s
}

func ext(e extent.Extent) string { return size(e.Start) + "-" + size(e.End) }

func size(n uint64) string {
	switch {
	case n == extent.EOF:
		return "EOF"
	case n != 0 && n&(1<<20-1) == 0:
		return fmt.Sprintf("%dM", n>>20)
	case n != 0 && n&(1<<10-1) == 0:
		return fmt.Sprintf("%dk", n>>10)
	}
	return fmt.Sprint(n)
}

func (s *script) effect(e *ldlm.Effect) {
	text := fmt.Sprintf("  %v %s (client %d): %s", e.Kind, s.names[e.Handle], e.Client, desc(e.Desc))
	if e.Cancel != 0 {
		text += ", give up " + e.Cancel.String()
	}
	if e.Status != status.OK {
		text += ", " + e.Status.Error()
	}
	s.printf("%s%s", text, discard(e.Discard))
}

func discard(d bool) string {
	if d {
		return ", discard"
	}
	return ""
}

func (s *script) reply(r ldlm.Reply) {
	text := "  " + r.Outcome.String()
	switch r.Outcome {
	case ldlm.Denied:
		text += ": " + r.Status.Error()
	case ldlm.Granted:
		text += " " + desc(r.Desc)
	}
	if r.Contended {
		text += ", contended"
	}
	s.printf("%s", text)
}

func (s *script) server(a *args, cmd string) bool {
	switch cmd {
	case "at":
		d, err := time.ParseDuration(a.bare[0])
		if err != nil {
			a.bad("%v", err)
		}
		s.now = d
	case "limits":
		s.ns.SetLimits(ldlm.Limits{ContendedLocks: int64(a.num("contended"))})
	case "enqueue":
		r := s.request(a)
		reply := s.ns.Enqueue(s.now, r, &s.fx)
		s.learn(a.bare[0], r.Client, reply.Handle)
		s.reply(reply)
	case "glimpse-again":
		r := ldlm.GlimpseRound{Res: a.res(), KnownSize: a.num("size")}
		for _, n := range strings.Split(a.kv["asked"], ",") {
			r.Asked = append(r.Asked, ldlm.ClientID(a.bytes(n)))
		}
		s.printf("  %v", s.ns.GlimpseAgain(&r, &s.fx))
	case "cancel":
		c := s.owner[a.bare[0]]
		if a.kv["as"] != "" {
			c = ldlm.ClientID(a.num("as"))
		}
		s.printf("  %d cancelled", s.ns.Cancel(s.now, c, []ldlm.Handle{s.handle(a)}, &s.fx))
	case "convert":
		s.reply(s.ns.Convert(s.now, &ldlm.Conversion{Client: s.owner[a.bare[0]], Handle: s.handle(a), Mode: a.mode("mode"),
			Bits: a.bits("bits"), Tag: a.num("tag")}, &s.fx))
	case "told":
		d, ok := s.ns.Told(s.owner[a.bare[0]], s.handle(a))
		s.printf("  %v: %s, called back %v %v%s", ok, desc(d.Desc), d.Blocked, d.Recall.Bits, discard(d.Recall.Discard))
	case "deny":
		s.printf("  %d denied", s.ns.DenyWaiting(s.now, a.res(), status.Stopping, &s.fx))
	case "evict":
		s.printf("  %d locks", s.ns.Evict(s.now, ldlm.ClientID(a.num("client")), &s.fx))
	case "expired":
		s.ns.Expired(s.now, 100, &s.fx)
		next, ok := s.ns.NextDeadline()
		if !ok {
			next = 0
		}
		s.printf("  next %v", next)
	case "prolong":
		until, _ := time.ParseDuration(a.kv["until"])
		s.printf("  %v", s.ns.Prolong(s.owner[a.bare[0]], s.handle(a), until))
	case "reclaim":
		s.printf("  %d", s.ns.Reclaim(s.now, int(a.num("n")), &s.fx))
	case "show":
		i, ok := s.ns.Resource(s.now, a.res())
		s.printf("  %v: granted %d waiting %d converting %d conflicts %d contended %v", ok, i.Granted, i.Waiting,
			i.Converting, i.Conflicts, i.Contended)
	default:
		return false
	}
	return true
}

func (s *script) flock(a *args, cmd string) bool {
	r := &ldlm.FlockRequest{Res: a.res(), Range: ldlm.FlockRange{Extent: a.extent("range"), Owner: ldlm.FlockOwner{
		Client: ldlm.ClientID(a.num("client")), Owner: a.num("owner")}}}
	for i, name := range []string{"posix", "ofd", "bsd"} {
		if a.kv["class"] == name {
			r.Range.Owner.Class = ldlm.FlockClass(i)
		}
	}
	switch cmd {
	case "lock", "lockw":
		r.Op, r.Wait = ldlm.FlockExclusive, cmd == "lockw"
	case "share", "sharew":
		r.Op, r.Wait = ldlm.FlockShared, cmd == "sharew"
	case "unlock":
		r.Op = ldlm.FlockUnlock
	case "getlk":
		r.Op = ldlm.FlockExclusive
		got, ok := s.ns.TestFlock(r)
		s.printf("  %v: client %d owner %d %s write %v", ok, got.Owner.Client, got.Owner.Owner, ext(got.Extent), got.Write)
		return true
	case "ranges":
		for _, q := range s.ns.FlockRanges(a.res(), nil) {
			s.printf("  client %d owner %d %s write %v", q.Owner.Client, q.Owner.Owner, ext(q.Extent), q.Write)
		}
		return true
	default:
		return false
	}
	reply := s.ns.Flock(s.now, r, &s.fx)
	if len(a.bare) > 0 {
		s.learn(a.bare[0], r.Range.Owner.Client, reply.Handle)
	}
	text := reply.Outcome.String()
	if reply.Outcome == ldlm.Denied {
		text += fmt.Sprintf(": %v, held by client %d owner %d", reply.Status, reply.Holder.Owner.Client, reply.Holder.Owner.Owner)
	}
	s.printf("  %s", text)
	return true
}

func (s *script) client(a *args, cmd string) bool {
	switch cmd {
	case "prepare":
		h := s.mirror.Prepare(s.request(a))
		s.learn(a.bare[0], ldlm.Local, h)
		s.printf("  %v", h != 0)
	case "settle":
		ans := ldlm.Answer{Remote: 77, Desc: ldlm.Desc{Mode: a.mode("mode"), Bits: a.bits("bits"), Extent: a.extent("ext")},
			Recall: ldlm.Recall{Bits: a.bits("cancel")}}
		ans.Blocked = len(a.bare) > 1 && a.bare[1] == "blocked"
		s.printf("  %v", s.mirror.Settle(s.handle(a), &ans))
	case "match":
		m, ok := s.mirror.Match(&ldlm.Wanted{Res: a.res(), Modes: a.mode("mode"), Bits: a.bits("bits"), Extent: a.extent("ext"),
			GID: a.num("gid"), Blocked: len(a.bare) > 0})
		s.printf("  %v %s %s", ok, s.names[m.Handle], desc(m.Desc))
	case "unpin":
		s.mirror.Unpin(s.now, s.handle(a), &s.fx)
		s.printf("  unused %d", s.mirror.UnusedCount())
	case "pin":
		s.printf("  %v", s.mirror.Pin(s.handle(a)))
	case "callback":
		s.printf("  %v", s.mirror.CallBack(s.now, s.handle(a),
			&ldlm.Recall{Bits: a.bits("bits"), Discard: len(a.bare) > 1}, &s.fx))
	case "converted":
		s.printf("  %v", s.mirror.Converted(s.now, s.handle(a), ldlm.Desc{Mode: a.mode("mode"), Bits: a.bits("bits")}, &s.fx))
	case "drop":
		s.printf("  %v", s.mirror.Drop(s.handle(a)))
	case "early":
		s.cancels(s.mirror.EarlyCancel(&ldlm.Early{Res: a.res(), Mode: a.mode("mode"), Bits: a.bits("bits"),
			Extent: a.extent("ext")}, make([]ldlm.Cancel, 0, 4)))
	case "lru":
		age, _ := time.ParseDuration(a.kv["age"])
		s.lru = ldlm.LRU{Max: int(a.num("max")), MaxAge: age, Pool: ldlm.ClientPool{SLV: a.num("slv")}}
	case "trim":
		s.cancels(s.mirror.Trim(s.now, &s.lru, make([]ldlm.Cancel, 0, 4)))
	case "trim-all":
		s.cancels(s.mirror.TrimAll(make([]ldlm.Cancel, 0, 4)))
	default:
		return false
	}
	if err := s.mirror.Verify(); err != nil {
		a.bad("%v", err)
	}
	return true
}

func (s *script) cancels(list []ldlm.Cancel) {
	for _, c := range list {
		s.printf("  cancel %s: %s", s.names[c.Handle], desc(c.Desc))
	}
	s.printf("  unused %d", s.mirror.UnusedCount())
}
