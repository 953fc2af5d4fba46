// Package target is what every target does alike: exports, reply slots and the reconstruction of replies, admission,
// fencing and eviction. The metadata target and the object storage target put their handlers behind it.
//
// Words (Lustre Operations Manual, "Lustre File System Recovery"):
//
//   - export: the target's side of one client's connection, named by the client's uuid. It outlives connections.
//   - generation: counts the connects of one export. A request carries the generation it was sent under.
//   - slot: a numbered place of one export whose last modifying request and reply are kept, so that a request that is
//     sent again is answered, never run twice.
//   - last_rcvd: the tables that keep exports and slots across a restart of the target.
//   - fencing: requests of an older generation are refused once a newer one exists, and those running are waited for.
//   - eviction: ending the export of a client against its will: one that went away without saying so, or that keeps others
//     waiting.
//   - replay point: the newest transno of earlier starts that is on disk with all before it.
//   - replay window: from the start of a target that had clients until they have replayed what the replay point does not cover and
//     handed back opens and locks. Meanwhile nobody is served who could meet one of those.
//   - stage: what a client does in the window: replays its requests, hands back opens and locks, has done both.
//
// A handler with a lock namespace joins it in NewExport, follows connections by Options.Connected and Options.Disconnected, leaves it
// in ExportGone, and gives Target.Evict to the namespace as its way to end a client. Connected comes when nothing of an earlier
// connection runs and before requests of the new one do; ExportGone when nothing of the export runs nor will.
//
// Invariant: of one export, a slot runs one request at a time.
//
// Invariant: a slot's record and the change that it answers for are in one transaction: after a crash both are there
// or neither is.
//
// Invariant: when Connect has returned generation g of an export, no request of a generation below g runs or will run.
//
// Invariant: after Handler.ExportGone(x) was called nothing of x runs.
//
// Invariant: while the replay window is open, and until those who did not come back are evicted, nothing is served but replays, the
// ends of stages and what serves (window.go) names.
//
// Invariant: replays run one at a time, in the order of their transnos. Each is published under its transno of then, with its slot's
// record and the replay point, or refused and changes nothing.
//
// Invariant: when the end of the window is told, all that was replayed and that end are on disk.
//
// Lock order: Target.mu, Export.gate, Export.mu, slot.mu; recovery.mu is taken alone. Target.mu and Export.mu are never held
// across a call of the handler or the device's waiting methods; Export.gate is held, shared, while a request of the export is
// served, and whole across Options.Connected.
//
// A process has one Budget (lu_cache_percent) for the object caches of its targets. It locks nothing of theirs but what Cache's methods
// do, and its own mutex is taken alone.
//
// The README beside this file says what happens at each crash point.
package target
