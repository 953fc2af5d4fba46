// Package virtual names the extended attributes that the client answers itself, and what their values hold, so that a
// tool gets at the file system's own knowledge through a mount in any process, without a connection to a server.
//
// None of them is stored as an attribute or listed by listxattr(2): a copy of all attributes must not try to set them
// elsewhere. Values are at most what the kernel hands over at once, 64 KiB.
package virtual

// Names. A value is text unless said otherwise.
const (
	// FID is an inode's FID, in the form of fid.FID.String.
	FID = "strake.fid"
	// Layout is the layout as package layout encodes it: of a file its own, of a folder its default (ENODATA without
	// one). Setting it on a folder sets the default, on a file never written its layout; removing it removes a
	// folder's default. Lov is its name in the field.
	Layout = "strake.layout"
	Lov    = "lustre.lov"
	// Paths holds an inode's paths from the file system's root, without a leading slash but for the root itself, each
	// ended by NUL.
	Paths = "strake.paths"
	// PathsOf, with a FID behind it, does the same for any inode of the file system.
	PathsOf = "strake.paths."
	// About is an Info as JSON.
	About = "strake.info"
	// Space is a list of TargetSpace as JSON, the MDTs first.
	Space = "strake.space"
)

// Kinds of a target.
const (
	KindMGS = "MGS"
	KindMDT = "MDT"
	KindOST = "OST"
)

// Active is the State of a target that the mount is connected to; every other text says why it is not.
const Active = "ACTIVE"

// Deactivated is the State of one that an administrator has switched off for this mount.
const Deactivated = "DEACTIVATED"

// Target is a target as the tools list it.
type Target struct {
	Name   string `json:"name"`
	Kind   string `json:"kind"`
	Index  uint32 `json:"index"`
	State  string `json:"state"`
	Server string `json:"server"`
}

// Info describes the mount and its file system.
type Info struct {
	FSName  string   `json:"fsname"`
	Version string   `json:"version"`
	Client  string   `json:"client"`
	Targets []Target `json:"targets"`
	// Default is the file system's default layout, encoded.
	Default []byte `json:"default_layout"`
}

// TargetSpace is one target's space in bytes and inodes; Error says why it did not answer.
type TargetSpace struct {
	Name       string `json:"name"`
	Kind       string `json:"kind"`
	Index      uint32 `json:"index"`
	Total      uint64 `json:"total"`
	Free       uint64 `json:"free"`
	Avail      uint64 `json:"avail"`
	Inodes     uint64 `json:"inodes"`
	FreeInodes uint64 `json:"free_inodes"`
	Error      string `json:"error,omitempty"`
}
