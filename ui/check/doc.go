// Package check is the commands `strake check`, which holds the records of a file system's targets against each other and mends them,
// and `strake dump`, which shows them to people.
//
// Both read the data folders of targets that do not run; check can also ask running ones. So this package, alone among those that
// people touch beside ui/process, takes a package of the servers: server/check, which knows the records.
//
// Invariant: what comes from disk or from a peer is printed without anything that a terminal would act on.
package check
