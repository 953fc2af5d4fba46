//go:build race

package ost

const raceOn = true
