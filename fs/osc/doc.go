// Package osc is one OST seen from a client: it keeps dirty data of the OST's objects under extent locks, writes it back against
// grant or when its lock is called back, and reads what it does not have.
//
// # Words
//
//   - dirty: accepted from a writer and not sent. Frozen or queued: turned into a WRITE that may not change any more.
//     Unanswered: frozen, and its reply is not there yet. (Lustre's osc_extent: CACHE, LOCK_DONE, RPC.)
//   - page: a run of dirty bytes in one buffer of 4 or 64 KiB. Block: an aligned range of an object, as long as a full
//     RPC, that has dirty or unanswered data. Write: a frozen run of contiguous pages of one block: one request.
//   - grant: space that the OST has promised for data gathered here (manual, "grant"). Every dirty byte is charged to it.
//   - write-through: a write whose caller waits for the answer, because it asked for that or no grant was left.
//   - kept: a change that was answered and may not be on the OST's disk (Lustre: unstable pages); spilled: kept where there was no room
//     beside the dirty data. Replay: to say it again to an OST that was started again and has lost it.
//   - press: to write back because a writer waits for room.
//   - pin: a call's hold on a lock. Cover: what is kept with a lock: which bytes of which file lie under it, and the object's size
//     as the lock told. Live: an Object with dirty or unanswered data, found by the object's number when a lock is revoked.
//   - lockless, loose: a read or write that names no lock, so that the OST takes one of its own while the request runs.
//   - glimpse: the object's size as every client would see it, without waiting for a lock.
//   - ahead: clean bytes read before anybody asked, kept under a lock until they are read once.
//   - lost: a lock that the OST has forgotten, by eviction. Hand back: tell a lock to an OST that was started again.
//
// # States of a byte
//
//	          Write                freeze                 send              answer        committed
//	(clean) ---------> dirty -----------------> queued ----------> sending ---------> kept ---------> (clean)
//	             ^       |  full, old, pressed,   |  ^                 |  error: the Holder is told
//	             +-------+  Flush or through      |  +-- blocked       +---------> (clean)
//	         overwritten    of the same block     |      by an older
//	          in place                            |      write of the
//	   dirty, Cut or Discard -> (clean)           |      same bytes
//	                                              +-- Discard -> (clean)
//
// A write-through begins as queued. A byte may be dirty and, in older versions, queued and sending at once: a reader
// takes the newest version, and otherwise asks the OST, which then has it.
//
// # Invariants
//
// Invariant: two requests that write a common byte are never on their way at once; they go in the order of the calls.
// Invariant: a page that is part of a write never changes.
// Invariant: a request that changes an object is never abandoned while it may still run. A caller that is interrupted
// leaves it to the OSC, and later changes of the same bytes wait for it.
// Invariant: accepted bytes are sent, or dropped by Cut or Discard, or their loss is told to the Holder once.
// Invariant: what is kept is in order of transno; it is replayed only to a start of the OST that knows this client, in its window.
// Invariant: buffers, in use and free, never exceed the Cache's limits; half of each is split into parts that only one
// OSC can use, so that OSTs that are away never stop the others.
// Invariant: every byte that is dirty, read ahead or in the kernel's cache lies under a lock that is held or being revoked; the lock
// goes back after the kernel's pages are dropped, what was read ahead is forgotten, and what is dirty is answered.
// Invariant: a write names a lock that covers bytes of it, or none and then nothing of it was gathered. A write whose lock is lost
// is never sent.
// Invariant: nothing that a lock's way back needs waits for a request without a lock, nor lacks a slot because of such ones.
// Invariant: what was read ahead before a write's answer is forgotten with the answer; until then the write hides it.
// Invariant: a block is on the age list while it has dirty pages, in its object's map while it has dirty or frozen ones.
//
// # Waiting
//
// Writers wait for memory, MaxDirtyBytes and grant; each answer wakes them. Nothing that an answer depends on waits for
// a writer: queued writes are sent by up to MaxInFlight goroutines that hold no lock meanwhile.
//
// A Revoke waits for the kernel, for answers, and for nothing else: neither for a writer nor for a lock.
//
// Lock order: Object.mu; then one of OSC.mu, live.mu, covers.mu, aheads.mu; Cache.mu. No two objects' are held at once. The
// Holder's methods run under Object.mu. Kernel.mu, loose.mu, recovering.mu and cover.mu stand alone; none is held across
// DropPages or a request.
package osc
