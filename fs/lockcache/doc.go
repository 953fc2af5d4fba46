// Package lockcache is the client's half of the lock manager at work: one Cache for each import, with the mirror of the
// target's namespace (package ldlm), the requests that ask for locks and give them back, and the server's callbacks. What
// lies under the locks is the Owner's.
//
// # Words
//
// (Lustre Operations Manual, "Lustre Distributed Lock Manager"; DESIGN sections 6 and 7; package ldlm.)
//
//   - match: find a held lock that covers what is wanted. It takes no request. Acquire: match, or else ask and wait.
//   - pinned: in use. A pin keeps a lock from going back; it is held for one call of the application, not longer.
//   - unused: held and not pinned, in the LRU.
//   - called back: the server wants it (blocking AST). No new match; it goes back with its last pin.
//   - revoke: what the Owner does before a lock goes back: write back, drop, invalidate.
//   - own handle, remote handle: this client's name of a lock, and the server's.
//   - leaving: on its way back, from the decision to the end of its Revoke.
//   - early cancel: the cancel of one's own lock in the request that would call it back (ELC).
//   - adopt: enter a lock that came with the answer to another request. Window: while such an answer may come.
//   - prolong: tell the server that a called-back lock is still used by a holder that lives.
//   - application's lock: of flock(2) or fcntl(2). The server has them; what is held is noted here, for one that was started again.
//   - lost: no longer known to the server, by eviction or restart. Silent: the target has not been heard.
//
// # Invariants
//
// Invariant: nobody uses a lock, and no match finds it, from the moment its Revoke begins; it goes back to the server
// only after its Revoke has returned.
//
// Invariant: a lock is in the mirror from before it is asked for until its cancel has been answered. So a blocking AST that
// overtakes the grant, or crosses the cancel, finds it; one that finds nothing is answered with status.BadHandle, and the
// server takes the lock away.
//
// Invariant: an AST for an adopted lock that came before the lock is kept while a window is open that was open then, and
// afterwards answered with a cancel.
//
// Invariant: what was granted before a loss is never entered after it.
//
// Invariant: no mutex of this package is held across a request or a method of the Owner.
//
// Invariant: a wish that waits holds no request slot: it is sent with detach, and its completion AST wakes who asked.
// All that gives locks back has slots of its own (wire.Op.Prior), and its goroutines wait for nothing but the Owner.
//
// # Lock order
//
// Lock order: Cache.life; adoption.mu; a mutex of the mirror. Cache.life is also held while waiters, called, hints and
// canceller are entered or emptied. waiterShard.mu, called.mu, hints.mu, grantedFlocks.mu, heldFlocks.mu, leaving.mu, pool.mu, canceller.mu, settings.mu and figures.mu
// are innermost and stand alone.
//
// README.md has the states, and what happens when messages cross.
package lockcache
