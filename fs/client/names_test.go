package client

import (
	"fmt"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestNamesNeverHideAnEntry: whatever happens in a folder, a name that is there is never called absent.
func TestNamesNeverHideAnEntry(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var n Names
		n.init(rapid.IntRange(1, 200).Draw(t, "max"))
		const dir = 7
		n.begin(dir)
		there := map[string]bool{}
		for range rapid.IntRange(1, 300).Draw(t, "ops") {
			name := fmt.Sprint("n", rapid.IntRange(0, 40).Draw(t, "name"))
			switch rapid.IntRange(0, 3).Draw(t, "op") {
			case 0: // create, perhaps refused after the request was sent
				n.add(dir, name)
				if !there[name] && rapid.Bool().Draw(t, "ok") {
					there[name] = true
				}
			case 1:
				if there[name] {
					delete(there, name)
					n.remove(dir, name)
				}
			case 2:
				n.add(dir+1, name)
			case 3:
				if n.absent(dir, name) && there[name] {
					t.Fatalf("%s is there and was called absent", name)
				}
			}
		}
		for name := range there {
			if n.absent(dir, name) {
				t.Fatalf("%s is there and was called absent", name)
			}
		}
		if n.len() > n.max+1 {
			t.Fatalf("%d names remembered, at most %d", n.len(), n.max)
		}
	})
}

func TestNamesKnowOnlyFoldersBegunEmpty(t *testing.T) {
	var n Names
	n.init(100)
	if n.absent(1, "a") {
		t.Fatal("a folder that was never seen is taken for known")
	}
	n.begin(1)
	if !n.absent(1, "a") {
		t.Fatal("a name of an empty folder is not absent")
	}
	n.forget(1)
	if n.absent(1, "a") {
		t.Fatal("a forgotten folder is taken for known")
	}
}

func TestChangesAreSeenAfterTheirMark(t *testing.T) {
	c := new(changes)
	before := c.now()
	c.mark(42)
	if !c.since(42, before) {
		t.Fatal("a change after the fetch is not seen")
	}
	if c.since(42, c.now()) {
		t.Fatal("a change before the fetch is taken for later")
	}
}
