package wire

import "strconv"

// Op is what a request asks for.
type Op uint16

// Operations of every target.
const (
	OpConnect    Op = 1
	OpDisconnect Op = 2
	OpPing       Op = 3
	OpStatfs     Op = 4
)

// Operations of the MGS.
const (
	OpRegister Op = 0x100 + iota
	OpConfig
	OpReport
)

// Operations of an MDT.
const (
	OpLookup Op = 0x200 + iota
	OpGetattr
	OpOpen
	OpCreate
	OpLink
	OpUnlink
	OpRename
	OpSetattr
	OpReaddir
	OpReadlink
	OpGetxattr
	OpSetxattr
	OpListxattr
	OpRemovexattr
	OpClose
	OpReportSizes
	OpSync
	OpSeq
	OpPath
	OpSetLayout
	OpParents
)

// Operations of an OST.
const (
	OpRead Op = 0x300 + iota
	OpWrite
	OpPunch
	OpFallocate
	OpSeek
	OpGlimpse
	OpObjectSync
	OpObjectSetattr
	OpPrecreate
	OpDestroy
)

// Calls of a server to a client.
const (
	// OpConfigChanged tells a client of the MGS that a newer configuration is there (body: Config with version only).
	OpConfigChanged Op = 0x400 + iota
)

var opNames = map[Op]string{
	OpConnect: "connect", OpDisconnect: "disconnect", OpPing: "ping", OpStatfs: "statfs",
	OpRegister: "register", OpConfig: "config", OpReport: "report",
	OpLookup: "lookup", OpGetattr: "getattr", OpOpen: "open", OpCreate: "create", OpLink: "link", OpUnlink: "unlink",
	OpRename: "rename", OpSetattr: "setattr", OpReaddir: "readdir", OpReadlink: "readlink", OpGetxattr: "getxattr",
	OpSetxattr: "setxattr", OpListxattr: "listxattr", OpRemovexattr: "removexattr", OpClose: "close",
	OpReportSizes: "report_sizes", OpSync: "sync", OpSeq: "seq", OpPath: "path", OpSetLayout: "set_layout",
	OpParents: "parents",
	OpRead:    "read", OpWrite: "write", OpPunch: "punch", OpFallocate: "fallocate", OpSeek: "seek",
	OpGlimpse: "glimpse", OpObjectSync: "object_sync", OpObjectSetattr: "object_setattr",
	OpPrecreate: "precreate", OpDestroy: "destroy",
	OpConfigChanged: "config_changed",
}

// Known reports whether the operation is one of this version.
func (o Op) Known() bool { _, ok := opNames[o]; return ok }

// String gives the operation's name as statistics print it.
func (o Op) String() string {
	if n, ok := opNames[o]; ok {
		return n
	}
	return "op_0x" + strconv.FormatUint(uint64(o), 16)
}

// Modifies reports whether the operation changes the target, so that it owns a request slot and is kept for replay.
func (o Op) Modifies() bool {
	switch o {
	case OpCreate, OpLink, OpUnlink, OpRename, OpSetattr, OpSetxattr, OpRemovexattr, OpOpen, OpClose, OpReportSizes,
		OpSeq, OpSetLayout:
		return true
	}
	return false
}

// Bulk reports whether the operation travels on an import's bulk connection.
func (o Op) Bulk() bool { return o == OpRead || o == OpWrite }

// Prior reports whether the operation must never wait behind others: it has slots, workers and memory of its own,
// because something may be waiting for it.
func (o Op) Prior() bool {
	switch o {
	case OpClose, OpReportSizes, OpPing, OpConnect, OpDisconnect:
		return true
	}
	return false
}
