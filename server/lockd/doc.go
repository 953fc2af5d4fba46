// Package lockd is the server's half of the lock manager at work: it carries out what fs/ldlm decides. One Server serves
// the namespace of one target.
//
// # Words
//
// Those of fs/ldlm, and:
//
//   - client: an export as the namespace knows it, with its control connection, the Peer that ASTs go to.
//   - held: an enqueue that waits and whose call is answered when the wait ends. It holds no worker.
//   - detached: an enqueue that waits and was answered with "waiting"; a completion AST ends it. Those that may wait long
//     ask for it, and who has too many held ones gets it, so that waiting requests never fill a client's slots.
//   - withdrawn: a wait that its client gave up.
//   - parked: an enqueue that waits for the memory guard, before it becomes a lock.
//   - job: something to send to a client: an AST, or the answer to a held call.
//   - local lock: one of the server's own operations.
//   - wanted: of a client: somebody waits for one of its locks.
//
// # Invariants
//
// Invariant: no step of the engine, and nothing under a mutex, waits for a client. Everything that may goes through jobs.
//
// Invariant: at most max_parallel_ast goroutines send, at most perClient of them to one client. A client's jobs leave in
// the order in which they were decided; a client without a connection keeps its jobs for the next one.
//
// Invariant: a wait ends once: granted, denied, withdrawn, or dropped with its connection or client.
//
// Invariant: a client that does not answer an AST within lock_timeout, does not give a called-back lock back in that time,
// or is wanted and without a connection for ReconnectGrace, is handed to Evict.
//
// Invariant: after Client.Gone nothing in the namespace belongs to the client.
//
// # Lock order
//
// Lock order: Client.gate, Client.convertMu; sender.mu; Server.mu; Client.mu; waiter.mu. Shared.mu, poolState.mu,
// parking.mu and glimpse.mu are taken alone. The first two are held across calls of the engine, shared across an enqueue that
// was parked, and across CONVERT; none of the others is.
//
// README.md has the states and the races.
package lockd
