// Package ldlm is the lock engine: modes, resources, queues, grant policy, and both halves of a namespace. It is pure: no
// goroutine, clock, socket or random source inside. Time and randomness are arguments; what has to happen comes back as
// effects, which server/lockd carries out on servers and fs/lockcache on clients.
//
// # Words
//
// (Lustre Operations Manual, "Lustre Distributed Lock Manager"; DESIGN section 6.)
//
//   - namespace: the locks of one target. The server's half decides; a client's mirror knows its own locks.
//   - resource: one thing that can be locked: an inode's bits, one name of a folder, an object's bytes, a file's flock
//     and fcntl locks, or a thing without parts (plain).
//   - lock: one grant, or wish, of a mode on a resource. Handle: the number that names it.
//   - mode: EX PW PR CW CR NL GROUP; COS and TXN are what an ended operation's lock is downgraded to.
//   - granted, converting and waiting queue: of a resource.
//   - blocking AST: "give it back", completion AST: "it is yours", glimpse AST: "tell me your LVB".
//   - called back: a blocking AST was made for it, once.
//   - LVB: lock value block: what a lock on an object carries about it: size, blocks, times.
//   - contended: so many real conflicts in a window that reading and writing without locks is better.
//   - early cancel: cancels of one's own locks that travel with the request that would call them back.
//   - SLV, pool: server lock volume, and the two halves of what keeps the number of locks near a server's memory.
//   - pinned: in use on a client. Unused locks are in the LRU.
//
// # Invariants
//
// Invariant: two granted locks of a resource whose modes are not compatible share no bit and no byte, but for GROUP
// locks of one group, COS locks of the client that asks, TXN locks of the MDT that asks, and an operation's lock beside those of
// the client whose operation it is (Own).
//
// Invariant: nothing waits that conflicts with nothing granted, nothing converting and nothing waiting before it.
//
// Invariant: every granted lock that keeps a waiting one out has been called back exactly once since it was granted or
// last converted, or is GROUP and joined its group later.
//
// Invariant: an extent that grew overlaps no conflicting granted lock, and no range that a waiting lock asked for and
// could have beside the request.
//
// Invariant: a peer reaches its own locks only.
//
// # Lock order
//
// Lock order: shard.mu, waitGraph.mu. lvbState.mu is taken with neither held, but where the resource has no other user;
// it is held across LVB methods and nothing else is taken under it. No two shards are locked together.
//
// README.md has the states and the rules of each type in more detail.
package ldlm
