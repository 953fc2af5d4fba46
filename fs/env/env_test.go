package env_test

import (
	"bytes"
	"testing"

	"github.com/strakefs/strake/fs/env"
)

func TestAllocKeepsEarlierMemoryWhenItGrows(t *testing.T) {
	e := env.New()
	a := e.Copy([]byte("name"))
	b := e.Alloc(1 << 20)
	clear(b)
	c := e.Copy([]byte("other"))
	if !bytes.Equal(a, []byte("name")) || !bytes.Equal(c, []byte("other")) {
		t.Fatalf("%q %q", a, c)
	}
	if cap(a) != 4 {
		t.Fatalf("an append to scratch memory would run into its neighbour: cap %d", cap(a))
	}
}

func TestSteadyUseDoesNotAllocate(t *testing.T) {
	e := env.New()
	if n := testing.AllocsPerRun(1000, func() { e.Reset(); e.Alloc(4096); e.Alloc(255) }); n != 0 {
		t.Fatalf("%v allocations per run", n)
	}
}
