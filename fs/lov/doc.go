// Package lov is one file over many OSCs: it splits calls along the layout, keeps the size that this client knows, and
// merges what the stripes tell.
//
// # Words
//
//   - Set: the OSCs of a mount by OST index. File: one file's data, whoever has it open.
//   - chunk: a run of a call's bytes on one object. Stripe and component are those of package layout.
//   - delayed error: what went wrong with data after the write that brought it had returned. It is told once, to the
//     next WriteAt, Flush, Sync or TakeError.
//   - gate: what keeps reads and writes of this client apart from truncate, fallocate and seek.
//   - pins: the locks that a call holds on the objects it touches, each a span. Truth: the size kept here is the file's.
//
// # Invariants
//
// Invariant: the size covers every byte accepted; it shrinks by Truncate, SetSize, SetKnown and, where others write, by Glimpse.
// Invariant: while a stripe is cut or zeroed no call on the file's bytes runs, and none of the bytes meant is dirty or
// unanswered. This holds on when the caller was interrupted.
// Invariant: a delayed error is told once, never to nobody, unless the file is discarded.
// Invariant: reads behind an object's end and inside the size are zeros.
//
// Invariant: a call pins its locks in ascending order of the objects (component, then stripe) and keeps all until it ends, so that
// it is one for every other client; only glimpses ask for anything while a lock is pinned, and they wait for no lock.
//
// # Locks
//
// Read: PR on the objects touched. Write: PW on them. Append: PW on all objects from start to end, then the size. Truncate: PW from
// the cut on. Fallocate: PW on its bytes. Seek: PR from there on. A direct call on one object uses a lock that is held, or none:
// the OST then takes one. So does a call on one contended object, if its caller can be told (How.Uncached).
//
// # Size
//
// SetExclusive says that the MDT's lock covers the size kept here. Otherwise: a read in front of the object's size as its lock
// told needs nothing more, because nobody can cut there while the lock is held; behind it all objects are glimpsed, with the
// locks pinned. A glimpse of several objects sees one moment: it holds locks on all, or has seen the same twice. A truncate cuts
// the object that makes the file long behind all others, so that the file is never of a size between the two.
//
// Lock order: tail, pins, gate, File.mu for finding objects, osc's locks, File.mu for errors and times. File.mu is never held over a
// call that waits; Set.mu and gate.mu are innermost.
package lov
