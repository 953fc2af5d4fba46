// Package boltdev is the local device of a target: tables in one bbolt database, objects in files beside it.
//
// Words (package store has the rest):
//
//   - layer: one txg in memory. overlay: the layers alive, newest on top: open, closed, syncing.
//   - view: the overlay as a reader finds it, replaced whole when a txg opens, closes or is on disk.
//   - version: what a layer knows of a key: a put, a delete, or a delta that stands on what lies below.
//   - reader: a read transaction of the database with its cursors, reused until the next commit.
//   - backup: a file that holds one state of all tables, written while operations go on; tail: what the commits made meanwhile
//     write (backupformat.go draws the file).
//   - start count: how often the device was opened; the upper 20 bits of a transno.
//
// # On disk
//
//	<dir>/            0700, locked with flock(2) while a process has it open
//	  meta.db         0600, bbolt, pages of 4 KiB
//	  meta.db.new     a format or restore that was cut short; removed at the next start
//	  O/<group>/d<id mod 32>/<id>     objects, 0600; group and id in decimal
//
// The database, format version 1. Numbers are 8 bytes, big-endian:
//
//	bucket "device"     "format"     format version
//	                    "starts"     start count: written before the first transno of a start is given
//	                    "committed"  last transno whose transaction, and every earlier one, is in the tables
//	                    "restored"   Restored as JSON, from a restore until the target has taken note
//	bucket "label"      "record"     store.Label as JSON: fields may be added, unknown ones are ignored
//	bucket "t/<name>"   the table: keys and values as they were put, deltas applied
//
// A transno:
//
//	 63            44 43                                0
//	+----------------+-----------------------------------+
//	| start count 20 | counter 44, from 1 in each start  |
//	+----------------+-----------------------------------+
//
// # Publishing and committing
//
// Publish holds Device.mu for one short section: it takes the next transno, writes the stamps and merges the steps into
// the open layer, whose arena gets copies. The committer, one goroutine, closes the open layer on the timer, on Hasten
// or at Close, and Publish itself closes one that is full while no other waits closed; so every transno of a txg is
// below every one of the next. The committer writes a closed layer in key order in one transaction of bbolt, together
// with the committed transno. While three layers are alive and the open one is full, Throttle waits.
//
// # Room
//
// A commit that finds no room stops the device, so nothing is published that a commit may not find room for. Throttle
// weighs what the layers alive may take at most (a page for each key, but no more than the whole database and twice the
// new bytes) against the disk's free space and the database's free pages. Near the end it lets one small txg after
// another through; then only deletes and replays, from the reserve; an eighth of it, 32 MiB at most, is for commits alone.
//
// # Reading
//
// Readers take no lock but the short one around the pool of read transactions. A reader loads the newest published
// transno, then the view, then takes a read transaction: what is committed in between is in both the layer and the
// database, never in neither. Puts may be found twice; deltas must not be applied twice: each snapshot holds the
// transno it was committed with, and layers up to it do not count. A step newer than the transno loaded is passed over
// while its transaction is being published, so a transaction appears whole.
//
// Read transactions are kept between reads, never across a commit: the committer drops the idle ones before it begins
// to write, so that bbolt can reuse the pages of the commit before, and after it has written, before the layer leaves
// the view. The map of the database is larger than the file will be and never replaced, so no writer waits for readers.
//
// Invariant: a reader that begins after a transaction was published sees it, in a layer or in the database.
//
// Invariant: a layer leaves the view only when every read transaction handed out from then on holds it.
//
// Invariant: entries of a layer are never removed, and versions never change: readers need no lock.
//
// Invariant: a slice of a backup sees every commit that began before the backup had a tail; the tail has every one that began after.
//
// Lock order: objects.flushMu, Device.labelMu, Device.mu, readers.mu; objects.mu, fileCache.mu; space.mu and tail.mu are last.
// bbolt's own locks come after all of them. No lock of ours is held over a commit; labelMu is held over the commit of a
// label, flushMu over a flush, objects.mu over the making of a folder, once in the life of each.
//
// # Crash points
//
// What a crash at each point leaves; "power" is a loss of all that was not flushed, "kill" the end of the process:
//
//	point                              kill and power leave
//	format, before the rename          an empty folder, or one with meta.db.new: formatted at the next start
//	format, after the rename           a formatted device
//	start, before the count is         the count of before: no transno was given, so none is given twice
//	  committed
//	publish, before the commit         the state at the committed transno: the transaction is gone whole
//	commit, pages written              the same: the old meta page is the newest valid one
//	commit, meta page torn             the same: its checksum fails
//	commit, meta page written, not     either state, both whole; nobody was told yet
//	  flushed
//	commit, meta page flushed          the new state; who waited may not have been told
//	SetLabel                           the old or the new label
//	backup, before the rename          a file <name>.new-<random> that nothing reads; the device is as without it
//	restore, before the rename         an empty folder, or one with meta.db.new: formatted at the next start
//	restore, after the rename          the backup's state, with the note that it was restored
//	object written                     kill: the bytes; power: any mix of old and new pages, and sizes
//	object made or removed             kill: as done; power: done or not
//	Flush, Sync                        before its end as above; after its end what was written before its begin
//
// bbolt writes data pages, flushes, writes the meta page, flushes. A failed write or flush is never tried again: the
// kernel may have dropped the pages and forgotten the error. The device stops, and what was not reported committed is
// replayed by the clients.
//
// Open flushes the database and drops the host's pages of it before it reads: after a failed flush they show what is not on
// the disk, and no later flush would write them. Where the file system below is FUSE, syncfs reaches nobody; there each
// object and folder is flushed by itself, after a start all that there are.
//
// A page that is damaged, or that the disk cannot read, makes bbolt panic or the processor fault; both become
// ErrCorrupt here and stop the device. Nothing repairs a database in place.
package boltdev
