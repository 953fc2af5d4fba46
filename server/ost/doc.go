// Package ost is the object storage target: objects with their records, reading and writing, making and destroying,
// grants, and the commit that makes it all durable.
//
// Words (Lustre Operations Manual; parameters obdfilter.*):
//
//   - object: a file of the device, named by group (the metadata target that owns it) and id. Ids are never reused.
//   - record: what the tables keep of an object: owner, stripe, ids that its space is charged to, blocks, times.
//   - number: every change gets the next one of the target's own sequence (its transno on the wire) when the host has
//     it. last_committed covers a number once a commit that began after it has ended.
//   - known: an object whose state is in memory; its file need not be open.
//   - hot: an object whose record may be behind its file after a crash. Marked on disk before the first write since it
//     was cold; fresh objects are born hot, by the range of ids (fresh, last] of their group.
//   - lockless: a request that names no lock of its sender; the OST takes a local one for as long as it runs.
//   - grant: space promised to a client for data that it has not written back yet.
//
// Invariant: a number is given after the change is in the host's file and the object is in the active list; a commit
// takes the newest number first and flushes after. So what last_committed covers is on disk.
//
// Invariant: when an object is written its hot mark, or its group's fresh range, is on disk.
//
// Invariant: an id up to the group's last one whose file is absent was destroyed. Writes to it succeed and do nothing.
//
// Invariant: the sum of grants is never above the free space when the last grant was given, less the reserve.
//
// Invariant: bytes of an object are read and changed for a request only under a lock: one of the sender's, checked, or a local one.
//
// Lock order: a request's lock comes before all of these, which are never held while it is waited for. OST.commitMu, group.mu,
// object.io, a resource's lock value block, OST.pubMu, object.mu, shard.mu, OST.activeMu. Whoever holds pubMu only tries
// object.io. Nothing waits for the disk under pubMu.
//
// The README beside this file says what happens at each crash point.
package ost
