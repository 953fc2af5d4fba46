// Package lov is one file over many OSCs: it splits calls along the layout, keeps the size that this client knows, and
// merges what the stripes tell.
//
// # Words
//
//   - Set: the OSCs of a mount by OST index. File: one file's data, whoever has it open.
//   - chunk: a run of a call's bytes on one object. Stripe and component are those of package layout.
//   - delayed error: what went wrong with data after the write that brought it had returned. It is told once, to the
//     next WriteAt, Flush, Sync or TakeError.
//   - gate: what keeps reads and writes apart from truncate, fallocate and seek.
//
// # Invariants
//
// Invariant: the size covers every byte accepted; it shrinks only by Truncate and SetSize.
// Invariant: while a stripe is cut or zeroed no call on the file's bytes runs, and none of the bytes meant is dirty or
// unanswered. This holds on when the caller was interrupted.
// Invariant: a delayed error is told once, never to nobody, unless the file is discarded.
// Invariant: reads behind an object's end and inside the size are zeros.
//
// Extent locks will be taken where a call passes the gate: all stripes in ascending order, kept until it leaves.
//
// Lock order: gate, File.mu for finding objects, osc's locks, File.mu for errors and times. File.mu is never held over a
// call that waits; Set.mu and gate.mu are innermost.
package lov
