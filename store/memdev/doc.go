// Package memdev is a device in memory that can crash.
//
// Words:
//
//   - disk: what survives a crash. A Device is one use of it, from Open to Close or Crash.
//   - sync: one step that makes something durable: a commit of tables, a flush of objects, the sync of one object. Syncs
//     are numbered from 1 in the life of a Device, and Options.OnSync can fail each of them.
//
// Tables are kept twice: what is visible, and what is on the disk. The transactions between the two stand in a log in
// transno order; a commit applies a prefix of it to the disk. Objects likewise: blocks of 4 KiB that never change once
// written, so that a flush copies references.
//
// Invariant: the disk holds exactly the transactions up to its committed transno.
//
// It is for tests: nothing is tuned, every value is copied on its way in and out.
//
// Lock order: Device.commitMu, Device.syncMu, Device.mu, Disk.mu, objects.mu, object.mu.
package memdev
