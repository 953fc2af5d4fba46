// Package rpc carries requests between imports, the client's half, and exports, the target's half.
//
// # Words
//
//   - import, export: a client's connection to one target, and the target's side of it (Lustre manual, "Lustre
//     Networking" and "Recovery"). An export is a Session here, made by a Target.
//   - frame: a header of 64 bytes, a protobuf body and raw bulk, as package wire draws them.
//   - xid: a request's number; it grows with every new request of an import and stays when one is resent.
//   - slot: a number that a modifying request owns until its reply is there. The target keeps the last reply of each slot
//     on its disk, so that a resent request is answered and not run again.
//   - instance: a number that changes with each start of a target. Generation: an export's number, in every request.
//   - flight: a request in flight. Orphan: one whose caller has left, so that only its slot waits for the reply.
//   - held call: one that its handler answers later (ErrHeld, Call.Finish). It holds no worker.
//   - callback: a server's call to a client, on the control connection; its xids are the server's own.
//   - reading role: what the one worker of a connection has that reads its next request.
//
// # What may wait for what
//
// No waiting request may keep out what it waits for (DESIGN §3).
//
// Invariant: of an import at most MaxInFlight requests that change nothing, as many that modify, PriorSlots modifying and
// PriorSlots other ones of the reserve (wire.Op.Prior), and one ping per connection are in flight. Those of the reserve
// never wait for the others. A server admits as many and cuts off who sends more.
//
// Invariant: a goroutine that reads a connection never waits for a consumer. A server's worker hands the reading role on
// before it runs a handler; a client's reader completes flights and leaves callbacks to workers that were agreed.
//
// Invariant: bulk lands in memory that was reserved before it was asked for: Request.Into at the client, buffers of the
// server's pool for what was agreed to be in flight. Lengths are checked against what was agreed before memory is taken.
//
// Invariant: after Do has returned nothing touches the Request, its messages or its memory. Who leaves while the reader
// is filling Into takes the reader out of its read first.
//
// Invariant: a slot is used by one request at a time, from Do until the reply, over reconnects, Do having left or not.
//
// # Server
//
// Each connection has workers that lead and follow: one has the reading role, reads a frame, serves it with its own Env, and
// writes the reply itself. So a request meets no queue. Workers are bounded by the requests admitted; those that a while did not
// need end.
//
// The role goes to an idle worker, or a new one, before the request is served where the next one has arrived with it, or where
// it carries much bulk. Else the worker keeps it during the handler, which saves waking a thread for each request, and
// loses it at once when the handler waits for others (env.Env.WillWait), or by a timer within a millisecond. While a client
// sends one request at a time (wire.FlagAlone, several in a row) its worker also waits for the next one in ppoll(2).
//
// A connection begins with CONNECT, within ConnectTimeout. PING is answered here; a session never sees it and asks
// Conn.LastHeard when its client was last heard of. DISCONNECT goes to the session like any request.
//
// # States of an import
//
// import_state.go decides, as a step function; its scripts are in testdata/import. The driver goroutine acts.
//
//	NEW ──connect──▶ CONNECTING ──connected──▶ RECOVER ──orphans resent──▶ FULL
//	                  │   ▲    └─same instance, export gone─▶ EVICTED ──▶ RECOVER
//	              failed  │ back-off                             ▲
//	                  ▼   │                                      │ a reply says so
//	                 DISCONN ◀──────────connection lost───────── FULL
//
// CLOSED follows each of them. Replay of answered requests and of locks comes between CONNECTING and RECOVER; FULL stays
// the only state in which Do sends.
//
// Addresses take turns. The first try after a steady connection is immediate; the waits then double from 50 ms to 5 s, by a
// random half, so that many clients do not return together. A connection that is silent for 5 s is pinged, one that is
// silent for 20 s is dead.
//
// # What happens when the connection ends
//
//   - Before the request has left, or while it is being written: it goes out again after the reconnect. A target sees a
//     frame whole or not at all.
//   - While it is executed, or when its reply is on the way: it goes out again with FlagResent and the same xid and slot. The
//     target finds a modifying one in its slot and answers with the reply of then; others are run again, which is harmless
//     because they change nothing (a write of the same bytes to the same place counts as such).
//   - While the reply's bulk arrives: as before; Into is filled anew from its start.
//   - While Do waits for a slot or for the target: nothing was sent, Do goes on waiting, RetryLimit at most.
//   - After its caller has left: a modifying request is resent by the driver, because its slot's history must not stay
//     open; others are forgotten.
//   - The target says NotConnected or Stopping: as a lost connection.
//   - The target's instance is another one: resent all the same; what was executed and committed is in the slots on disk.
//   - The same instance does not know the client any more: it was evicted. What was in flight fails with status.IO, because
//     nobody can say whether it happened. What had not been sent goes to the new export.
//   - The target refuses the client: what waits fails with the refusal, and the import tries again every 5 s.
//   - Bulk arrives damaged: sent again under the same xid, five times in all, then status.IO. A damaged header or body ends
//     the connection, because nothing after it can be believed.
//   - A callback: the server's Callback returns NotConnected.
//   - The server's side: Call.Context ends, Session.Disconnected is called, replies of requests that still run go nowhere.
//
// Steady paths do not allocate, at either end (TestSteadyPathDoesNotAllocate).
//
// # Reading at the client
//
// A reader goroutine has the reading role of each connection. After the reply to a request that was alone it steps back,
// and the next caller that is alone reads until its own reply is there, without a thread being woken. A timer of a
// millisecond brings the reader back when nobody reads, or when the caller has to wait long. The role is held by one
// goroutine at a time; role.mu hands it over.
//
// Lock order: Import.mu; table.mu; limits.mu, slots.mu. role.mu, callbacks.mu, Conn.mu, Server.mu, link.wmu and buffers.mu
// are taken alone, except that Server.accept starts a connection's first worker under Server.mu. No lock but link.wmu is
// held across I/O, and none across a callback.
package rpc
