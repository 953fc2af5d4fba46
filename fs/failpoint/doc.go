// Package failpoint holds the places of a process that can be told to fail, for tests of recovery: Lustre's fail_loc and
// fail_val (Lustre source, obd_support.h; the manual's "Testing" names the parameters).
//
// Words:
//
//   - point: a place in the code that asks, such as DropReply.
//   - fail_loc: which points are armed. fail_val: a number or an error for each of them. fail_when: which of their hits count:
//     of which operation and target, how many to pass over, how many to take, every how many.
//   - hit: an armed point that was reached and that fail_when lets through.
//
// A Set belongs to a process and is handed down through options. It is off in an ordinary process, which has none: a nil *Set is
// never armed and refuses to be set.
//
// Text. Each of the three parameters holds one item for each armed point, separated by commas, in the order of fail_loc; items
// left out are defaults:
//
//	fail_loc=drop_reply,pause_commit
//	fail_val=1                                  the first one's; 0 for the second
//	fail_when=op:create|link+times:1,target:*-MDT0000
//
// An item of fail_when is "always", "once" or fields joined by "+": op:NAME[|NAME…], target:PATTERN (as path.Match has it),
// skip:N, every:N, times:N. Hits of other operations and targets are not counted.
//
// Setting any of the three begins all counts anew. fail_loc=0 turns everything off and ends every pause.
//
// Invariant: a point that is off costs one atomic load, and nothing allocates.
//
// Lock order: Set.mu alone; it is not held while a point waits.
package failpoint
