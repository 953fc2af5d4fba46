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
	// OpReplayDone ends a stage of a client's recovery (ReplayDoneRequest, Empty).
	OpReplayDone Op = 5
	// OpReplay repeats a request that an earlier start of the target has answered (ReplayRequest, that request's reply).
	OpReplay Op = 6
	// OpInspect reads records of the target, for tools (InspectRequest, InspectReply).
	OpInspect Op = 7
)

// Lock operations, of every target with a namespace.
const (
	// OpEnqueue asks for a lock, and may wait for it.
	OpEnqueue Op = 0x10 + iota
	// OpConvert gives bits up, or makes a lock weaker or stronger.
	OpConvert
	// OpCancel gives locks back.
	OpCancel
	// OpProlong asks for more time with called-back locks.
	OpProlong
	// OpFlock gives application locks up, or asks who holds one.
	OpFlock
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
	// OpReopen hands opens back after a restart (ReopenRequest, ReopenReply).
	OpReopen
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
	// OpBlockingAST asks for a lock back (BlockingAST, Empty).
	OpBlockingAST
	// OpCompletionAST tells what became of a request that waited (CompletionAST, Empty).
	OpCompletionAST
	// OpGlimpseAST asks for a lock value block (GlimpseAST, GlimpseReply).
	OpGlimpseAST
)

var opNames = map[Op]string{
	OpConnect: "connect", OpDisconnect: "disconnect", OpPing: "ping", OpStatfs: "statfs", OpReplayDone: "replay_done",
	OpReplay: "replay", OpInspect: "inspect", OpReopen: "reopen",
	OpRegister: "register", OpConfig: "config", OpReport: "report",
	OpLookup: "lookup", OpGetattr: "getattr", OpOpen: "open", OpCreate: "create", OpLink: "link", OpUnlink: "unlink",
	OpRename: "rename", OpSetattr: "setattr", OpReaddir: "readdir", OpReadlink: "readlink", OpGetxattr: "getxattr",
	OpSetxattr: "setxattr", OpListxattr: "listxattr", OpRemovexattr: "removexattr", OpClose: "close",
	OpReportSizes: "report_sizes", OpSync: "sync", OpSeq: "seq", OpPath: "path", OpSetLayout: "set_layout",
	OpParents: "parents",
	OpRead:    "read", OpWrite: "write", OpPunch: "punch", OpFallocate: "fallocate", OpSeek: "seek",
	OpGlimpse: "glimpse", OpObjectSync: "object_sync", OpObjectSetattr: "object_setattr",
	OpPrecreate: "precreate", OpDestroy: "destroy",
	OpEnqueue: "ldlm_enqueue", OpConvert: "ldlm_convert", OpCancel: "ldlm_cancel", OpProlong: "ldlm_prolong",
	OpFlock:         "ldlm_flock",
	OpConfigChanged: "config_changed",
	OpBlockingAST:   "ldlm_bl_callback", OpCompletionAST: "ldlm_cp_callback", OpGlimpseAST: "ldlm_gl_callback",
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
// because something may be waiting for it. Enqueues, which wait, are not Prior; all that gives a lock back is.
func (o Op) Prior() bool {
	switch o {
	case OpClose, OpReportSizes, OpPing, OpConnect, OpDisconnect, OpReplayDone, OpReplay, OpReopen, OpConvert, OpCancel, OpProlong, OpFlock:
		return true
	}
	return false
}
