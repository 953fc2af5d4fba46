package ldlm_test

import (
	"testing"

	"pgregory.net/rapid"
)

// rapidPick lets rapid choose, and shrink what fails.
type rapidPick struct{ t *rapid.T }

func (p rapidPick) IntN(n int) int { return rapid.IntRange(0, n-1).Draw(p.t, "n") }

// TestNamespaceProperties runs the random world under rapid: every grant keeps to the table, nothing waits for nothing, and
// nobody is called back twice.
func TestNamespaceProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapidPick{t}, rapid.IntRange(1, 3).Draw(t, "resources"))
		for i := range rapid.IntRange(1, 60).Draw(t, "steps") {
			if err := w.step(); err != nil {
				t.Fatalf("step %d: %v", i, err)
			}
		}
	})
}
