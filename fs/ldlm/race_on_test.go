//go:build race

package ldlm_test

const raceOn = true
