package mdt

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// seldom makes the cluster commit only what somebody waits for.
func seldom(c *cluster) { c.ivl = -1 }

// sharers are two clients of a cluster that commits seldom, and what is there and on disk: folders d, d/sub and e, files d/f and
// d/g.
type sharers struct {
	t               testing.TB
	c               *cluster
	a, b            *client
	d, sub, e, f, g fid.FID
	handle          uint64
}

func newSharers(t testing.TB, level string) *sharers {
	c := newCluster(t, seldom)
	s := &sharers{t: t, c: c, a: c.client(), b: c.client()}
	if err := c.h.setSharing(level); err != nil {
		t.Fatal(err)
	}
	s.d = s.a.must(fid.Root, "d", dir|0o777)
	s.sub, s.e = s.a.must(s.d, "sub", dir|0o777), s.a.must(fid.Root, "e", dir|0o777)
	s.f, s.g = s.a.must(s.d, "f", reg|0o666), s.a.must(s.d, "g", reg|0o666)
	s.b.next() // A new sequence is answered when it is on disk.
	s.settle()
	return s
}

// settle commits all there is.
func (s *sharers) settle() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.c.kv.WaitCommitted(ctx, s.c.kv.Last()); err != nil {
		s.t.Fatal(err)
	}
}

func (s *sharers) chmod(cl *client, f fid.FID, mode uint32) error {
	_, err := cl.setattr(root, f, attr.ValidMode, &wirepb.Attr{Mode: mode}, 0)
	return err
}

func (s *sharers) create(cl *client, p fid.FID, name string) error {
	_, err := cl.make(root, p, name, reg|0o644)
	return err
}

func (s *sharers) mkdir(cl *client, p fid.FID, name string) error {
	_, err := cl.make(root, p, name, dir|0o777)
	return err
}

func (s *sharers) unlink(cl *client, p fid.FID, name string) error {
	_, err := cl.unlink(root, p, name, false)
	return err
}

func (s *sharers) rmdir(cl *client, p fid.FID, name string) error {
	_, err := cl.unlink(root, p, name, true)
	return err
}

func (s *sharers) rename(cl *client, p fid.FID, name string, q fid.FID, to string) error {
	_, err := cl.rename(root, p, name, q, to, 0)
	return err
}

func (s *sharers) swap(cl *client, p fid.FID, name string, q fid.FID, to string) error {
	_, err := cl.rename(root, p, name, q, to, renameExchange)
	return err
}

func (s *sharers) link(cl *client, f, p fid.FID, name string) error {
	_, err := cl.link(root, f, p, name)
	return err
}

func (s *sharers) open(cl *client, f fid.FID, flags uint32) error {
	_, err := cl.open(root, f, flags)
	return err
}

func (s *sharers) setxattr(cl *client, f fid.FID, name string) error {
	value := []byte("value")
	if name == attr.XattrACLDefault {
		value = []byte("\x02\x00\x00\x00\x01\x00\x07\x00\xff\xff\xff\xff\x04\x00\x05\x00\xff\xff\xff\xff\x20\x00\x05\x00\xff\xff\xff\xff")
	}
	_, err := cl.xattr(wire.OpSetxattr, root, f, name, value, 0)
	return err
}

func (s *sharers) named(p fid.FID, name string) fid.FID {
	s.t.Helper()
	r, err := s.a.lookup(root, p, name)
	if err != nil {
		s.t.Fatal(err)
	}
	return fidOf(r.Attr)
}

// look reads d and a name in it in all ways.
func (s *sharers) look(cl *client, name string) error {
	r, err := cl.lookup(root, s.d, name)
	if err != nil {
		return err
	}
	if _, err := cl.getattr(fidOf(r.Attr)); err != nil {
		return err
	}
	_, err = cl.list(s.d, 4096, true, nil)
	return err
}

func (s *sharers) setDefault(cl *client, f fid.FID) error {
	return cl.do(wire.OpSetLayout, &wirepb.LayoutRequest{Caller: root.pb(), Seq: uint64(f.Seq), Oid: f.OID, Layout: oneStripe()}, &wirepb.EntryReply{})
}

// readReport opens a file to read and closes it with a newer atime.
func (s *sharers) readReport(cl *client, f fid.FID) error {
	r, err := cl.open(root, f, 0)
	if err != nil {
		return err
	}
	return cl.closeFile(f, r.Handle, &wirepb.SizeReport{Valid: uint32(attr.ValidAtime), AtimeSec: r.Attr.AtimeSec + 100, SetattrGen: r.Attr.SetattrGen})
}

// writeAndLeave opens a file for write, commits that, and then does what another does meanwhile. closeWritten ends it with a size.
func (s *sharers) writeAndLeave(cl *client, f fid.FID, then func(*sharers) error) error {
	r, err := cl.open(root, f, oWronly)
	if err != nil {
		return err
	}
	s.handle = r.Handle
	s.settle()
	return then(s)
}

func (s *sharers) closeWritten(cl *client, f fid.FID) error {
	return cl.closeFile(f, s.handle, &wirepb.SizeReport{Valid: uint32(attr.ValidSize), Size: 5, Blocks: 8, Done: true})
}

// sharingCase is one case: what a does, and then b.
type sharingCase struct {
	name   string
	a, b   func(s *sharers) error
	forces bool
}

// runSharing runs the cases, each on a cluster of its own at a level.
func runSharing(t *testing.T, level string, cases []sharingCase) {
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			s := newSharers(t, level)
			if err := k.a(s); err != nil {
				t.Fatalf("what a does: %v", err)
			}
			st, on := &s.c.h.sharing.stats, s.c.kv.Committed()
			change := s.c.kv.Last()
			forced, waits := st.forced.Load(), st.waits.Load()
			inTime(t, 10*time.Second, func() {
				if err := k.b(s); err != nil {
					t.Errorf("what b does: %v", err)
				}
			})
			forced, waits = st.forced.Load()-forced, st.waits.Load()-waits
			switch now := s.c.kv.Committed(); {
			case k.forces && (forced != 1 || waits != 1 || now < change):
				t.Errorf("%d commits forced, %d waits, committed %d, a's change is %d", forced, waits, now, change)
			case !k.forces && (forced != 0 || waits != 0 || now != on):
				t.Errorf("%d commits forced, %d waits, committed %d, before %d", forced, waits, now, on)
			}
		})
	}
}

// TestSharingForcesCommit: an operation waits for the commit of what it depends on and another client has changed (DESIGN §8,
// "Stamps" and "COS").
func TestSharingForcesCommit(t *testing.T) {
	create := func(s *sharers) error { return s.create(s.a, s.d, "new") }
	chmodF := func(s *sharers) error { return s.chmod(s.a, s.f, 0o600) }
	chmodD := func(s *sharers) error { return s.chmod(s.a, s.d, 0o755) }
	mkdir := func(s *sharers) error { return s.mkdir(s.a, s.d, "n") }
	unlink := func(s *sharers) error { return s.unlink(s.a, s.d, "f") }
	fill := func(s *sharers) error { return s.create(s.a, s.sub, "x") }
	empty := func(s *sharers) error {
		if err := fill(s); err != nil {
			return err
		}
		s.settle()
		return s.unlink(s.a, s.sub, "x")
	}
	runSharing(t, "1", []sharingCase{
		{"create in a folder that another made", mkdir, func(s *sharers) error { return s.create(s.b, s.named(s.d, "n"), "x") }, true},
		{"create in a folder that another changed", chmodD, func(s *sharers) error { return s.create(s.b, s.d, "x") }, true},
		{"tmpfile in a folder that another changed", chmodD, func(s *sharers) error {
			_, err := s.b.make(root, s.d, "", reg|0o600, func(m *wirepb.CreateRequest) { m.Tmpfile, m.Name = true, nil })
			return err
		}, true},
		{"create of a name that another took away", unlink, func(s *sharers) error { return s.create(s.b, s.d, "f") }, true},
		{"create of a name that another moved away", func(s *sharers) error { return s.rename(s.a, s.d, "f", s.e, "f") },
			func(s *sharers) error { return s.create(s.b, s.d, "f") }, true},
		{"open for write of what another made", create, func(s *sharers) error { return s.open(s.b, s.named(s.d, "new"), oWronly) }, true},
		{"truncating open of what another made", create, func(s *sharers) error { return s.open(s.b, s.named(s.d, "new"), oTrunc) }, true},
		{"open for write of what another changed", chmodF, func(s *sharers) error { return s.open(s.b, s.f, oRdwr) }, true},
		{"O_CREAT of what another made, for write", create, func(s *sharers) error {
			_, err := s.b.make(root, s.d, "new", reg|0o644, withOpen(oWronly))
			return err
		}, true},
		{"link of what another made", create, func(s *sharers) error { return s.link(s.b, s.named(s.d, "new"), s.e, "x") }, true},
		{"link into a folder that another made", mkdir, func(s *sharers) error { return s.link(s.b, s.f, s.named(s.d, "n"), "x") }, true},
		{"link to a name that another took away", unlink, func(s *sharers) error { return s.link(s.b, s.g, s.d, "f") }, true},
		{"unlink of what another made", create, func(s *sharers) error { return s.unlink(s.b, s.d, "new") }, true},
		{"unlink of what another changed", chmodF, func(s *sharers) error { return s.unlink(s.b, s.d, "f") }, true},
		{"unlink in a folder that another changed", chmodD, func(s *sharers) error { return s.unlink(s.b, s.d, "f") }, true},
		{"rmdir of what another made", mkdir, func(s *sharers) error { return s.rmdir(s.b, s.d, "n") }, true},
		{"rmdir of a folder that another emptied", empty, func(s *sharers) error { return s.rmdir(s.b, s.d, "sub") }, true},
		{"rmdir of a folder that another and then itself emptied", func(s *sharers) error {
			if err := s.create(s.a, s.sub, "y"); err != nil {
				return err
			}
			if err := empty(s); err != nil {
				return err
			}
			return s.unlink(s.b, s.sub, "y")
		}, func(s *sharers) error { return s.rmdir(s.b, s.d, "sub") }, true},
		{"rename of what another made", create, func(s *sharers) error { return s.rename(s.b, s.d, "new", s.d, "x") }, true},
		{"rename of what another changed", chmodF, func(s *sharers) error { return s.rename(s.b, s.d, "f", s.d, "x") }, true},
		{"rename over what another made", create, func(s *sharers) error { return s.rename(s.b, s.d, "f", s.d, "new") }, true},
		{"rename to a name that another took away", unlink, func(s *sharers) error { return s.rename(s.b, s.d, "g", s.d, "f") }, true},
		{"rename out of a folder that another changed", chmodD, func(s *sharers) error { return s.rename(s.b, s.d, "f", s.e, "f") }, true},
		{"rename into a folder that another made", mkdir, func(s *sharers) error { return s.rename(s.b, s.d, "f", s.named(s.d, "n"), "f") }, true},
		{"rename over a folder that another emptied", empty, func(s *sharers) error { return s.rename(s.b, fid.Root, "e", s.d, "sub") }, true},
		{"exchange with what another changed", chmodF, func(s *sharers) error { return s.swap(s.b, s.d, "g", s.d, "f") }, true},
		{"rename of a folder below one that another moved", func(s *sharers) error { return s.rename(s.a, s.d, "sub", s.e, "sub") },
			func(s *sharers) error {
				if err := s.mkdir(s.b, fid.Root, "own"); err != nil {
					return err
				}
				s.c.h.sharing.level.Store(shareNothing) // The folder that it goes to is made without waiting.
				err := s.mkdir(s.b, s.sub, "deep")
				s.c.h.sharing.level.Store(shareWrites)
				if err != nil {
					return err
				}
				return s.rename(s.b, fid.Root, "own", s.named(s.sub, "deep"), "own")
			}, true},
		{"setattr of what another made", create, func(s *sharers) error { return s.chmod(s.b, s.named(s.d, "new"), 0o600) }, true},
		{"setattr of what another changed", chmodF, func(s *sharers) error { return s.chmod(s.b, s.f, 0o640) }, true},
		{"setxattr of what another changed", chmodF, func(s *sharers) error { return s.setxattr(s.b, s.f, "user.x") }, true},
		{"default ACL of a folder that another filled", fill, func(s *sharers) error { return s.setxattr(s.b, s.sub, attr.XattrACLDefault) }, true},
		{"default layout of a folder that another filled", fill, func(s *sharers) error { return s.setDefault(s.b, s.sub) }, true},
		{"change after a reader's report of what another made", func(s *sharers) error {
			if err := create(s); err != nil {
				return err
			}
			return s.readReport(s.b, s.named(s.d, "new"))
		}, func(s *sharers) error { return s.chmod(s.b, s.named(s.d, "new"), 0o600) }, true},
	})
}

// TestIndependentOperationsForceNothing: what DESIGN §8 does not name as a dependency costs no commit.
func TestIndependentOperationsForceNothing(t *testing.T) {
	create := func(s *sharers) error { return s.create(s.a, s.d, "new") }
	chmodF := func(s *sharers) error { return s.chmod(s.a, s.f, 0o600) }
	runSharing(t, "1", []sharingCase{
		{"create in one folder", create, func(s *sharers) error { return s.create(s.b, s.d, "other") }, false},
		{"mkdir in one folder", func(s *sharers) error { return s.mkdir(s.a, s.d, "n") }, func(s *sharers) error { return s.mkdir(s.b, s.d, "o") }, false},
		{"unlink in a folder that another fills", create, func(s *sharers) error { return s.unlink(s.b, s.d, "f") }, false},
		{"create beside a name that another took away", func(s *sharers) error { return s.unlink(s.a, s.d, "f") },
			func(s *sharers) error { return s.create(s.b, s.d, "other") }, false},
		{"the same name in another folder", func(s *sharers) error { return s.unlink(s.a, s.d, "f") },
			func(s *sharers) error { return s.create(s.b, s.e, "f") }, false},
		{"rename beside", create, func(s *sharers) error { return s.rename(s.b, s.d, "f", s.e, "f") }, false},
		{"setattr of a folder that another fills", create, func(s *sharers) error { return s.chmod(s.b, s.d, 0o755) }, false},
		{"rename of a folder that another fills", func(s *sharers) error { return s.create(s.a, s.sub, "x") },
			func(s *sharers) error { return s.rename(s.b, s.d, "sub", s.e, "sub") }, false},
		{"open to read what another changed", chmodF, func(s *sharers) error { return s.open(s.b, s.f, 0) }, false},
		{"lookup, getattr and listing of what another made", create, func(s *sharers) error { return s.look(s.b, "new") }, false},
		{"one's own", create, func(s *sharers) error {
			for _, err := range []error{s.open(s.a, s.named(s.d, "new"), oWronly), s.unlink(s.a, s.d, "new"), s.create(s.a, s.d, "new"),
				s.create(s.a, s.sub, "x"), s.unlink(s.a, s.sub, "x"), s.rmdir(s.a, s.d, "sub")} {
				if err != nil {
					return err
				}
			}
			return nil
		}, false},
		{"what is on disk", func(s *sharers) error { defer s.settle(); return create(s) }, func(s *sharers) error { return s.unlink(s.b, s.d, "new") }, false},
		{"a name that is there already", create, func(s *sharers) error {
			if err := s.create(s.b, s.d, "new"); status.Of(err) != status.Exist {
				return fmt.Errorf("not Exist: %w", err)
			}
			return nil
		}, false},
		{"size report of what another changed", func(s *sharers) error { return s.writeAndLeave(s.b, s.f, chmodF) },
			func(s *sharers) error { return s.closeWritten(s.b, s.f) }, false},
	})
}

// TestSharingOff: with commit_on_sharing=0 nothing waits.
func TestSharingOff(t *testing.T) {
	runSharing(t, "0", []sharingCase{
		{"unlink", func(s *sharers) error { return s.create(s.a, s.d, "new") }, func(s *sharers) error { return s.unlink(s.b, s.d, "new") }, false},
		{"setattr", func(s *sharers) error { return s.chmod(s.a, s.f, 0o600) }, func(s *sharers) error { return s.chmod(s.b, s.f, 0o640) }, false},
		{"create of a name taken away", func(s *sharers) error { return s.unlink(s.a, s.d, "f") }, func(s *sharers) error { return s.create(s.b, s.d, "f") }, false},
	})
}

// TestSharingOfReads: with commit_on_sharing=2 who reads another client's change waits for its commit too.
func TestSharingOfReads(t *testing.T) {
	create := func(s *sharers) error { return s.create(s.a, s.d, "new") }
	chmodF := func(s *sharers) error { return s.chmod(s.a, s.f, 0o600) }
	runSharing(t, "2", []sharingCase{
		{"lookup of what another made", create, func(s *sharers) error { _, err := s.b.lookup(root, s.d, "new"); return err }, true},
		{"lookup of what another changed", chmodF, func(s *sharers) error { _, err := s.b.lookup(root, s.d, "f"); return err }, true},
		{"lookup of what another took away", func(s *sharers) error { return s.unlink(s.a, s.d, "f") }, func(s *sharers) error {
			if _, err := s.b.lookup(root, s.d, "f"); status.Of(err) != status.NotExist {
				return fmt.Errorf("not NotExist: %w", err)
			}
			return nil
		}, true},
		{"getattr of what another changed", chmodF, func(s *sharers) error { _, err := s.b.getattr(s.f); return err }, true},
		{"getattr of a folder that another filled", create, func(s *sharers) error { _, err := s.b.getattr(s.d); return err }, true},
		{"listing of a folder that another filled", create, func(s *sharers) error { _, err := s.b.list(s.d, 4096, false, nil); return err }, true},
		{"listing with attributes that another changed", chmodF, func(s *sharers) error { _, err := s.b.list(s.d, 4096, true, nil); return err }, true},
		{"open to read what another changed", chmodF, func(s *sharers) error { return s.open(s.b, s.f, 0) }, true},
		{"getxattr of what another changed", func(s *sharers) error { return s.setxattr(s.a, s.f, "user.x") }, func(s *sharers) error {
			_, err := s.b.xattr(wire.OpGetxattr, root, s.f, "user.x", nil, 0)
			return err
		}, true},
		{"readlink of what another made", func(s *sharers) error {
			_, err := s.a.make(root, s.d, "l", slnk|0o777, withLink("f"))
			return err
		}, func(s *sharers) error {
			return s.b.do(wire.OpReadlink, &wirepb.GetattrRequest{Seq: uint64(s.a.seq), Oid: s.a.oid}, &wirepb.EntryReply{})
		}, true},
		{"unlink of what another made", create, func(s *sharers) error { return s.unlink(s.b, s.d, "new") }, true},
		{"listing without attributes that another changed", chmodF, func(s *sharers) error { _, err := s.b.list(s.d, 4096, false, nil); return err }, false},
		{"one's own", create, func(s *sharers) error { return s.look(s.a, "new") }, false},
		{"what nobody changed", create, func(s *sharers) error { _, err := s.b.getattr(s.g); return err }, false},
	})
}
