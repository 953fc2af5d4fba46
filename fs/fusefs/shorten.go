package fusefs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// This file keeps the kernel from taking a short READ for a hole.
//
// The kernel fills what a READ leaves of its pages with zeros, and shows a reader as much of them as it believes the file to be
// long. A short READ tells it the end, but it listens only if nothing has told it of the file since it began to send the READ:
// attributes, a WRITE, or pages and attributes taken back. That is what happens when another client truncates: the READ waits
// for the lock that the truncate has, and meanwhile what lay under this mount's locks is taken back.
//
// So when a READ ends before the end of its pages, and something was told of the file meanwhile, its answer is kept until the kernel has
// the size: a stat of our own through the mount brings it. A READ that lies behind the end whole is kept in any case: the kernel sends
// it only when it believes the file to be longer, and others with it, of whose ends it takes the first it hears. That one would be
// where this READ begins.
//
// A size that it does take in cuts off what lies behind it in the page where the file ends, and it does so when that page's READ has been
// answered: what other clients have appended since, and the READ has brought, becomes zeros that show when the file is known to be
// longer. So the pages of such a READ are dropped, and a stat or lookup that comes meanwhile is answered when they are.
//
// In the same way the kernel does not listen to the GETATTR that it sends before it reads behind the end that it knows, and would read
// nothing where another client has written. Its answer is kept, too, until the kernel knows at least that size.

const (
	// toldBefore is how long before a READ came something may have been told that the kernel took in after it had begun the READ.
	toldBefore = 200 * time.Millisecond
	// shortenWait bounds how long an answer is kept.
	shortenWait = time.Second
	// answerWait bounds the wait for an answer that is on its way.
	answerWait = 100 * time.Millisecond
	// asksMax bounds the stats for one answer: the file may have been changed again.
	asksMax = 16
)

// tellings remembers, by node, when the kernel was told something last. Slots are shared: what is lost by that is what a READ
// and the end of a file that others change might meet within milliseconds.
type tellings struct {
	slots [1 << 12]telling
}

type telling struct {
	taken atomic.Int64 // when something was taken back, in nanoseconds
	told  atomic.Int64 // when a size was told
	// size is the largest that was told lately: of those told at once the kernel need not take the last.
	size atomic.Uint64
	// answers counts short READs that are being answered: nothing is taken back between the look at what was told and the answer.
	answers atomic.Int32
	// tails counts READs whose pages have to go before another size is told; settles counts calls that wait for the kernel's size,
	// perhaps READs that hold these pages: then no question about the size waits.
	tails, settles atomic.Int32

	mu    sync.Mutex
	sizes [4]toldSize // that attributes told, the oldest at next; guarded by mu
	next  uint8       // guarded by mu
}

// toldSize is a size that was told at a time in nanoseconds.
type toldSize struct {
	at   int64
	size uint64
}

// take notes that attributes or pages are being taken back.
func (t *tellings) take(node uint64) { t.slots[slotOf(node)].taken.Store(time.Now().UnixNano()) }

// await is take, and waits for short READs that are being answered.
func (t *tellings) await(node uint64) {
	t.take(node)
	s := &t.slots[slotOf(node)]
	for wait := 5 * time.Microsecond; s.answers.Load() > 0 && wait < answerWait; wait *= 2 {
		time.Sleep(wait)
	}
}

// shortRead is the answer to a READ that ends before the end of its pages.
type shortRead struct {
	data []byte
	of   *telling
}

func (r *shortRead) Bytes([]byte) ([]byte, fuse.Status) { return r.data, fuse.OK }

func (r *shortRead) Size() int { return len(r.data) }

// Done is called when the answer is about to be written, a few microseconds before the kernel has it.
func (r *shortRead) Done() { r.of.answers.Add(-1) }

// short begins the answer to a READ that came at began and has b alone.
func (f *FS) short(node uint64, b []byte, end uint64, began time.Time) fuse.ReadResult {
	t := &f.kernel.told
	r := &shortRead{data: b, of: &t.slots[slotOf(node)]}
	r.of.answers.Add(1)
	if len(b) == 0 || t.since(node, began, end) {
		// What is taken back now may be what the kernel's own question waits for.
		r.of.answers.Add(-1)
		f.shorten(node, end)
		r.of.answers.Add(1)
	}
	return r
}

// tell notes that the kernel is about to know a size.
func (t *tellings) tell(node, size uint64) {
	s := &t.slots[slotOf(node)]
	now := time.Now().UnixNano()
	if s.told.Swap(now) > now-int64(toldBefore) {
		size = max(size, s.size.Load())
	}
	s.size.Store(size)
}

// tellAttr is tell for a size in attributes, which the kernel may cut at.
func (t *tellings) tellAttr(node, size uint64) {
	s := &t.slots[slotOf(node)]
	t.tell(node, size)
	s.mu.Lock()
	s.sizes[s.next] = toldSize{time.Now().UnixNano(), size}
	s.next = (s.next + 1) % uint8(len(s.sizes))
	s.mu.Unlock()
}

// awaitTails waits until no READ's pages have to go, and reports whether it had to: attributes from before are to be asked for again,
// because the kernel must not hear of an old size late.
func (t *tellings) awaitTails(node uint64) bool {
	s := &t.slots[slotOf(node)]
	if s.tails.Load() == 0 || s.settles.Load() > 0 {
		return false
	}
	for wait := 5 * time.Microsecond; s.tails.Load() > 0 && s.settles.Load() == 0 && wait < answerWait; wait *= 2 {
		time.Sleep(wait)
	}
	return true
}

// least is the least size in attributes that the kernel may have taken in while a READ ran that came at began; 0 when there were many.
func (t *tellings) least(node uint64, began time.Time) uint64 {
	s := &t.slots[slotOf(node)]
	at := began.UnixNano() - int64(toldBefore)
	s.mu.Lock()
	defer s.mu.Unlock()
	least := uint64(math.MaxUint64)
	for _, v := range s.sizes {
		if v.at > at {
			least = min(least, v.size)
		}
	}
	if s.sizes[s.next].at > at {
		return 0
	}
	return least
}

// cutRead is the answer to a READ that may be cut off at an older size.
type cutRead struct {
	fuse.ReadResult
	f              *FS
	node, off, end uint64
	of             *telling
}

// Done is called when the answer is about to be written.
func (r *cutRead) Done() {
	r.f.wait.Go(func() {
		_ = r.f.kernel.invalidate(r.node, int64(r.off), int64(r.end-r.off))
		r.of.tails.Add(-1)
	})
	r.ReadResult.Done()
}

// uncut is the answer r to a READ of a file that others may change, which came at began and has the bytes from off to end.
func (f *FS) uncut(r fuse.ReadResult, node uint64, off, end uint64, began time.Time) fuse.ReadResult {
	least := f.kernel.told.least(node, began)
	if least >= end || off == end {
		return r
	}
	c := &cutRead{ReadResult: r, f: f, node: node, off: max(off, least), end: end, of: &f.kernel.told.slots[slotOf(node)]}
	c.of.tails.Add(1)
	return c
}

// since reports whether the kernel may not listen to a READ that came at began and ended at end.
func (t *tellings) since(node uint64, began time.Time, end uint64) bool {
	s := &t.slots[slotOf(node)]
	at := began.UnixNano() - int64(toldBefore)
	return s.taken.Load() > at || s.told.Load() > at && s.size.Load() > end
}

// longer reports whether a READ that came at began and ended at end may be from before the file was told to be longer.
func (t *tellings) longer(node, end uint64, began time.Time) bool {
	s := &t.slots[slotOf(node)]
	return s.told.Load() > began.UnixNano()-int64(toldBefore) && s.size.Load() > end
}

// takenSince reports whether the kernel may not listen to an answer of attributes that were asked for at began.
func (t *tellings) takenSince(node uint64, began time.Time) bool {
	return t.slots[slotOf(node)].taken.Load() > began.UnixNano()-int64(toldBefore)
}

// shorten waits until the kernel believes a file to end at end or before. It is for a READ that is not answered yet.
func (f *FS) shorten(node, end uint64) {
	f.settle(node, func(size uint64) bool { return size <= end })
}

// lengthen waits until the kernel believes a file to end at end or behind. It is for a GETATTR that is not answered yet.
func (f *FS) lengthen(node, end uint64) {
	f.settle(node, func(size uint64) bool { return size >= end })
}

// settle makes the kernel ask for the attributes until what it believes the size to be is right, or shortenWait is over.
func (f *FS) settle(node uint64, right func(size uint64) bool) {
	file, err := f.kernel.openNode(node)
	if err != nil {
		f.log.Debug("the kernel's size of a file is not known", "node", f.node(node), "err", err)
		return
	}
	defer unix.Close(file)
	t := &f.kernel.told.slots[slotOf(node)]
	t.settles.Add(1)
	defer t.settles.Add(-1)
	var asked chan struct{}
	asks := 0
	limit := time.Now().Add(shortenWait)
	for wait := 10 * time.Microsecond; ; wait = min(2*wait, time.Millisecond) {
		size, err := sizeOf(file, unix.AT_STATX_DONT_SYNC)
		if err != nil || right(size) || time.Now().After(limit) {
			return
		}
		if asked == nil {
			if asks++; asks > asksMax {
				return
			}
			asked = f.askSize(file)
		}
		select {
		case <-asked: // something was told meanwhile again
			asked = nil
		default:
			time.Sleep(wait)
		}
	}
}

// askSize makes the kernel ask for the attributes. It enters the size and then waits for the pages behind it, which
// the READ holds: so this is not waited for.
func (f *FS) askSize(file int) chan struct{} {
	done := make(chan struct{})
	own, err := unix.FcntlInt(uintptr(file), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return done
	}
	f.wait.Go(func() {
		_, _ = sizeOf(own, unix.AT_STATX_FORCE_SYNC)
		_ = unix.Close(own)
		close(done)
	})
	return done
}

func sizeOf(file, flags int) (uint64, error) {
	var st unix.Statx_t
	err := unix.Statx(file, "", unix.AT_EMPTY_PATH|flags, unix.STATX_SIZE, &st)
	return st.Size, err
}

// fileidIno64Gen is the type of the kernel's file handles of FUSE nodes: node number and generation.
const fileidIno64Gen = 0x81

// openNode opens a node that the kernel has in use, as a place only (O_PATH). That needs an open folder of the mount: it is opened
// for as long as this takes, because the mount is busy meanwhile.
func (k *kernel) openNode(node uint64) (int, error) {
	root, err := k.openRoot()
	if err != nil {
		return -1, err
	}
	defer unix.Close(root)
	var st unix.Statx_t
	if err := unix.Statx(root, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st); err != nil {
		return -1, err
	}
	if fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor) != k.device {
		return -1, errors.New("something else is mounted there")
	}
	b := binary.NativeEndian.AppendUint32(nil, uint32(node>>32))
	b = binary.NativeEndian.AppendUint32(b, uint32(node))
	b = binary.NativeEndian.AppendUint32(b, generation)
	// An O_PATH open of a file sends nothing.
	return unix.OpenByHandleAt(root, unix.NewFileHandle(fileidIno64Gen, b), unix.O_PATH|unix.O_CLOEXEC)
}

// openRoot opens the mount's root. The OPENDIR that comes is known by its thread and answered at once: see isOwn.
func (k *kernel) openRoot() (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	k.rootMu.Lock()
	defer k.rootMu.Unlock()
	k.opener.Store(int64(unix.Gettid()))
	defer k.opener.Store(0)
	return unix.Open(k.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOATIME, 0)
}

// isOwn reports whether an OPENDIR of the root is openRoot's.
func (k *kernel) isOwn(h *fuse.InHeader) bool {
	return h.NodeId == fuse.FUSE_ROOT_ID && h.Pid != 0 && int64(h.Pid) == k.opener.Load()
}
