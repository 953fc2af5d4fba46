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

	mu sync.Mutex
	// buf holds fetched entries; next is their undelivered rest. guarded by mu
	buf  []byte
	next []byte
	// at is the cookie of the last entry delivered, behind which next begins. guarded by mu
	at      uint64
	eof     bool
	fetched uint64
	ent     mdc.Dirent
	// pending says that ent was decoded and not taken. guarded by mu
	pending bool
}

// OpenDir opens a folder for reading. It lives on at the MDT without a name until Release, as an open file does.
func (c *Client) OpenDir(ctx context.Context, who *mdc.Caller, f fid.FID, flags uint32) (*Dir, error) {
	e := c.entry()
	defer c.putEntry(e)
	if err := c.mdc.Open(ctx, who, f, flags, e); err != nil {
		return nil, err
	}
	d := &Dir{c: c, f: f, who: *who, handle: e.Handle}
	d.who.Groups = append([]uint32(nil), who.Groups...)
	return d, nil
}

// Release ends the use of the folder. It waits for nothing.
func (d *Dir) Release() { d.c.mdc.QueueReport(mdc.Report{FID: d.f, Handle: d.handle}) }

// Read delivers entries behind cookie to fn until fn refuses one (it is delivered again by the next Read) or the folder
// ends. fresh says that the entry's attributes are as new as the kernel's. plus asks for attributes. fn must not keep
// the entry.
func (d *Dir) Read(ctx context.Context, cookie uint64, plus bool, fn func(e *mdc.Dirent, fresh bool) bool) error {
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
		ino := d.ent.FID.Ino()
		fresh := d.ent.HasAttr && !d.c.changes.since(ino, d.fetched)
		if fresh && d.ent.Attr.IsFile() {
			fresh = d.c.completeDirent(&d.ent)
		}
		if !fn(&d.ent, fresh) {
			return nil
		}
		d.at, d.pending = d.ent.Cookie, false
	}
}

// completeDirent completes a file's attributes from the inode in use; without one, the MDT must know the size.
func (c *Client) completeDirent(e *mdc.Dirent) bool {
	if in := c.find(e.FID.Ino()); in != nil {
		in.complete(&e.Attr)
		c.put(in)
	}
	return e.Attr.SizeValid
}

func (d *Dir) fetch(ctx context.Context, plus bool) error {
	if d.eof {
		return nil
	}
	if d.buf == nil {
		d.buf = make([]byte, dirBuffer)
	}
	fetched := d.c.changes.now()
	n, eof, err := d.c.mdc.Readdir(ctx, &d.who, d.f, d.at, plus, d.buf)
	if err != nil {
		return err
	}
	d.next, d.eof, d.fetched = d.buf[:n], eof, fetched
	return nil
}
