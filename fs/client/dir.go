package client

import (
	"context"
	"sync"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/mdc"
)

// dirBuffer is what one request for folder entries fetches: about 1,500 entries with attributes, so that a folder of a
// million names is some hundreds of requests, while a folder handle stays small.
const dirBuffer = 192 << 10

// Dir is an open folder. Entries are streamed: a Dir holds one buffer, whatever the folder's size.
type Dir struct {
	c   *Client
	f   fid.FID
	who mdc.Caller
	// handle is the MDT's number of the open.
	handle uint64

	// sizes is what asks for the entries' sizes ahead of their stats.
	sizes listing

	mu sync.Mutex
	// buf holds fetched entries; next is their undelivered rest. guarded by mu
	buf  []byte
	next []byte
	// at is the cookie of the last entry delivered, behind which next begins. guarded by mu
	at  uint64
	eof bool
	ent mdc.Dirent
	// pending says that ent was decoded and not taken. guarded by mu
	pending bool
	// held says that locks on most entries of the last page were held already, so that there is no need to ask for those of
	// the next. guarded by mu
	held bool
}

// OpenDir opens a folder for reading. It lives on at the MDT without a name until Release, as an open file does.
func (c *Client) OpenDir(ctx context.Context, who *mdc.Caller, f fid.FID, flags uint32) (*Dir, error) {
	e := c.entry()
	defer c.putEntry(e)
	k := c.ask(f, e)
	if err := c.mdc.Open(ctx, who, f, flags, e); err != nil {
		return nil, err
	}
	if e.Attr.FID == f {
		c.keep(&k, e, false, name{})
	}
	d := &Dir{c: c, f: f, who: *who, handle: e.Handle}
	d.who.Groups = append([]uint32(nil), who.Groups...)
	return d, nil
}

// FID is the folder's.
func (d *Dir) FID() fid.FID { return d.f }

// Release ends the use of the folder. It waits for nothing.
func (d *Dir) Release() { d.c.mdc.QueueReport(mdc.Report{FID: d.f, Handle: d.handle}) }

// Read delivers entries behind cookie to fn until fn refuses one (it is delivered again by the next Read) or the folder
// ends. whole says that the entry's attributes are all known. plus asks for attributes. fn must not keep the entry.
func (d *Dir) Read(ctx context.Context, cookie uint64, plus bool, fn func(e *mdc.Dirent, whole bool) bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if cookie != d.at {
		d.at, d.next, d.eof, d.pending = cookie, nil, false, false
	}
	for {
		if !d.pending {
			if len(d.next) == 0 {
				if d.at != cookie {
					// What was delivered goes out before the next request is waited for.
					return nil
				}
				if err := d.fetch(ctx, plus); err != nil || len(d.next) == 0 {
					return err
				}
			}
			rest, err := mdc.DecodeDirent(d.next, &d.ent)
			if err != nil {
				return err
			}
			d.next, d.pending = rest, true
		}
		whole := plus && d.c.completeDirent(&d.ent)
		if !fn(&d.ent, whole) {
			return nil
		}
		if plus && !whole {
			d.c.ahead.note(&d.sizes, d.f.Ino(), &d.ent)
		}
		d.at, d.pending = d.ent.Cookie, false
	}
}

// completeDirent gives an entry the attributes that are cached; without them the kernel had better ask.
func (c *Client) completeDirent(e *mdc.Dirent) bool {
	return e.HasAttr && c.cachedAttr(c.nodes.find(e.FID.Ino()), &e.Attr)
}

func (d *Dir) fetch(ctx context.Context, plus bool) error {
	if d.eof {
		return nil
	}
	if d.buf == nil {
		d.buf = make([]byte, dirBuffer)
	}
	if n, eof, ok := d.c.cachedPage(d.f, d.at, plus, d.buf); ok {
		d.next, d.eof = d.buf[:n], eof
		return nil
	}
	p := mdc.Page{Cookie: d.at, Plus: plus, Buf: d.buf}
	if plus && !d.held {
		p.Want = wanted
	}
	k := d.c.pageAsked(d.f)
	if err := d.c.mdc.Readdir(ctx, &d.who, d.f, &p); err != nil {
		return err
	}
	if plus {
		defer d.c.mdc.EndPage(&p)
		if err := d.keep(&p, k.at); err != nil {
			return err
		}
	}
	d.c.keepPage(&k, d.f, &p)
	d.next, d.eof = d.buf[:p.N], p.EOF
	return nil
}

// keep caches the entries of a page under the locks that came with them.
func (d *Dir) keep(p *mdc.Page, at uint64) error {
	c := d.c
	parent := d.f.Ino()
	e := c.entry()
	defer c.putEntry(e)
	files, held := 0, 0
	for rest := p.Buf[:p.N]; len(rest) > 0; {
		var err error
		if rest, err = mdc.DecodeDirent(rest, &d.ent); err != nil {
			return err
		}
		x := &d.ent
		files++
		if c.nodes.find(x.FID.Ino()) != nil {
			held++
		}
		if p.Want == 0 {
			continue
		}
		if e.Lock, e.Bits = c.mdc.Adopt(p, x); e.Lock == 0 || !x.HasAttr {
			c.mdc.Settle(e)
			continue
		}
		e.Attr, e.Layout = x.Attr, append(e.Layout[:0], x.Layout...)
		k := asked{at: at}
		entry := name{}
		if !isDots(x.Name) {
			entry = name{parent, string(x.Name)}
		}
		c.keep(&k, e, false, entry)
		c.mdc.Settle(e)
	}
	d.held = held > files/2
	return nil
}

func isDots(b []byte) bool {
	return len(b) == 1 && b[0] == '.' || len(b) == 2 && b[0] == '.' && b[1] == '.'
}
