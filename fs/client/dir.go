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

// OpenDir opens a folder for reading. Permission was checked by the kernel with the attributes it has, and is checked by
// the MDT with each fetch.
func (c *Client) OpenDir(who *mdc.Caller, f fid.FID) *Dir {
	d := &Dir{c: c, f: f, who: *who}
	d.who.Groups = append([]uint32(nil), who.Groups...)
	return d
}

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
