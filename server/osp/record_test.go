package osp

import (
	"bytes"
	"testing"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/store"
)

func TestRecordsGolden(t *testing.T) {
	e := env.New()
	tx := store.BeginTx(e)
	s := layout.Stripe{OST: 1, Object: fid.ObjectID{Group: 2, ID: 3}}
	addDestroy(tx, e, 0, s)
	addSetattr(tx, e, 1, s, Owner{UID: 4, GID: 5, Project: 6})
	addUsed(tx, e, 2, s)
	tx.WriteStamps(7)
	for i, want := range []struct{ key, value string }{
		{"\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x03", "\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x07"},
		{"\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x03",
			"\x01\x00\x00\x00\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x07\x00\x00\x00\x05\x00\x00\x00\x06"},
		{"\x00\x00\x00\x01", "\x00\x00\x00\x00\x00\x00\x00\x03"},
	} {
		if got := tx.Steps[i]; string(got.Key) != want.key || string(got.Value) != want.value {
			t.Errorf("record %d: key %x value %x", i, got.Key, got.Value)
		}
	}
	r, err := parseEntry(tx.Steps[1].Key, tx.Steps[1].Value)
	if err != nil || r.id != s.Object || r.stamp != 7 || r.owner != (Owner{4, 5, 6}) {
		t.Fatalf("%+v %v", r, err)
	}
}

func FuzzParseEntry(f *testing.F) {
	f.Add(make([]byte, logKeySize), append([]byte{recordVersion}, make([]byte, destroySize-1)...))
	f.Add(make([]byte, logKeySize), append([]byte{recordVersion}, make([]byte, setattrSize-1)...))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		r, err := parseEntry(key, value)
		if err != nil {
			return
		}
		if got := putLogKey(make([]byte, logKeySize), layout.OSTIndex(number(append(make([]byte, 4), key[:4]...))), r.id); !bytes.Equal(got, key) {
			t.Fatalf("%x came back as %x", key, got)
		}
	})
}
