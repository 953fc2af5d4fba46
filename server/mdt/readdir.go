package mdt

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// Bounds of one page of a listing.
const (
	// readdirMax bounds a reply's bulk, whatever the client asks for; readdirMin fits the longest entry.
	readdirMax = 1 << 20
	readdirMin = 4 << 10
	// scanBatch is how many entries are read before their attributes are.
	scanBatch = 128
	// direntMin is the least that an entry takes in a reply.
	direntMin = 20
)

// dirScan collects a batch of entries. Its fn is bound once, so that a listing makes no closure.
type dirScan struct {
	fn      func(key, value []byte) bool
	entries []dirent
	names   []byte
	err     error
	// locks are those granted on the entries, spare are those of them that are not sent.
	locks [scanBatch]wirepb.LockGrant
	spare []uint64
}

func (s *dirScan) init() { s.fn = s.visit }

func (s *dirScan) visit(key, value []byte) bool {
	var d dirent
	if s.err = d.decode(key, value); s.err != nil {
		return false
	}
	if len(d.name) == 0 {
		return true
	}
	// Names are copied: what a scan shows is valid during the call only. A batch's names fit the capacity taken once, so
	// that the slices handed out before stay where they are.
	at := len(s.names)
	s.names = append(s.names, d.name...)
	d.name = s.names[at:]
	s.entries = append(s.entries, d)
	return len(s.entries) < scanBatch
}

// readdir answers with entries behind a cookie, in cookie order, "." and ".." first. An entry's cookie never changes, so
// what comes and goes meanwhile makes no other entry appear twice or not at all.
func (o *op) readdir() error {
	m := &o.req.readdir
	if err := o.decode(m); err != nil {
		return err
	}
	if err := o.as(m.Caller); err != nil {
		return err
	}
	f, err := o.fid(m.Seq, m.Oid)
	if err != nil {
		return err
	}
	n := &o.folder
	if err := o.read(f, n, o.wants(m.WantFolder, false)); err != nil {
		return err
	}
	if !n.IsDir() {
		return status.NotDir
	}
	if !o.xs.hasFolder(f) { // Whoever has it open was allowed to then.
		if err := permission(&o.cred, n, mayRead); err != nil {
			return err
		}
	}
	r := &o.rep.readdir
	r.Count, r.Eof, r.Locks = 0, true, o.grants()
	p := page{o: o, plus: m.Plus, want: o.wants(m.Want, true), stamp: n.content, b: o.c.BulkBuffer(int(min(max(m.MaxBytes, readdirMin), readdirMax)))}
	if n.Nlink > 0 {
		r.Eof, err = o.fillPage(&p, n, m.Cookie)
		if err != nil {
			return err
		}
	}
	r.Count = p.count
	o.c.Reply, o.c.ReplyBulk = r, p.b[:p.used]
	return nil
}

// page is the part of a listing that one reply carries.
type page struct {
	o     *op
	plus  bool
	b     []byte
	used  int
	count uint32
	// want is what the client would like of each entry's inode, with attributes. stamp is the folder's content stamp from
	// before the batch was scanned, locks are the locks of the batch's first entries.
	want  ldlm.Bits
	stamp stamp
	locks []wirepb.LockGrant
}

// fillPage adds entries behind cookie until the page is full or, then eof, none is left.
func (o *op) fillPage(p *page, n *inode, cookie uint64) (eof bool, err error) {
	if cookie < cookieDotDot {
		if ok, err := o.addDots(p, n, cookie); err != nil || !ok {
			return false, err
		}
	}
	next := max(cookie+1, firstCookie)
	for next < cookieLimit {
		s := &o.list
		s.entries, s.names, s.err = s.entries[:0], s.names[:0], nil
		if cap(s.names) < scanBatch*attr.NameMax {
			s.names = make([]byte, 0, scanBatch*attr.NameMax)
		}
		from := appendDirentKey(o.e.Alloc(direntKeySize)[:0], n.FID, next)
		to := appendDirentKey(o.e.Alloc(direntKeySize)[:0], n.FID, cookieLimit)
		if err := o.h.dev.Scan(o.e, o.h.tables.Dirent, from, to, s.fn); err != nil {
			return false, err
		}
		if s.err != nil {
			return false, s.err
		}
		if ok, err := p.addBatch(n.FID, s.entries); err != nil || !ok {
			return false, err
		}
		if len(s.entries) > 0 {
			next = s.entries[len(s.entries)-1].cookie + 1
		}
		if len(s.entries) < scanBatch {
			return true, nil
		}
		if len(p.b)-p.used < direntMin {
			return false, nil
		}
	}
	return true, nil
}

// lockedMin is about what an entry with attributes and a lock takes: more of a batch are not locked than may fit.
const lockedMin = 128

// pageLocks bounds the locks of one page, so that two pages in flight are within sentMax.
const pageLocks = sentMax / 2

// addBatch adds scanned entries, with locks on their inodes if they are wanted. False when the page is full.
func (p *page) addBatch(folder fid.FID, entries []dirent) (bool, error) {
	p.locks = nil
	if p.plus && p.want != 0 {
		if err := p.lock(folder, entries); err != nil {
			return false, err
		}
		defer p.unlock()
	}
	for i := range entries {
		var g *wirepb.LockGrant
		if i < len(p.locks) && p.locks[i].Lock != 0 {
			g = &p.locks[i]
		}
		if ok, err := p.add(&entries[i], g); err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

// lock grants what is wanted on the entries' inodes, and then makes sure that the entries still lead there: the folder's
// content stamp is what it was before they were scanned, or else each is looked at again.
func (p *page) lock(folder fid.FID, entries []dirent) error {
	o := p.o
	n := min(len(entries), (len(p.b)-p.used)/lockedMin, pageLocks-len(o.granted))
	if n <= 0 {
		return nil
	}
	p.locks = o.list.locks[:n]
	for i := range p.locks {
		p.lockEntry(&entries[i], &p.locks[i])
	}
	if p.want&ldlm.Lookup == 0 {
		return nil
	}
	before := p.stamp
	err := o.get(folder, &o.to)
	if err == nil && o.to.content == before {
		return nil
	}
	if err != nil && !errors.Is(err, status.Stale) {
		p.unlock()
		return err
	}
	p.stamp = o.to.content
	for i := range p.locks {
		if g := &p.locks[i]; g.Lock != 0 && !o.leads(folder, entries[i].name, entries[i].child) {
			o.list.spare = append(o.list.spare, g.Lock)
			g.Lock = 0
		}
	}
	return nil
}

// lockEntry grants what is wanted of one entry's inode.
func (p *page) lockEntry(d *dirent, g *wirepb.LockGrant) {
	o := p.o
	want := o.withoutWriters(d.child, p.want)
	if d.kind == attr.TypeDir>>12 && want&ldlm.Update != 0 && o.h.ctimeAge.Load() > 0 {
		if err := o.get(d.child, &o.child); err != nil || !o.mayUpdate(&o.child) {
			want &^= ldlm.Update
		}
	}
	w := &o.rep.want
	w.Mode, w.Bits, w.TryBits = uint32(ldlm.PR), 0, uint32(want)
	if want == 0 || !o.h.ldlm.Grant(o.e, o.xs.locks, ldlm.InodeRes(d.child), w, g) {
		g.Lock = 0
	}
}

// unlock takes the locks back that are not sent.
func (p *page) unlock() {
	s := &p.o.list
	for i := range p.locks {
		if h := p.locks[i].Lock; h != 0 {
			s.spare = append(s.spare, h)
		}
	}
	if len(s.spare) > 0 {
		p.o.takeBack(s.spare)
		s.spare = s.spare[:0]
	}
	p.locks = nil
}

// addDots adds "." and ".." behind cookie.
func (o *op) addDots(p *page, n *inode, cookie uint64) (bool, error) {
	const kind = attr.TypeDir >> 12
	if cookie < cookieDot {
		if ok, err := p.add(&dirent{cookie: cookieDot, kind: kind, child: n.FID, name: o.dots[:1]}, nil); err != nil || !ok {
			return ok, err
		}
	}
	up := n.FID
	if l, ok := n.parent(); ok {
		up = l.folder
	}
	return p.add(&dirent{cookie: cookieDotDot, kind: kind, child: up, name: o.dots[:2]}, nil)
}

// add adds one entry, with the lock on its inode if it has one: its length as a uvarint, then a wirepb.Dirent. False if it
// does not fit. With attributes asked for, an entry whose inode went meanwhile is left out.
func (p *page) add(d *dirent, g *wirepb.LockGrant) (bool, error) {
	o := p.o
	m := &o.rep.dirent
	m.Cookie, m.Name = d.cookie, d.name
	m.Seq, m.Oid = uint64(d.child.Seq), d.child.OID
	m.Mode = uint32(d.kind) << 12
	m.Attr, m.Layout, m.Lock = nil, nil, nil
	if p.plus {
		err := o.get(d.child, &o.child)
		if errors.Is(err, status.Stale) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		o.readsInode(&o.child)
		p.attach(m)
		if m.Lock = g; g != nil && ldlm.Bits(g.Bits)&ldlm.Update != 0 && !o.mayUpdate(&o.child) {
			m.Lock = nil
		}
	}
	size := m.SizeVT()
	head := uvarintLen(uint64(size))
	if p.used+head+size > len(p.b) {
		return false, nil
	}
	binary.PutUvarint(p.b[p.used:], uint64(size))
	p.used += head
	if _, err := m.MarshalToSizedBufferVT(p.b[p.used : p.used+size]); err != nil {
		return false, err
	}
	p.used += size
	p.count++
	if m.Lock != nil {
		o.granted = append(o.granted, g.Lock)
		g.Lock = 0
	}
	return true, nil
}

func (p *page) attach(m *wirepb.Dirent) {
	n := &p.o.child
	putAttr(&p.o.rep.attr, n)
	m.Attr, m.Mode = &p.o.rep.attr, n.Mode
	if n.IsFile() {
		m.Layout = n.sec[secLayout]
	}
}

func uvarintLen(v uint64) int {
	n := 1
	for ; v >= 0x80; v >>= 7 {
		n++
	}
	return n
}

// parents answers with the names of an inode.
func (o *op) parents() error {
	m := &o.req.getattr
	if err := o.decode(m); err != nil {
		return err
	}
	f, err := o.fid(m.Seq, m.Oid)
	if err != nil {
		return err
	}
	if err := o.get(f, &o.child); err != nil {
		return err
	}
	o.reads(o.child.own)
	r := &wirepb.ParentsReply{}
	for rest := o.child.sec[secLinks]; ; {
		l, next, ok, err := nextLink(rest)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		r.Links = append(r.Links, &wirepb.ParentsReply_Link{
			Seq: uint64(l.folder.Seq), Oid: l.folder.OID, Name: bytes.Clone(l.name),
		})
		rest = next
	}
	if f == rootFID {
		r.Links = append(r.Links, &wirepb.ParentsReply_Link{Seq: uint64(f.Seq), Oid: f.OID})
	}
	o.c.Reply = r
	return nil
}

// path answers with the paths of an inode below the root, one for each name that is known, from the one asked for on. The
// caller must be allowed to search every folder on it.
func (o *op) path() error {
	m := &o.req.path
	if err := o.decode(m); err != nil {
		return err
	}
	if err := o.as(m.Caller); err != nil {
		return err
	}
	f, err := o.fid(m.Seq, m.Oid)
	if err != nil {
		return err
	}
	if err := o.get(f, &o.child); err != nil {
		return err
	}
	o.reads(o.child.own)
	r := &wirepb.PathReply{}
	if f == rootFID {
		r.Paths = [][]byte{[]byte("/")}
		o.c.Reply = r
		return nil
	}
	total := 0
	rest := o.child.sec[secLinks]
	for i := uint32(0); ; i++ {
		l, next, ok, err := nextLink(rest)
		if err != nil {
			return err
		}
		if !ok || total > pathsMax {
			break
		}
		rest = next
		if i < m.Link {
			continue
		}
		p, err := o.pathOf(l)
		if err != nil {
			return err
		}
		total += len(p)
		r.Paths = append(r.Paths, p)
	}
	if len(r.Paths) == 0 {
		return status.NotExist
	}
	o.c.Reply = r
	return nil
}

// pathsMax bounds the paths of one reply, so that it fits a frame's body.
const pathsMax = 128 << 10

// pathOf builds the path of one name, without a leading slash.
func (o *op) pathOf(l parentLink) ([]byte, error) {
	var parts [][]byte
	size := 0
	for range depthMax {
		parts = append(parts, l.name)
		if size += len(l.name) + 1; size > pathsMax {
			return nil, status.NameTooLong
		}
		if err := o.get(l.folder, &o.step); err != nil {
			return nil, err
		}
		if err := search(&o.cred, &o.step); err != nil {
			return nil, err
		}
		if l.folder == rootFID {
			break
		}
		var ok bool
		if l, ok = o.step.parent(); !ok {
			return nil, status.NotExist
		}
	}
	out := make([]byte, 0, size)
	for i := len(parts) - 1; i >= 0; i-- {
		out = append(out, parts[i]...)
		if i > 0 {
			out = append(out, '/')
		}
	}
	return out, nil
}
