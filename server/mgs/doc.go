// Package mgs is the management server: the registry of a file system.
//
// It knows the file system's name, identity and key, its targets with their addresses, and how each target said it was.
// It is small: every other process goes on without it once it is connected.
//
// Words:
//
//   - configuration: what clients and targets need to find each other, with a version that grows with each change.
//   - registration: a target's word that it serves, under an index that the MGS gives once and for ever.
//   - report: a target's space, state and instance, sent when it begins to serve and every few seconds; never stored. One with a new
//     instance makes a new version of the configuration, so that the target's clients hear that it was started again.
//
// Invariant: an index of a kind belongs to one data folder (its uuid) for ever; nothing but an administrator's word can
// give it to another.
//
// Invariant: a registration is on disk before it is answered.
//
// Stored in table Spec of the device that it shares with the first MDT, keys and values:
//
//	"fs"                    16 bytes uuid, 16 bytes key of the hash of names
//	"t" kind(1) index(BE 4) a wire Target: name, kind, index, uuid, addresses, server
//	"p" name                a permanent parameter's value
//
// Lock order: MGS.mu alone. It is held across a publish, never across a wait.
package mgs
