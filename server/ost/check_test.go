package ost_test

import (
	"errors"
	"testing"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/ost"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/memdev"
)

// FuzzCheck: whatever stands in the tables, a check ends, and what it finds a repair mends at once.
func FuzzCheck(f *testing.F) {
	f.Add(byte(2), []byte("group and id"), make([]byte, 112))
	f.Add(byte(4), []byte{0, 0, 0, 0}, []byte{1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 3})
	f.Add(byte(5), []byte{'u', 0, 0, 0, 0}, make([]byte, 16))
	f.Add(byte(6), []byte("meta"), []byte{2})
	f.Fuzz(func(t *testing.T, table byte, key, value []byte) {
		if len(key) == 0 || len(key) > 1000 {
			return
		}
		dev, err := memdev.Open(memdev.NewDisk(), memdev.Options{Specs: ost.Specs(), CommitInterval: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		tx := dev.Begin(env.New())
		tx.Put(store.Table(int(table)%len(ost.Specs())), key, value)
		if _, err := dev.Publish(tx); err != nil {
			t.Fatal(err)
		}
		r := ost.NewRepairer(dev)
		for left := 2; ; left-- {
			_, problems, err := ost.Check(t.Context(), target.DeviceRecords{KV: dev}, func(ost.Object) {})
			if err != nil {
				t.Fatal(err)
			}
			if len(problems) == 0 {
				return
			}
			if left == 0 {
				t.Fatalf("after two repairs: %+v", problems[0])
			}
			for _, p := range problems {
				if done, err := r.Fix(t.Context(), p); err != nil || done == "" {
					t.Fatalf("%+v: %q, %v", p, done, err)
				}
			}
		}
	})
}

// TestInspectIsBounded: a tool gets pieces of tables, and asks for a bounded number of objects.
func TestInspectIsBounded(t *testing.T) {
	n, _, c := pair(t, ost.Options{})
	for id := range uint64(30) {
		if _, err := c.write(id+1, 0, []byte("x")); err != nil {
			t.Fatal(err)
		}
		o := ost.Object{ID: fid.ObjectID{ID: id + 1}, Owned: true, Size: 1}
		if err := ost.NewRepairer(n.device).SetObject(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	tool := n.connect(rpc.KindTool, 9)
	ask := func(m *wirepb.InspectRequest) (*wirepb.InspectReply, error) {
		r := &wirepb.InspectReply{}
		_, err := tool.do(wire.OpInspect, m, r, nil)
		return r, err
	}
	var from []byte
	seen := 0
	for {
		r, err := ask(&wirepb.InspectRequest{Table: []byte("objects"), From: from, Limit: 500})
		if err != nil || len(r.Keys) == 0 || len(r.Keys) > 5 {
			t.Fatalf("%d records: %v", len(r.Keys), err)
		}
		seen += len(r.Keys)
		if from = append(r.Keys[len(r.Keys)-1], 0); !r.More {
			break
		}
	}
	if seen != 30 {
		t.Errorf("%d records, want 30", seen)
	}
	r, err := ask(&wirepb.InspectRequest{Ids: []uint64{30, 1 << 40}})
	if err != nil || len(r.There) != 2 || !r.There[0] || r.There[1] || r.Sizes[0] != 1 {
		t.Errorf("%v %v", r, err)
	}
	_, err = ask(&wirepb.InspectRequest{Ids: make([]uint64, target.InspectObjects+1)})
	wantKind(t, err, status.Invalid)
	_, err = ask(&wirepb.InspectRequest{Table: []byte("reply_slots")})
	wantKind(t, err, status.NotExist)
	if r, err := ask(&wirepb.InspectRequest{Table: []byte("usage"), From: []byte("none"), Exact: true}); err != nil || len(r.Keys) > 0 {
		t.Errorf("%v %v", r, errors.Join(err))
	}
}
