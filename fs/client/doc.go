// Package client is a mount's state above the targets: inodes in use, open files and folders, what is cached under the locks
// of the MDT, and what the kernel was told. Package fusefs calls it; it calls mdc for names and attributes and lov for data.
//
// Words:
//
//   - inode: the client's record of a file that has a handle, data not written yet, or a report not answered yet. Other
//     files need none: their number is their FID.
//   - node: what is cached of an inode, of any type, under locks of the MDT: attributes, layout, names that lead there,
//     extended attributes. It is there while a lock is held.
//   - writer: this client, for a file, from its first open for writing (or truncate) until it has reported that
//     nothing is left to write.
//   - known: of a writer or reader: it knows the size better than the MDT, or as well, and the Update lock keeps others from
//     changing it.
//   - told: given to the kernel with a timeout. Revoke: to drop what a lock covers, here and in the kernel.
//   - change: a modification that this mount made; attributes fetched before it are not kept after it.
//   - hot: of an inode: another client has called its lock back a moment ago; the kernel is told nothing of it.
//   - life: the time between two evictions by the MDT. A handle belongs to one.
//   - statahead: to ask the OSTs for sizes of listed files that other clients write, ahead of the stats that follow.
//
// Invariant: a node's content is right while its bits are valid: it was fetched under a lock that has been held since, and
// follows this client's own changes. Revoke clears the bits before the lock goes back.
//
// Invariant: what the kernel was told of a node is remembered there, and taken back by the Revoke of the lock that it hangs
// on. What is not written to the kernel yet when Revoke begins is not told (Tell decides as the answer is made).
//
// Invariant: Revoke waits for no request to a server and for no request of the kernel.
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
// Lock order: table shard, inode.mu, the objects' of package osc and the queue's of package mdc; node.mu, buckets of the
// tables of nodes; Dir.mu, statahead.mu; Names.mu, Budget.mu, params.mu and retirement.mu stand alone. None is held across a
// request or a call of Kernel, except Dir.mu (one reader of one folder handle) and inode.io, which serialises appends of one
// file and whose wait ends with its context. inode.mu is never taken with a node.mu held, nor the other way round.
package client
