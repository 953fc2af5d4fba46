package mdt

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/server/lockd"
)

// renameRes is the file system's rename lock. It is no inode's, and no client may ask for it.
func renameRes() ldlm.ResID { return ldlm.PlainRes(0, 0) }

// Bits of an inode that operations take, beside single ones.
const (
	// takenName is what an inode loses with a name: the dentry, its links, and nobody opens it meanwhile.
	takenName = ldlm.Lookup | ldlm.Update | ldlm.Open
	// opened is what changes who writes a file.
	opened = ldlm.Update | ldlm.Open
)

// Levels of the lock order: DESIGN §4, "Names and permission". Level 5, mutexes, is never in a set.
const (
	levelRename uint8 = iota + 1
	levelFolder
	levelName
	levelChild
)

// want is one lock of a set.
type want struct {
	res   ldlm.ResID
	bits  ldlm.Bits
	mode  ldlm.Mode
	level uint8
	// rank orders folders: an ancestor has the lower one.
	rank uint8
	// dir says that a child is a folder: those come first.
	dir  bool
	lock *lockd.LocalLock
	// seen is the folder's count of users when it was marked, 0 when there were others.
	seen uint64
}

// lockSet is the locks of one operation. First all are named with add, then acquire takes them in order, then release
// gives them back. They are asked for on behalf of a client, whose own locks they do not touch.
type lockSet struct {
	srv   *lockd.Server
	users *folderUsers
	e     *env.Env
	cause ldlm.ClientID
	wants []want
	held  int
	spare []*lockd.LocalLock
	// busy is the lock whose try failed last; failed counts such tries.
	busy struct {
		res ldlm.ResID
		set bool
	}
	failed int
}

// reset makes the set empty.
// Precondition: nothing is held.
func (s *lockSet) reset() { s.wants = s.wants[:0] }

// begin makes the set ready for a new operation of a client, 0 for the target itself.
func (s *lockSet) begin(h *Handler, e *env.Env, cause ldlm.ClientID) {
	s.srv, s.users, s.e, s.cause = h.ldlm, &h.users, e, cause
	s.reset()
	s.busy.set, s.failed = false, 0
}

// rename names the rename lock, EX or CW.
func (s *lockSet) rename(m ldlm.Mode) { s.add(want{res: renameRes(), mode: m, level: levelRename}) }

// folder names the lock of a folder in which names change (CW), or which must stay as it is (CR).
func (s *lockSet) folder(f fid.FID, m ldlm.Mode) {
	s.add(want{res: ldlm.InodeRes(f), mode: m, bits: ldlm.Update, level: levelFolder})
}

func (s *lockSet) name(f fid.FID, h nameHash) {
	s.add(want{res: ldlm.NameRes(f, uint64(h)), mode: ldlm.EX, bits: ldlm.Update, level: levelName})
}

// child names bits of an inode that a name, or the request itself, leads to.
func (s *lockSet) child(f fid.FID, m ldlm.Mode, b ldlm.Bits, dir bool) {
	s.add(want{res: ldlm.InodeRes(f), mode: m, bits: b, level: levelChild, dir: dir})
}

// add names a lock. One that is named already keeps its place and gets the stronger mode and all bits.
func (s *lockSet) add(w want) {
	for i := range s.wants {
		if had := &s.wants[i]; had.res == w.res {
			if w.mode == ldlm.EX || had.mode == ldlm.CR {
				had.mode = w.mode
			}
			had.bits |= w.bits
			had.level = min(had.level, w.level)
			return
		}
	}
	s.wants = append(s.wants, w)
}

// ancestor makes a's lock come before the other folders'.
func (s *lockSet) ancestor(a fid.FID) {
	res := ldlm.InodeRes(a)
	for i := range s.wants {
		if s.wants[i].level == levelFolder && s.wants[i].res != res {
			s.wants[i].rank = 1
		}
	}
}

func compareWants(a, b want) int {
	if c := cmp.Compare(a.level, b.level); c != 0 {
		return c
	}
	if c := cmp.Compare(a.rank, b.rank); c != 0 {
		return c
	}
	if a.dir != b.dir {
		if a.dir {
			return -1
		}
		return 1
	}
	if c := cmp.Compare(a.res.Seq, b.res.Seq); c != 0 {
		return c
	}
	if c := cmp.Compare(a.res.OID, b.res.OID); c != 0 {
		return c
	}
	return cmp.Compare(a.res.Hash, b.res.Hash)
}

// clearAfter is how many failed tries it takes until acquire first has everybody's locks called back, one at a time.
const clearAfter = 2

// acquire takes the set's locks in order. The first lock and those of the levels up to names are waited for. Children are
// only tried, which calls nobody back: a name that was looked up without a lock may meanwhile lead to a folder that somebody
// holds as an ancestor, and waiting for it could close a circle; and while a client that is away is waited for, the folder
// stays free for others. When a try fails, acquire gives all back and returns false: the caller names its locks again, and
// the next acquire waits for the one that was busy first, while it holds nothing, and tries all others. So whoever waits
// holds nothing out of order, and a busy lock does not starve the operation. Several clients that take locks again as fast
// as they give them back do not either: from the second failed try on, each lock is waited for and given up before all
// are tried.
//
// An error is ctx's, or Stopping; then nothing is held.
//
// A set that holds the rename lock already may name more and acquire again.
func (s *lockSet) acquire(ctx context.Context) (bool, error) {
	rest := s.wants[s.held:]
	slices.SortFunc(rest, compareWants)
	if s.failed >= clearAfter {
		if err := s.clear(ctx, rest); err != nil {
			s.release()
			return false, err
		}
	}
	first := -1
	if s.busy.set {
		first = slices.IndexFunc(rest, func(w want) bool { return w.res == s.busy.res })
	}
	if first >= 0 {
		s.busy.set = false
	}
	if first > 0 {
		w := rest[first]
		copy(rest[1:], rest[:first])
		rest[0] = w
	}
	for i := range rest {
		w := &rest[i]
		err := s.take(ctx, w, i > 0 && (first > 0 || w.level == levelChild))
		if err == nil {
			s.held++
			continue
		}
		s.release()
		switch k, _ := err.(status.Kind); k {
		case status.Again:
			s.busy.res, s.busy.set = w.res, true
			s.failed++
			return false, nil
		case status.Stale: // it died while this waited: the caller finds that
			return false, nil
		}
		return false, err
	}
	return true, nil
}

// clear waits for each lock by itself, so that who holds one gives it back.
func (s *lockSet) clear(ctx context.Context, wants []want) error {
	for i := range wants {
		w := &wants[i]
		err := s.take(ctx, w, false)
		if err == nil {
			s.give(w)
		} else if !errors.Is(err, status.Stale) {
			return err
		}
	}
	return nil
}

// take gets one lock, or tries to.
func (s *lockSet) take(ctx context.Context, w *want, try bool) error {
	var l *lockd.LocalLock
	if n := len(s.spare); n > 0 {
		l, s.spare = s.spare[n-1], s.spare[:n-1]
	} else {
		l = &lockd.LocalLock{}
	}
	l.Res, l.Mode, l.Bits, l.Cause, l.Own = w.res, w.mode, w.bits, s.cause, s.cause != ldlm.Local
	if w.level == levelFolder {
		s.users.enter(w.res)
	}
	var err error
	if try {
		err = s.srv.TryLock(s.e, l)
	} else {
		err = s.srv.Lock(ctx, s.e, l)
	}
	w.lock = l
	if err != nil {
		s.give(w)
	}
	return err
}

// give gives one lock back.
func (s *lockSet) give(w *want) {
	s.srv.Unlock(s.e, w.lock)
	if w.level == levelFolder {
		s.users.leave(w.res)
	}
	s.spare = append(s.spare, w.lock)
	w.lock = nil
}

// release gives all locks back, last first.
func (s *lockSet) release() {
	for s.held > 0 {
		s.held--
		s.give(&s.wants[s.held])
	}
}

// mark remembers how often a held folder was worked in until now; alone tells whether nobody has come since, nor works in it
// with us.
func (s *lockSet) mark(f fid.FID) {
	if w := s.find(f); w != nil {
		w.seen = s.users.alone(w.res)
	}
}

func (s *lockSet) alone(f fid.FID) bool {
	w := s.find(f)
	return w == nil || w.seen != 0 && s.users.alone(w.res) == w.seen
}

// find is the held lock of an inode.
func (s *lockSet) find(f fid.FID) *want {
	res := ldlm.InodeRes(f)
	for i := range s.wants[:s.held] {
		if s.wants[i].res == res {
			return &s.wants[i]
		}
	}
	return nil
}

// folderUsers counts the operations that work in folders, or wait to: the lower half of a number is how many do now, the
// upper half how often one came. Folders with one hash share a number, which only makes a reply's attributes be read again.
type folderUsers struct{ n [1 << 10]atomic.Uint64 }

func (u *folderUsers) at(r ldlm.ResID) *atomic.Uint64 {
	h := r.Seq*0x9e3779b97f4a7c15 + r.OID>>32*0xc2b2ae3d27d4eb4f
	return &u.n[h>>54]
}

func (u *folderUsers) enter(r ldlm.ResID) { u.at(r).Add(1<<32 | 1) }
func (u *folderUsers) leave(r ldlm.ResID) { u.at(r).Add(^uint64(0)) }

// alone is a number that changes with each use while there is one user, 0 while there are several.
func (u *folderUsers) alone(r ldlm.ResID) uint64 {
	n := u.at(r).Load()
	if uint32(n) != 1 {
		return 0
	}
	return n
}
