// Package client is a mount's state above the targets: inodes in use, open files and folders, and what the client
// knows without asking. Package fusefs calls it; it calls mdc for names and attributes and lov for data.
//
// Words:
//
//   - inode: the client's record of a file that has a handle, data not written yet, or a report not answered yet. Other
//     files need none: their number is their FID.
//   - exclusive: the MDT said that no other client can change the file system, so that what this one knows stays true.
//   - writer: this client, for a file, from its first open for writing (or truncate) until it has reported that
//     nothing is left to write. While it is one, it knows the size better than the MDT.
//   - change: a modification that this mount made; attributes fetched before it are not given to the kernel after it.
//
// Invariant: an inode stays in the table while it has handles, dirty data or an unanswered report; so attributes that
// the MDT answers with meanwhile are always completed with the local size and times.
//
// Invariant: a report with Done is queued only when the file has no handle left and its data has been answered by the
// OSTs.
//
// Invariant: closing never waits, neither for an OST nor for the MDT: the kernel has few places for closes, and what is
// behind them would wait too.
//
// Lock order: table shard, inode.mu, the objects' of package osc and the queue's of package mdc; Names.mu, Dir.mu and
// retirement.mu stand alone. None is held across a request, except Dir.mu (one reader of one folder handle) and inode.io,
// which serialises appends of one file and whose wait ends with its context.
package client
