// Package store is the contract of one local device: ordered tables with transaction groups, and object files.
//
// Words:
//
//   - table: an ordered map from keys to values. A table may have a Merger: then parallel operations change shared
//     values by deltas instead of writing whole records.
//   - transaction (Tx): puts, deletes and deltas that become visible together, under one transno.
//   - txg: the transactions that commit together. At most three are alive: open, closed, syncing.
//   - transno: the number of a published transaction; its upper bits are the device's start count, so that no number is
//     given twice in a device's life.
//   - last committed: the newest transno whose transaction, and every earlier one, is on disk.
//
// Invariant: transnos are given in the order of publishing, and every transno of a txg is below every one of the next.
//
// Invariant: after a crash the tables hold exactly the transactions up to some transno: a prefix in transno order, at
// least up to what Committed returned before.
//
// Invariant: a Tx is a plain ordered batch. Applied to another device in the same state it gives the same state.
//
// A device that cannot commit stops: it publishes nothing more, Err tells why, and waiters get that error.
//
// Implementations: boltdev (bbolt and files of a local file system), memdev (memory, crashes on command), faultdev
// (decorator with scripted faults). Package storetest holds the suite that each of them passes.
package store
