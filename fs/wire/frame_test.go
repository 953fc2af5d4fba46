package wire_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
)

func header() wire.Header {
	return wire.Header{
		Flags: wire.FlagReply | wire.FlagBulkSum, Op: wire.OpRead, XID: 0x1122334455667788, Transno: 0x0102030405060708,
		LastCommitted: 0x0807060504030201, Status: status.NotExist, Slot: 9, Generation: 0xa1a2a3a4a5a6a7a8,
		BodyLen: 3, BulkLen: 4096, BulkSum: 0xcafe1234,
	}
}

func TestHeaderBytes(t *testing.T) {
	const golden = "4b525453" + "1100" + "0003" + "8877665544332211" + "0807060504030201" + "0102030405060708" +
		"02000000" + "09000000" + "a8a7a6a5a4a3a2a1" + "03000000" + "00100000" + "3412feca"
	h := header()
	b := make([]byte, wire.HeaderSize)
	body := []byte{1, 2, 3}
	h.Put(b, body)
	if got := hex.EncodeToString(b[:60]); got != golden {
		t.Errorf("\n got %s\nwant %s", got, golden)
	}
	var back wire.Header
	if err := back.Parse(b); err != nil || back != h {
		t.Errorf("%v, %v", &back, err)
	}
	if err := wire.Verify(b, body); err != nil {
		t.Error(err)
	}
	for n := range 60 {
		c := bytes.Clone(b)
		c[n] ^= 4
		if err := wire.Verify(c, body); !errors.Is(err, status.Protocol) {
			t.Errorf("a changed byte %d: %v", n, err)
		}
	}
	if err := wire.Verify(b, []byte{1, 2, 4}); !errors.Is(err, status.Protocol) {
		t.Errorf("a changed body: %v", err)
	}
}

func TestHeaderRefusals(t *testing.T) {
	for name, change := range map[string]func(b []byte){
		"magic":         func(b []byte) { b[0]++ },
		"body too long": func(b []byte) { b[50] = 4; b[48] = 1 },
		"bulk too long": func(b []byte) { b[54] = 0x40; b[52] = 1 },
		"flags":         func(b []byte) { b[5] = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			h := header()
			b := make([]byte, wire.HeaderSize)
			h.Put(b, nil)
			change(b)
			if err := h.Parse(b); !errors.Is(err, status.Protocol) {
				t.Error(err)
			}
		})
	}
}

func TestSumMore(t *testing.T) {
	b := []byte("123456789")
	if wire.Sum(b) != 0xe3069283 { // the check value of CRC-32C
		t.Errorf("%08x", wire.Sum(b))
	}
	if wire.SumMore(wire.Sum(b[:4]), b[4:]) != wire.Sum(b) {
		t.Error("in two parts it is another one")
	}
}

func TestHeaderDoesNotAllocate(t *testing.T) {
	h := header()
	b, body := make([]byte, wire.HeaderSize), make([]byte, 100)
	if n := testing.AllocsPerRun(100, func() {
		h.Put(b, body)
		if h.Parse(b) != nil || wire.Verify(b, body) != nil {
			t.Fatal("not what was put")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestOperations(t *testing.T) {
	seen := map[string]wire.Op{}
	for o := range wire.Op(0x500) {
		if !o.Known() {
			if o.Modifies() || o.Bulk() || o.Prior() {
				t.Errorf("%v is unknown and has properties", o)
			}
			continue
		}
		if other, ok := seen[o.String()]; ok {
			t.Errorf("%#x and %#x are both %v", uint16(other), uint16(o), o)
		}
		seen[o.String()] = o
		if o.Modifies() && o.Bulk() {
			t.Errorf("%v modifies and has bulk: resending it without its caller is not possible", o)
		}
	}
}

// FuzzHeader: what parses, and only that, comes out of Put as it went in.
func FuzzHeader(f *testing.F) {
	h := header()
	b := make([]byte, wire.HeaderSize)
	h.Put(b, nil)
	f.Add(b)
	f.Add(make([]byte, wire.HeaderSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < wire.HeaderSize {
			return
		}
		b = b[:wire.HeaderSize]
		var h wire.Header
		if err := h.Parse(b); err != nil {
			if !errors.Is(err, status.Protocol) {
				t.Fatal(err)
			}
			return
		}
		if h.BodyLen > wire.BodyMax || h.BulkLen > wire.BulkMax {
			t.Fatalf("%v", &h)
		}
		c := make([]byte, wire.HeaderSize)
		h.Put(c, nil)
		if !bytes.Equal(b[:60], c[:60]) {
			t.Fatalf("\n%x\n%x", b, c)
		}
	})
}
