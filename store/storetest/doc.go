// Package storetest is the suite that every store.Device passes, and the benchmarks that compare them.
//
// A device's test gives a Maker and calls Run; its benchmarks call Bench.
//
// Words:
//
//   - disk: what a device stands on. It can be opened again after Close, and after Crash.
//   - model: a plain map to which the same transactions are applied, the judge of the random tests.
package storetest
