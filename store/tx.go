package store

import "encoding/binary"

// Kind says what one step of a transaction does.
type Kind uint8

// Kinds of steps.
const (
	Put Kind = iota + 1
	Delete
	Delta
)

// Step is one change of one key. Value is the new value of a Put, the delta of a Delta, empty for a Delete.
type Step struct {
	Kind  Kind
	Table Table
	Key   []byte
	Value []byte
	// Stamps are the offsets in Value where Publish writes the transno, 8 bytes big-endian; at most two.
	Stamps  [2]uint32
	NStamps uint8
}

// Tx is a transaction being built: an ordered list of steps. It belongs to one goroutine. Keys and values given to it
// are kept by reference until Publish.
type Tx struct {
	Steps []Step
	// Replay is the number that an earlier start gave to what is done again here, 0 for something new. Publish writes it
	// into the stamps; the order of commits follows the new number that Publish gives.
	Replay Transno
}

// Reset empties the transaction and keeps its memory.
func (tx *Tx) Reset() {
	clear(tx.Steps)
	tx.Steps, tx.Replay = tx.Steps[:0], 0
}

// Empty reports whether the transaction changes nothing.
func (tx *Tx) Empty() bool { return len(tx.Steps) == 0 }

// Put sets key to value. stamps are offsets in value where Publish writes the transno.
func (tx *Tx) Put(t Table, key, value []byte, stamps ...uint32) {
	tx.add(Put, t, key, value, stamps)
}

// Delete removes key; removing an absent key is no error.
func (tx *Tx) Delete(t Table, key []byte) { tx.add(Delete, t, key, nil, nil) }

// Delta changes key by the table's Merger. stamps are offsets in delta where Publish writes the transno.
func (tx *Tx) Delta(t Table, key, delta []byte, stamps ...uint32) {
	tx.add(Delta, t, key, delta, stamps)
}

func (tx *Tx) add(k Kind, t Table, key, value []byte, stamps []uint32) {
	s := Step{Kind: k, Table: t, Key: key, Value: value, NStamps: uint8(len(stamps))}
	copy(s.Stamps[:], stamps)
	tx.Steps = append(tx.Steps, s)
}

// WriteStamps writes n into the stamped places of every value. Devices call it inside Publish.
func (tx *Tx) WriteStamps(n Transno) {
	for i := range tx.Steps {
		s := &tx.Steps[i]
		for _, at := range s.Stamps[:s.NStamps] {
			binary.BigEndian.PutUint64(s.Value[at:], uint64(n))
		}
	}
}
