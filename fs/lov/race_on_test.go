//go:build race

package lov_test

const raceEnabled = true
