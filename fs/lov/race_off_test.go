//go:build !race

package lov_test

const raceEnabled = false
