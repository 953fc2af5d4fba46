// Package faultdev makes a device fail by script.
//
// Words:
//
//   - op: a kind of call or of sync that can fail, such as Write or Commit.
//   - rule: what happens at the n-th op of a kind: an error, a delay, a torn write, the stop of the device.
//   - script: rules and the counts of ops so far.
//
// A Device wraps any store.Device and asks its script before each call. Commits are not calls: they run inside the
// wrapped device. So a Script is also given to the device below as boltdev.Options.Fault, or called from
// memdev.Options.OnSync, and counts commits there:
//
//	script := faultdev.MustParse("commit 3 stop")
//	below, err := memdev.Open(disk, memdev.Options{OnSync: func(s memdev.Sync) error { return script.Fault(s.What) }})
//	script.OnStop(below.Crash)
//	d := faultdev.New(below, script)
//
// Invariant: after a stop every call fails with an error that wraps store.ErrStopped and ErrFault.
//
// Lock order: Script.mu alone; it is not held while a delay passes or OnStop's function runs.
package faultdev
