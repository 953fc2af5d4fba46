package client

import (
	"container/list"
	"sync"
	"sync/atomic"

	"github.com/puzpuzpuz/xsync/v4"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/mdc"
)

// pagesPart is the part of a mount's share of max_cached_objects_mb that holds pages of folders.
const pagesPart = 8

// pageBytes is what a cached page costs beside its entries.
const pageBytes = 160

// pages caches what READDIR answered, under the Update bit of the folder's lock. The names are right while that lock has been held
// without a break and this client has not changed the folder; attributes are taken from the nodes, as always.
//
// Lock order: node.mu, or a bucket of the map, then mu.
type pages struct {
	byKey *xsync.Map[uint64, *page]

	hits, misses, evicted, created atomic.Int64
	limit                          atomic.Int64 // bytes

	mu    sync.Mutex
	order *list.List // of *page, the most recently used one first; guarded by mu
	bytes int64      // guarded by mu
}

// page is what one READDIR answered. It does not change.
type page struct {
	key    uint64
	ino    uint64
	cookie uint64
	plus   bool
	eof    bool
	data   []byte
	// epoch is the folder node's, at when the page was asked for.
	epoch uint32
	at    uint64
	place *list.Element // guarded by pages.mu
}

func (p *pages) init() {
	p.byKey, p.order = xsync.NewMap[uint64, *page](), list.New()
	p.limit.Store(budgetMost / pagesPart)
}

func pageKey(ino, cookie uint64, plus bool) uint64 {
	k := mix(ino) ^ cookie*0x9e3779b97f4a7c15
	if plus {
		k++
	}
	return mix(k)
}

// find returns a page, nil for none. Its caller knows whether it is still right.
func (p *pages) find(ino, cookie uint64, plus bool) *page {
	g, ok := p.byKey.Load(pageKey(ino, cookie, plus))
	if !ok || g.ino != ino || g.cookie != cookie || g.plus != plus {
		return nil
	}
	return g
}

// used moves a page to the front.
func (p *pages) used(g *page) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g.place != nil {
		p.order.MoveToFront(g.place)
	}
}

// add caches a page in place of the one there, and makes room.
func (p *pages) add(g *page) {
	g.key = pageKey(g.ino, g.cookie, g.plus)
	size := int64(len(g.data)) + pageBytes
	if size > p.limit.Load() {
		return
	}
	p.created.Add(1)
	p.byKey.Compute(g.key, func(old *page, had bool) (*page, xsync.ComputeOp) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if had {
			p.leaveLocked(old)
		}
		g.place = p.order.PushFront(g)
		p.bytes += size
		return g, xsync.UpdateOp
	})
	p.shrink()
}

// leaveLocked takes a page out of the order. Precondition: p.mu is held.
func (p *pages) leaveLocked(g *page) {
	if g.place != nil {
		p.order.Remove(g.place)
		g.place = nil
		p.bytes -= int64(len(g.data)) + pageBytes
	}
}

// drop forgets a page.
func (p *pages) drop(g *page) {
	p.byKey.Compute(g.key, func(old *page, _ bool) (*page, xsync.ComputeOp) {
		if old != g {
			return old, xsync.CancelOp
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.leaveLocked(g)
		return nil, xsync.DeleteOp
	})
}

// shrink drops the least recently used pages beyond the limit.
func (p *pages) shrink() {
	for {
		p.mu.Lock()
		last := p.order.Back()
		if last == nil || p.bytes <= p.limit.Load() {
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		p.evicted.Add(1)
		p.drop(last.Value.(*page))
	}
}

func (p *pages) size() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bytes
}

// cachedPage copies a cached page into buf and reports whether there is one that is right. For a listing with attributes it also has
// to be of use: where most locks on its entries are gone, one request brings them all again.
func (c *Client) cachedPage(f fid.FID, cookie uint64, plus bool, buf []byte) (n int, eof, ok bool) {
	g := c.pages.find(f.Ino(), cookie, plus)
	if g == nil && !plus {
		g = c.pages.find(f.Ino(), cookie, true)
	}
	if g == nil || len(g.data) > len(buf) {
		c.pages.misses.Add(1)
		return 0, false, false
	}
	if !c.pageRight(f, g) {
		c.pages.drop(g)
		c.pages.misses.Add(1)
		return 0, false, false
	}
	if plus && !c.pageCovered(g) {
		c.pages.misses.Add(1)
		return 0, false, false
	}
	c.pages.hits.Add(1)
	c.pages.used(g)
	return copy(buf, g.data), g.eof, true
}

// pageRight reports whether a page's names are those of its folder now.
func (c *Client) pageRight(f fid.FID, g *page) bool {
	n := c.nodes.find(g.ino)
	if n == nil {
		return false
	}
	h, ok := c.match(f, ldlm.Update)
	if !ok {
		return false
	}
	defer c.locks.Unpin(h)
	n.mu.Lock()
	ok = n.held&ldlm.Update != 0 && n.epoch == g.epoch
	n.mu.Unlock()
	return ok && !c.changes.since(g.ino, g.at)
}

// pageCovered reports whether most entries of a page are known under locks.
func (c *Client) pageCovered(g *page) bool {
	var d mdc.Dirent
	all, known := 0, 0
	for rest := g.data; len(rest) > 0; all++ {
		var err error
		if rest, err = mdc.DecodeDirent(rest, &d); err != nil {
			return false
		}
		if n := c.nodes.find(d.FID.Ino()); n != nil {
			n.mu.Lock()
			if n.valid&attrBits == attrBits {
				known++
			}
			n.mu.Unlock()
		}
	}
	return known >= all-all/16-2 // the two are "." and ".."
}

// pageAsked is what was known of a folder before one of its pages was asked for.
func (c *Client) pageAsked(f fid.FID) asked {
	k := asked{at: c.changes.now()}
	if n := c.nodes.find(f.Ino()); n != nil {
		n.mu.Lock()
		k.n, k.epoch, k.held = n, n.epoch, n.held
		n.mu.Unlock()
	}
	return k
}

// keepPage caches a page that was answered, if the folder's lock has been held all the time since k.
func (c *Client) keepPage(k *asked, f fid.FID, p *mdc.Page) {
	if k.held&ldlm.Update == 0 || c.hot.is(f.Ino()) {
		return
	}
	c.pages.add(&page{ino: f.Ino(), cookie: p.Cookie, plus: p.Plus, eof: p.EOF, data: append([]byte(nil), p.Buf[:p.N]...),
		epoch: k.epoch, at: k.at})
}
