//go:build race

package lockd_test

const raceOn = true
