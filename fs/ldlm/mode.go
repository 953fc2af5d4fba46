package ldlm

import (
	"math/bits"
	"strings"
)

// Mode is a lock mode, or a set of them; the values are the published ones.
type Mode uint16

// The modes. COS and TXN are what an EX or PW lock of a running transaction is downgraded to when the operation has
// ended: they are held until the transaction is on disk and are never asked for.
const (
	EX Mode = 1 << iota
	PW
	PR
	CW
	CR
	NL
	GROUP
	COS
	TXN
)

const (
	numModes = 9
	allModes = Mode(1<<numModes - 1)
	// writeModes can carry cached changes.
	writeModes = EX | PW | CW | GROUP
)

// compatible holds, for each held mode in the order of the constants, the modes that can be granted beside it.
// GROUP beside GROUP depends on the group ids and is not in the table.
var compatible = [numModes]Mode{
	/* EX    */ NL,
	/* PW    */ CR | NL,
	/* PR    */ PR | CR | NL | TXN,
	/* CW    */ CW | CR | NL,
	/* CR    */ PW | PR | CW | CR | NL | TXN,
	/* NL    */ EX | PW | PR | CW | CR | NL | GROUP | COS | TXN,
	/* GROUP */ NL,
	/* COS   */ NL | COS,
	/* TXN   */ PR | CR | NL | TXN,
}

// modeNames are the names in the order of the constants.
var modeNames = [numModes]string{"EX", "PW", "PR", "CW", "CR", "NL", "GROUP", "COS", "TXN"}

// Valid reports whether m is exactly one mode.
func (m Mode) Valid() bool { return m&allModes == m && bits.OnesCount16(uint16(m)) == 1 }

// index is m's place in tables by mode. Precondition: m is one mode.
func (m Mode) index() int { return bits.TrailingZeros16(uint16(m)) }

// lowest takes the first mode out of a set and returns it with the rest. Precondition: m is not empty.
func (m Mode) lowest() (Mode, Mode) {
	low := m & -m
	return low, m &^ low
}

// Compatible reports whether asked can be granted while held is held on the same bits or bytes. GROUP beside GROUP is
// false here: it also takes equal group ids.
func Compatible(held, asked Mode) bool { return compatible[held.index()]&asked != 0 }

// conflicts is the set of held modes that keep m out. The table is symmetric, so it is also what m keeps out.
func (m Mode) conflicts() Mode { return allModes &^ compatible[m.index()] }

// covers reports whether a holder of m may do all that a holder of n may: m keeps out all that n keeps out.
func (m Mode) covers(n Mode) bool { return n.conflicts()&^m.conflicts() == 0 }

// String is the mode's name; of a set, the names joined by '|'; "-" for none.
func (m Mode) String() string {
	if m == 0 {
		return "-"
	}
	var b strings.Builder
	for rest := m & allModes; rest != 0; {
		var one Mode
		one, rest = rest.lowest()
		if b.Len() > 0 {
			b.WriteByte('|')
		}
		b.WriteString(modeNames[one.index()])
	}
	return b.String()
}

// ParseMode finds the mode of a name such as "PW".
func ParseMode(name string) (Mode, bool) {
	for i, n := range modeNames {
		if n == name {
			return 1 << i, true
		}
	}
	return 0, false
}
