//go:build race

package osp_test

// poolAllocs: under the race detector sync.Pool drops at random.
const poolAllocs = 4
