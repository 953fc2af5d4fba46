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
//   - replay log: the modifying requests of an import that are answered and that last_committed does not cover; entry: one of
//     them, with the bodies of request and reply.
//   - recovery window: the time after a start in which a target waits for the clients of before. Replay: a request of then,
//     sent again in OpReplay. Refused: a replay that the target cannot repeat.
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
//	                  │   ▲  │ └─export gone─▶ EVICTED ──▶ RECOVER
//	              failed  │  │                    ▲
//	                  │   │  │                    │ a reply says so, in any state with a connection
//	                  │   │  └─new instance, its window open─▶ REPLAY ─▶ REPLAY_LOCKS ─▶ REPLAY_WAIT ─▶ RECOVER
//	                  ▼   │ back-off
//	                 DISCONN ◀──connection lost── any state with a connection
//
// CLOSED follows each of them. FULL is the only state in which Do sends.
//
//   - REPLAY: the log's entries above the last_committed that CONNECT told go out as OpReplay, in the order of their transnos, 8
//     in flight; then what ImportOptions.ReplayMore sends. REPLAY_DONE 1 is answered when every client has done that.
//   - REPLAY_LOCKS: ImportOptions.Restore hands back opens and locks.
//   - REPLAY_WAIT: REPLAY_DONE 2 is answered when the window is over. What was replayed is on the target's disk then, and the
//     log is emptied.
//
// An import whose connection is lost on the way begins again: with REPLAY, unless REPLAY_DONE 1 was answered by this instance,
// and REPLAY_LOCKS after it. So a target may get a replay twice in one window, and answers the second one as the first. An
// import without anything to replay or hand back goes to RECOVER at once, and so does one whose part in this window is over.
//
// Invariant: an entry is in the log before the caller of its Do has the answer, and stays until its transno is committed, is
// refused, or the client is evicted. Every entry is replayed to each instance whose window this import meets.
//
// Addresses take turns. The first try after a steady connection is immediate; the waits then double from 50 ms to 5 s, to 1 s
// while the host answers, by a random half, so that many clients do not return together. New addresses, or word of a new
// instance (NewInstance, told by the MGS), end the wait. A connection that is silent for 5 s is pinged. It is dead when the
// answer does not come within a quarter more than the slowest answer of the last at_history seconds, within at_min and at_max;
// answers that wait for locks, news or disks do not count.
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
//   - The target's instance is another one: resent all the same, after the recovery; what was executed and committed is in the
//     slots on disk. Answered ones are replayed (ImportOptions.Replay).
//   - The same instance, or with anything to replay any instance, does not know the client any more: it was evicted. The
//     replay log is given up. What was in flight fails with status.IO, because
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
// Lock order: replayLog.mu; Import.mu; table.mu; limits.mu, slots.mu, answers.mu. role.mu, callbacks.mu, Conn.mu, Server.mu, link.wmu and buffers.mu
// are taken alone, except that Server.accept starts a connection's first worker under Server.mu. No lock but link.wmu is
// held across I/O, and none across a callback.
package rpc
