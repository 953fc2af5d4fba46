// Package param is the parameter socket: how lctl reads and sets the parameters and statistics of the processes of its
// host. Every strake process listens on one, whatever its roles.
//
// Words:
//
//   - parameter socket: a Unix socket named <role>-<pid>.sock (mode 0600) in the first of [Folders] that can be used:
//     /run/strake (0755), $XDG_RUNTIME_DIR/strake, strake-<uid> in the folder for temporary files.
//   - node, pattern: those of package stats. Permanent: kept by the MGS, applied by every process of the file system.
//
// Who may talk: root and the user that the process runs as. The socket's mode says so, and the kernel's word on the peer
// (SO_PEERCRED) is checked besides. A folder that belongs to somebody else, or that others may write to, is not used, by
// neither side.
//
// Protocol, version 1. Both sides send JSON objects, one a line, UTF-8. The server begins with a greeting:
//
//	{"strake":1,"role":"oss","pid":4711,"fsname":"strake","version":"v0.2","mgs":false}
//
// or, to a peer it does not talk to, with an answer that is an end. Then requests are answered one after the other, each
// by any number of lines for nodes and one end:
//
//	{"v":1,"op":"get","pattern":"osc.*.max_dirty_mb","recursive":false}
//	{"name":"osc.strake-OST0000-osc.max_dirty_mb","text":"64","writable":true}
//	{"end":true,"nodes":1}
//
// Operations: "list" (name, folder, writable), "get" (text as well, absent for folders), "set" (pattern, value; a line
// for each node that is no folder, with code and error when it refused),
// "permanent" (name, value; an empty value removes). An end carries code and error when the request failed as a whole.
// Codes are the numbers of package status. No operation shows a secret: there is none in the registry.
//
// Bounds: a request has at most 64 KiB, 16 connections are served at once (others wait for their turn), and a peer that
// sends or takes nothing for ten seconds is cut off. What is not a request ends the connection, with a reason.
//
// A process that dies leaves its socket behind; nobody listens on it, and whoever starts next in the folder removes it. One
// that is stopped does not greet; lctl waits three seconds for that, and ten for each answer.
//
// Lock order: Server.mu alone, never held across I/O or a setter.
package param
