//go:build race

package cluster_test

const memoryRaceOn = true
