// Package status holds the error kinds that cross the wire and their errno.
//
// A Kind is an error value: layers wrap it with %w and ask for it with errors.Is or Of. On the wire it is its number
// (a frame header's status field); at the FUSE boundary it becomes an errno. Numbers are Linux errno values where one
// fits, so that a packet dump reads well; kinds without an errno start at 1000.
package status
