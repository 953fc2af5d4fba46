// Package mdt is a metadata target: the POSIX namespace, open files, sizes, layouts, and the FIDs that clients name new
// files with.
//
// Words (Lustre Operations Manual, "Understanding Lustre Architecture"; man pages path_resolution(7), acl(5), xattr(7)):
//
//   - inode: the record of one FID. entry (dirent): a name in a folder and the FID that it leads to.
//   - cookie: an entry's place in its folder: keyed hash of its name, and an ordinal among equal hashes. It never changes.
//   - parent link: folder and name that lead to an inode, kept with it.
//   - delta: what an operation adds to a folder that parallel ones share: links, entries, times, content stamp.
//   - stamp: the transaction that changed something last, and for which client. An inode has its own stamp, a folder a
//     content stamp besides, an entry one too.
//   - writer: a client that may hold bytes of a file which the size in its record does not count.
//   - size_valid: size, blocks and mtime in the record are the file's whole truth.
//   - orphan: an inode without a name that somebody has open, or that O_TMPFILE made.
//   - sequence: the FIDs that one client names new inodes from.
//
// Invariant: every entry leads to an inode whose parent links name it (while the links fit their bound), and a file has as
// many links as entries that lead to it.
//
// Invariant: a folder's entry count, nlink and content stamp are those of its entries, in every committed state.
//
// Invariant: an inode without a name has an orphan record, and no other inode has one.
//
// Invariant: while a client is a writer of a file, its size_valid is cleared, on disk too once fsync has returned.
//
// Invariant: a FID is used once: an operation claims it in memory, and its transaction records it.
//
// Invariant: a record of a folder is written whole only under the folder's full lock; else it is changed by deltas.
//
// Lock order. Locks are taken by lockSet alone, in the order of DESIGN §4: (1) the rename lock; (2) folders, ancestor
// before descendant, unrelated ones by FID; (3) names by folder and hash; (4) children, folders before others, by FID;
// then mutexes: Handler.seqMu, export.mu, seqUse.mu, openShard.mu, lockShard.mu, syncer.mu, of which none is held when
// another is taken but export.mu inside Handler.seqMu; then publish. Children are only tried: see lockSet.acquire.
// Throttle, object reservation and commits are waited for before the first lock or after the last; nothing waits in
// between.
//
// The README beside this file tells what happens at each crash point.
package mdt
