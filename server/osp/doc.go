// Package osp is a metadata target's view of its OSTs: objects made ahead, which OSTs a new file's stripes go to, and
// the logs of what the OSTs still have to be told.
//
// Words (Lustre Operations Manual, "Managing Free Space"; parameters osp.*):
//
//   - precreated object: one that the OST has made and flushed before any file needs it. Each OST has a range of them
//     here, [next, last].
//   - last used id: the highest object id of an OST that a committed file uses. It is merged into the transaction of
//     each create, as a maximum.
//   - orphan: a precreated object above the last used id when recovery has ended: nobody owns it.
//   - kept object: one that looks like an orphan to a metadata target which was restored from a backup. It is made since, and stays
//     until an administrator has spoken (kept.go).
//   - destroy log, setattr log: records, written in the transaction that drops an object's last reference or changes its
//     owner, of what the OST must do. A record is sent only when its transaction is on disk, and goes only when the
//     OST has committed what it asked.
//
// Invariant: an object id is given to one file at most; one that was given back (Cancel) may be given again.
//
// Invariant: no OST is asked to destroy or change an object on behalf of a transaction that a crash could undo.
//
// Invariant: a record leaves a log only when the OST's last_committed covers its answer, in the OST's same instance.
//
// Invariant: while a metadata target that was restored is not settled, no OST destroys an object on its word but for the logs'.
//
// Choose is a pure function: candidates, wish and randomness are its arguments.
//
// Lock order: Set.mu, OSP.mu. Neither is held across a request or a publish.
package osp
