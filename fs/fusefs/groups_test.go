package fusefs

import (
	"os"
	"slices"
	"testing"
)

func TestGroupsOfThisThread(t *testing.T) {
	want, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	var g groupCache
	got := g.of(uint32(os.Getpid()), 0, 0)
	if len(got) != len(want) {
		t.Fatalf("groups %v, want %v", got, want)
	}
	for _, w := range want {
		if !slices.Contains(got, uint32(w)) {
			t.Errorf("group %d is missing in %v", w, got)
		}
	}
}

func TestAliveThreadIsNotDying(t *testing.T) {
	if dying(uint32(os.Getpid())) {
		t.Fatal("this process is taken for dying")
	}
	if !dying(1 << 30) {
		t.Fatal("a thread that does not exist is taken for alive")
	}
}
