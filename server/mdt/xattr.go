package mdt

import (
	"bytes"
	"strings"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// decodeXattr reads an xattr request and the FID in it is checked.
func (o *op) decodeXattr() (*wirepb.XattrRequest, error) {
	m := &o.req.xattr
	if err := o.decode(m); err != nil {
		return nil, err
	}
	return m, o.as(m.Caller)
}

// class says which rules an attribute's name is under.
type class int

const (
	classNone class = iota
	classUser
	classTrusted
	classSecurity
	classACL
	classDefaultACL
)

var prefixes = [...]struct {
	prefix string
	class  class
}{{attr.XattrUser, classUser}, {attr.XattrTrusted, classTrusted}, {attr.XattrSecurity, classSecurity}}

// classOf finds the rules of a name: NotSupport for a namespace that is not kept, Invalid for a bare prefix, Range for a
// name that is too long or empty.
func classOf(name []byte) (class, error) {
	if len(name) == 0 || len(name) > attr.XattrNameMax {
		return classNone, status.Range
	}
	if bytes.IndexByte(name, 0) >= 0 {
		return classNone, status.Invalid
	}
	switch string(name) {
	case attr.XattrACLAccess:
		return classACL, nil
	case attr.XattrACLDefault:
		return classDefaultACL, nil
	}
	for _, p := range prefixes {
		if len(name) >= len(p.prefix) && string(name[:len(p.prefix)]) == p.prefix {
			if len(name) == len(p.prefix) {
				return classNone, status.Invalid
			}
			return p.class, nil
		}
	}
	return classNone, status.NotSupport
}

// mayXattr is xattr_permission of Linux, and cap_inode_setxattr for security attributes.
func mayXattr(c *attr.Cred, n *inode, k class, want uint32) error {
	writing := want&mayWrite != 0
	if writing && n.Flags&(attr.FlagImmutable|attr.FlagAppend) != 0 {
		return status.Perm
	}
	refused := error(status.NoData)
	if writing {
		refused = status.Perm
	}
	switch k {
	case classTrusted:
		if !c.Root() {
			return refused
		}
	case classSecurity:
		if writing && !c.Root() {
			return status.Perm
		}
	case classUser:
		if !n.IsFile() && !n.IsDir() {
			return refused
		}
		if n.IsDir() && n.Mode&attr.Sticky != 0 && writing && !owner(c, n) {
			return status.Perm
		}
		return permission(c, n, want)
	case classACL, classDefaultACL:
		if n.Type() == attr.TypeLink && !writing {
			return status.NotSupport
		}
	}
	return nil
}

func (o *op) getxattr() error {
	m, err := o.decodeXattr()
	if err != nil {
		return err
	}
	f, err := o.fid(m.Seq, m.Oid)
	if err != nil {
		return err
	}
	n := &o.child
	if err := o.read(f, n, o.wants(m.Want, false)); err != nil {
		return err
	}
	k, err := classOf(m.Name)
	if err != nil {
		return err
	}
	if err := mayXattr(&o.cred, n, k, mayRead); err != nil {
		return err
	}
	var value []byte
	switch k {
	case classACL:
		value = n.sec[secACL]
	case classDefaultACL:
		value = n.sec[secDefaultACL]
	default:
		x, _, ok, err := findXattr(n.sec[secXattrs], m.Name)
		if err != nil {
			return err
		}
		if !ok {
			return status.NoData
		}
		if value, err = o.xattrValue(f, &x); err != nil {
			return err
		}
		o.xattrReply(value, nil)
		return nil
	}
	if len(value) == 0 {
		return status.NoData
	}
	o.xattrReply(value, nil)
	return nil
}

func (o *op) xattrReply(value []byte, n *inode) {
	r := &o.rep.xattr
	r.Value, r.Attr, r.Locks, r.Recovery = value, nil, o.grants(), nil
	if n != nil {
		putAttr(&o.rep.attr, n)
		r.Attr = &o.rep.attr
	}
	o.c.Reply = r
}

// listxattr lists the names that the caller may see, each ended by NUL.
func (o *op) listxattr() error {
	m, err := o.decodeXattr()
	if err != nil {
		return err
	}
	f, err := o.fid(m.Seq, m.Oid)
	if err != nil {
		return err
	}
	n := &o.child
	if err := o.read(f, n, o.wants(m.Want, false)); err != nil {
		return err
	}
	list := o.e.Alloc(len(n.sec[secXattrs]) + len(attr.XattrACLAccess) + len(attr.XattrACLDefault) + 2)[:0]
	for rest := n.sec[secXattrs]; len(rest) > 0; {
		x, next, err := nextXattr(rest)
		if err != nil {
			return err
		}
		if o.cred.Root() || !strings.HasPrefix(string(x.name), attr.XattrTrusted) {
			list = append(append(list, x.name...), 0)
		}
		rest = next
	}
	if len(n.sec[secACL]) > 0 {
		list = append(append(list, attr.XattrACLAccess...), 0)
	}
	if len(n.sec[secDefaultACL]) > 0 {
		list = append(append(list, attr.XattrACLDefault...), 0)
	}
	o.xattrReply(list, nil)
	return nil
}

func (o *op) setxattr() error {
	m, err := o.decodeXattr()
	if err != nil {
		return err
	}
	if len(m.Value) > attr.XattrValueMax {
		return status.TooBig
	}
	if m.Flags&^(attr.XattrFlagCreate|attr.XattrFlagReplace) != 0 {
		return status.Invalid
	}
	return o.changeXattr(m, func(k class) error {
		switch k {
		case classACL:
			return o.setACL(&o.child, m.Value)
		case classDefaultACL:
			return o.setDefaultACL(&o.child, m.Value)
		}
		return o.setStored(&o.child, m)
	}, false)
}

func (o *op) removexattr() error {
	m, err := o.decodeXattr()
	if err != nil {
		return err
	}
	return o.changeXattr(m, func(k class) error {
		switch k {
		case classACL:
			return o.setACL(&o.child, nil)
		case classDefaultACL:
			return o.setDefaultACL(&o.child, nil)
		}
		return o.removeStored(&o.child, m.Name)
	}, true)
}

// changeXattr locks the inode, checks, changes and publishes. reserve lets it use the last of the device.
func (o *op) changeXattr(m *wirepb.XattrRequest, change func(class) error, reserve bool) error {
	f, err := o.fid(m.Seq, m.Oid)
	if err != nil {
		return err
	}
	k, err := classOf(m.Name)
	if err != nil {
		return err
	}
	if err := o.cancels(m.Cancels); err != nil {
		return err
	}
	if err := o.throttle(reserve); err != nil {
		return err
	}
	n := &o.child
	bits := ldlm.Xattr | ldlm.Update
	if k == classACL || k == classDefaultACL {
		bits |= ldlm.Perm
	}
	if err := o.lockOne(f, ldlm.EX, bits); err != nil {
		return err
	}
	if err := mayXattr(&o.cred, n, k, mayWrite); err != nil {
		return err
	}
	o.beginTx()
	if err := change(k); err != nil {
		return err
	}
	o.depends(n.own)
	if k == classDefaultACL {
		o.depends(n.content)
	}
	if err := o.agree(); err != nil {
		return err
	}
	o.touch(n)
	o.put(n, false)
	r := &o.rep.xattr
	putAttr(&o.rep.attr, n)
	r.Value, r.Attr, r.Locks = nil, &o.rep.attr, nil
	return o.commit(r)
}

// mayACL checks a new ACL: set_posix_acl of Linux. a is nil for a removal.
func mayACL(c *attr.Cred, n *inode, a acl, k class) error {
	if n.Type() == attr.TypeLink {
		return status.NotSupport
	}
	if k == classDefaultACL && !n.IsDir() {
		if a == nil {
			return nil
		}
		return status.Access
	}
	if !owner(c, n) {
		return status.Perm
	}
	if a == nil {
		return nil
	}
	return a.check()
}

// setACL sets or, with an empty value, removes the access ACL. One that the mode can say alone becomes the mode.
func (o *op) setACL(n *inode, value []byte) error {
	a, err := parseACL(value)
	if err != nil {
		return err
	}
	if err := mayACL(&o.cred, n, a, classACL); err != nil {
		return err
	}
	n.sec[secACL], n.HasACL = nil, false
	if a == nil {
		return nil
	}
	bits, minimal := a.mode()
	mode := n.Mode&^0o777 | bits
	if !o.cred.Root() && !o.cred.InGroup(n.GID) {
		mode &^= attr.SetGID
	}
	n.Mode = mode
	if !minimal {
		n.sec[secACL], n.HasACL = a, true
	}
	return nil
}

// setDefaultACL sets or, with an empty value, removes a folder's default ACL.
func (o *op) setDefaultACL(n *inode, value []byte) error {
	a, err := parseACL(value)
	if err != nil {
		return err
	}
	if err := mayACL(&o.cred, n, a, classDefaultACL); err != nil {
		return err
	}
	n.sec[secDefaultACL] = a
	return nil
}
