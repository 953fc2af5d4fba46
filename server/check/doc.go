// Package check holds the records of a metadata target and its OSTs against each other, mends them, and shows them.
//
// Words:
//
//   - finding: one thing that cannot be, with what it concerns and what was done.
//   - settled: a finding of records that did not change while they were read.
//   - round: one pass over all records. It reads the inodes, what speaks of them (mdt.Checker), the logs of what OSTs have still to
//     be told, then every OST, then the inodes once more.
//   - waiting: what looks wrong and may be put right by clients that have still to come back after a crash: their requests are
//     replayed. It is counted, not reported, and never repaired.
//   - spare: an object that was made ahead, given to a file that then was not made, and never written.
//
// Order: each round reads the side that refers before the side that is referred to, and files both before and after: an object
// goes only after its file and the log have said so, and comes before its file. So on a running file system a round is wrong
// only about what came or went meanwhile, and FIDs and object ids are never used twice: what two rounds find, settled in the last, is so.
//
// Repair is for targets that do not run. It mends in rounds, each problem in a transaction of its own: first what moves names and
// inodes, then counts and links. Nothing that holds bytes is destroyed: inodes without a name, and objects without a file, go into
// /lost+found.
//
// Invariant: without Repair nothing on disk changes.
//
// Invariant: a repair that is cut short leaves what another run mends.
//
// Memory: 64 bytes an inode (mdt.Checker), at most 80 an object listed by a file, 8 each record of the MDT's logs, a few hundred
// each finding; measured with 1,000,000 files of one stripe: 150 bytes a file, garbage included, 41 s on two busy cores.
package check
