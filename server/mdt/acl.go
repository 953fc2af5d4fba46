package mdt

import (
	"encoding/binary"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/status"
)

// Entry tags of an ACL: <linux/posix_acl.h>.
const (
	aclUserObj  = 0x01
	aclUser     = 0x02
	aclGroupObj = 0x04
	aclGroup    = 0x08
	aclMask     = 0x10
	aclOther    = 0x20

	aclVersion   = 2
	aclHeader    = 4
	aclEntrySize = 8
	aclNoID      = ^uint32(0)
	// aclEntriesMax bounds the entries of one ACL, so that it stays with the inode; ext4 on 4 KiB blocks holds fewer.
	aclEntriesMax = 500
)

// acl is an access control list as the value of its extended attribute, little-endian:
//
//	0 4  version (2), then for each entry:
//	0 2  tag
//	2 2  permissions, 0 to 7
//	4 4  user or group, all ones where the tag has none
//
// An acl that a record holds has passed check: entries stand in the order of their tags, the obj ones once each.
type acl []byte

func (a acl) count() int         { return max(0, len(a)-aclHeader) / aclEntrySize }
func (a acl) entry(i int) []byte { return a[aclHeader+i*aclEntrySize:][:aclEntrySize] }
func (a acl) tag(i int) uint16   { return binary.LittleEndian.Uint16(a.entry(i)) }
func (a acl) perm(i int) uint32  { return uint32(binary.LittleEndian.Uint16(a.entry(i)[2:])) }
func (a acl) id(i int) uint32    { return binary.LittleEndian.Uint32(a.entry(i)[4:]) }
func (a acl) setPerm(i int, p uint32) {
	binary.LittleEndian.PutUint16(a.entry(i)[2:], uint16(p&7))
}

// parseACL reads the value of an ACL attribute; an empty value or one without entries is a nil acl, which removes. It looks
// at the form only: posix_acl_from_xattr of Linux. check does the rest.
func parseACL(v []byte) (acl, error) {
	if len(v) == 0 {
		return nil, nil
	}
	if len(v) < aclHeader {
		return nil, status.Invalid
	}
	if binary.LittleEndian.Uint32(v) != aclVersion {
		return nil, status.NotSupport
	}
	if (len(v)-aclHeader)%aclEntrySize != 0 {
		return nil, status.Invalid
	}
	a := acl(v)
	if a.count() == 0 {
		return nil, nil
	}
	if a.count() > aclEntriesMax {
		return nil, status.NoSpace
	}
	return a, nil
}

// check refuses a list that is none: posix_acl_valid of Linux.
func (a acl) check() error {
	state, needMask := uint16(aclUserObj), false
	for i := range a.count() {
		tag := a.tag(i)
		next, ok := aclNext(state, tag)
		if a.perm(i) > 7 || !ok || (tag == aclUser || tag == aclGroup) && a.id(i) == aclNoID {
			return status.Invalid
		}
		needMask = (needMask || tag == aclUser || tag == aclGroup) && tag != aclMask
		state = next
	}
	if state != 0 || needMask {
		return status.Invalid
	}
	return nil
}

// aclNext is the automaton of posix_acl_valid: state is the tag that may come next, 0 when the ACL is whole.
func aclNext(state, tag uint16) (uint16, bool) {
	switch tag {
	case aclUserObj:
		return aclUser, state == aclUserObj
	case aclUser:
		return aclUser, state == aclUser
	case aclGroupObj:
		return aclGroup, state == aclUser
	case aclGroup:
		return aclGroup, state == aclGroup
	case aclMask:
		return aclOther, state == aclGroup
	case aclOther:
		return 0, state == aclOther || state == aclGroup
	}
	return 0, false
}

// mode gives the permission bits that a stands for; minimal says that they say all of it.
func (a acl) mode() (bits uint32, minimal bool) {
	minimal = true
	for i := range a.count() {
		switch p := a.perm(i); a.tag(i) {
		case aclUserObj:
			bits |= p << 6
		case aclGroupObj:
			bits |= p << 3
		case aclOther:
			bits |= p
		case aclMask:
			bits = bits&^0o070 | p<<3
			minimal = false
		default:
			minimal = false
		}
	}
	return bits, minimal
}

// chmod writes the permission bits of mode into a, as posix_acl_chmod does: the group bits go to the mask where there is
// one. a is changed in place.
func (a acl) chmod(mode uint32) {
	group := -1
	for i := range a.count() {
		switch a.tag(i) {
		case aclUserObj:
			a.setPerm(i, mode>>6)
		case aclGroupObj:
			if group < 0 {
				group = i
			}
		case aclMask:
			group = i
		case aclOther:
			a.setPerm(i, mode)
		}
	}
	if group >= 0 {
		a.setPerm(group, mode>>3)
	}
}

// inherit makes the access ACL of a new inode from a, a copy of its folder's default ACL, and returns the mode with what
// both allow; minimal says that the mode says all of it. It is posix_acl_create_masq.
func (a acl) inherit(mode uint32) (uint32, bool) {
	group, mask := -1, -1
	for i := range a.count() {
		switch a.tag(i) {
		case aclUserObj:
			a.setPerm(i, a.perm(i)&(mode>>6))
			mode &= a.perm(i)<<6 | ^uint32(0o700)
		case aclGroupObj:
			group = i
		case aclMask:
			mask = i
		case aclOther:
			a.setPerm(i, a.perm(i)&mode)
			mode &= a.perm(i) | ^uint32(0o007)
		}
	}
	if mask >= 0 {
		group = mask
	}
	if group >= 0 {
		a.setPerm(group, a.perm(group)&(mode>>3))
		mode &= a.perm(group)<<3 | ^uint32(0o070)
	}
	_, minimal := a.mode()
	return mode, minimal
}

// allows checks want (read 4, write 2, execute 1) as posix_acl_permission does for a caller who is not the owner's
// superior. owner and group are the inode's.
func (a acl) allows(c *attr.Cred, owner, group, want uint32) bool {
	mask := uint32(7)
	for i := range a.count() {
		if a.tag(i) == aclMask {
			mask = a.perm(i)
		}
	}
	inGroup := false
	for i := range a.count() {
		p := a.perm(i)
		switch a.tag(i) {
		case aclUserObj:
			if owner == c.UID {
				return p&want == want
			}
		case aclUser:
			if a.id(i) == c.UID {
				return p&mask&want == want
			}
		case aclGroupObj, aclGroup:
			id := group
			if a.tag(i) == aclGroup {
				id = a.id(i)
			}
			if c.InGroup(id) {
				inGroup = true
				if p&want == want {
					return mask&want == want
				}
			}
		case aclOther:
			return !inGroup && p&want == want
		}
	}
	return false
}
