package ldlm_test

import (
	"strings"
	"testing"

	"github.com/strakefs/strake/fs/ldlm"
)

// published is the compatibility table as it is published: rows held, columns asked.
const published = `
      EX PW PR CW CR NL GROUP COS TXN
EX    -  -  -  -  -  x  -     -   -
PW    -  -  -  -  x  x  -     -   -
PR    -  -  x  -  x  x  -     -   x
CW    -  -  -  x  x  x  -     -   -
CR    -  x  x  x  x  x  -     -   x
NL    x  x  x  x  x  x  x     x   x
GROUP -  -  -  -  -  x  -     -   -
COS   -  -  -  -  -  x  -     x   -
TXN   -  -  x  -  x  x  -     -   x
`

func TestCompatibilityTable(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(published), "\n")
	columns := strings.Fields(lines[0])
	for row, line := range lines[1:] {
		cells := strings.Fields(line)
		held, ok := ldlm.ParseMode(cells[0])
		if !ok || held != 1<<row {
			t.Fatalf("row %q is mode %d", cells[0], held)
		}
		for i, name := range columns {
			asked, _ := ldlm.ParseMode(name)
			if got, want := ldlm.Compatible(held, asked), cells[i+1] == "x"; got != want {
				t.Errorf("held %v, asked %v: %v, want %v", held, asked, got, want)
			}
			if ldlm.Compatible(held, asked) != ldlm.Compatible(asked, held) {
				t.Errorf("%v and %v: not symmetric", held, asked)
			}
		}
	}
}

func TestModeNumbers(t *testing.T) {
	for m, want := range map[ldlm.Mode]uint16{ldlm.EX: 1, ldlm.PW: 2, ldlm.PR: 4, ldlm.CW: 8, ldlm.CR: 16, ldlm.NL: 32,
		ldlm.GROUP: 64, ldlm.COS: 128, ldlm.TXN: 256} {
		if uint16(m) != want {
			t.Errorf("%v is %d, published %d", m, uint16(m), want)
		}
	}
	for b, want := range map[ldlm.Bits]uint16{ldlm.Lookup: 1, ldlm.Update: 2, ldlm.Open: 4, ldlm.Layout: 8, ldlm.Perm: 16,
		ldlm.Xattr: 32, ldlm.DOM: 64, ldlm.Full: 127} {
		if uint16(b) != want {
			t.Errorf("%v is %d, published %d", b, uint16(b), want)
		}
	}
	if s := (ldlm.EX | ldlm.PR).String(); s != "EX|PR" {
		t.Error(s)
	}
	if (ldlm.EX | ldlm.PR).Valid() || ldlm.Mode(0).Valid() || ldlm.Mode(512).Valid() || !ldlm.TXN.Valid() {
		t.Error("Valid")
	}
}
