// Package bench measures whole systems through their mounts: the command `strake bench`.
//
// Words: a system is something mounted (strake in one process, strake in four, go-fuse's loopback); a workload is one
// measured loop on a folder of it and knows nothing of systems; a round runs every workload once on every system, in
// turn, so that a machine that slows down slows all of them; a figure is the median over the rounds; a ratio is a
// figure of strake over the same one of the loopback, and a bar is the least ratio asked for.
//
// Workloads time only the loop itself. Rates are operations per second of wall time, or bytes per second; printed MiB/s
// are 2^20 bytes. What is left of a workload on the mount is removed outside the measured time.
package bench
