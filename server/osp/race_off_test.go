//go:build !race

package osp_test

const poolAllocs = 0
