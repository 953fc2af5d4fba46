package boltdev_test

import (
	"testing"

	"github.com/strakefs/strake/store/storetest"
)

func BenchmarkDevice(b *testing.B) { storetest.Bench(b, maker) }
