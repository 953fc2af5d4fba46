// Package bench measures whole systems through their mounts: the command `strake bench`.
//
// Words: a system is something mounted (strake in one process, strake in four, go-fuse's loopback, or a file system that
// was mounted before); a workload is one measured loop on a folder of it and knows nothing of systems; a round runs every
// workload once on every system, in turn, so that a machine that slows down slows all of them; a figure is the median
// over the rounds; a ratio is a figure of the judged column over the same one of the base (the loopback, or the same work
// on files of one's own), and a bar is the least ratio asked for. An experiment is one subcommand: foundation and locks
// compare systems, hard compares patterns of several ranks (a word of MPI and of IO500: one of the processes that work
// together) on one system. cos runs slices of a fixed time of several arms (one system under different settings) in turn, and
// gives ratios of medians with limits.
//
// Cold is said of a listing: its mount and the client's process are new, and with drop_caches the kernel has forgotten
// what lies below as well. That goes for both sides, since what strake's servers read is to the loopback its own data.
//
// Invariant: what a workload returns is a rate of work that was done: listings are compared with what was made, records
// of ranks with what they wrote, through one of the mounts, so that half of them come from another client.
//
// Workloads time only the loop itself. Rates are operations per second of wall time, or bytes per second; printed MiB/s
// are 2^20 bytes. What is left of a workload on the mount is removed outside the measured time.
package bench
