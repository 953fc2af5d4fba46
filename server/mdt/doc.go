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
//   - dependency: what an operation rests on, by its stamp (depend.go). sharing: an operation depends on another client's change
//     that is not on disk.
//   - orphan: an inode without a name that somebody has open, or that O_TMPFILE made.
//   - sequence: the FIDs that one client names new inodes from.
//   - grant: a lock that goes to the client with the answer to another request, because nobody's lock has to come back for it.
//   - replay: an operation that an earlier start has answered, done again with the same result. dependency: what an operation rests on,
//     by the stamps that it found. outcome: what a size report made of its file.
//   - hot folder: one whose entries another client has just changed; they are not worth a lock.
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
// Invariant: a replay makes the change of its first run, with its stamps and times, or is refused and makes none.
//
// Invariant: a FID is used once: an operation claims it in memory, and its transaction records it.
//
// Invariant: a record of a folder is written whole only under EX of its UPDATE; else it is changed by deltas.
//
// Invariant: what an answer says is covered by the lock granted with it: the lock is granted before it is read.
//
// Invariant: a client holds UPDATE of a file only while the record's size is the whole truth, or while it is the only writer.
//
// Invariant: with commit on share, what an operation changes rests on its own client's changes and on what is on disk.
//
// Invariant: an operation of a client neither calls that client's own locks back nor waits for them.
//
// Lock order. Locks are server/lockd's, taken by lockSet alone, in the order of DESIGN §4: (1) the rename lock; (2) folders, ancestor
// before descendant, unrelated ones by FID; (3) names by folder and hash; (4) children, folders before others, by FID;
// then mutexes: Handler.seqMu, export.mu, sentGrants.mu, seqUse.mu, openShard.mu, syncer.mu, of which none is held when
// another is taken but export.mu inside Handler.seqMu; then publish. Children are only tried: see lockSet.acquire.
// Grants wait for nothing, and none of those mutexes is held across a call of lockd.
// Throttle, object reservation and commits are waited for before the first lock or after the last; nothing waits in
// between, but for one commit, by an operation that has given its locks back for it twice already (cos.go). sharing.mu and
// removalShard.mu are taken last, and alone.
//
// The README beside this file tells what happens at each crash point.
package mdt
