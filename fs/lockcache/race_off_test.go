//go:build !race

package lockcache_test

const raceEnabled = false
