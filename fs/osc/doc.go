// Package osc is one OST seen from a client: it keeps dirty data of the OST's objects, writes it back against grant, and
// reads what it does not have.
//
// # Words
//
//   - dirty: accepted from a writer and not sent. Frozen or queued: turned into a WRITE that may not change any more.
//     Unanswered: frozen, and its reply is not there yet. (Lustre's osc_extent: CACHE, LOCK_DONE, RPC.)
//   - page: a run of dirty bytes in one buffer of 4 or 64 KiB. Block: an aligned range of an object, as long as a full
//     RPC, that has dirty or unanswered data. Write: a frozen run of contiguous pages of one block: one request.
//   - grant: space that the OST has promised for data gathered here (manual, "grant"). Every dirty byte is charged to it.
//   - write-through: a write whose caller waits for the answer, because it asked for that or no grant was left.
//   - press: to write back because a writer waits for room.
//
// # States of a byte
//
//	          Write                freeze                 send              answer
//	(clean) ---------> dirty -----------------> queued ----------> sending ---------> (clean)
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
// Invariant: buffers, in use and free, never exceed the Cache's limit; half of it is split into parts that only one
// OSC can use, so that OSTs that are away never stop the others.
// Invariant: a block is on the age list while it has dirty pages, in its object's map while it has dirty or frozen ones.
//
// # Waiting
//
// Writers wait for memory, MaxDirtyBytes and grant; each answer wakes them. Nothing that an answer depends on waits for
// a writer: queued writes are sent by up to MaxInFlight goroutines that hold no lock meanwhile.
//
// Until several clients write, Object.covered says yes: extent locks come in there.
//
// Lock order: Object.mu, OSC.mu, Cache.mu. No two objects' are held at once. The Holder's methods run under Object.mu.
package osc
