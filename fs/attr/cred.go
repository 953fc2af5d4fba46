package attr

import "slices"

// GroupsMax bounds the supplementary groups of one caller: NGROUPS_MAX of Linux.
const GroupsMax = 65536

// Cred is who asks: the file system ids of the calling thread, its supplementary groups and its umask.
type Cred struct {
	UID    uint32
	GID    uint32
	Groups []uint32
	Umask  uint32
}

// InGroup reports whether gid is the caller's group or one of its supplementary groups.
func (c *Cred) InGroup(gid uint32) bool { return c.GID == gid || slices.Contains(c.Groups, gid) }

// Root reports whether the caller may do what CAP_DAC_OVERRIDE, CAP_FOWNER and CAP_CHOWN allow.
func (c *Cred) Root() bool { return c.UID == 0 }
