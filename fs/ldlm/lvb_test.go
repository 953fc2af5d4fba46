package ldlm_test

import (
	"errors"
	"testing"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
)

// brokenLVB fails as long as err is set.
type brokenLVB struct {
	fakeLVB
	err error
}

func (b *brokenLVB) Init(e *env.Env, id ldlm.ResID, v *ldlm.LVB) error {
	if b.err != nil {
		return b.err
	}
	return b.fakeLVB.Init(e, id, v)
}

// TestLVB follows one object's size through the rules.
func TestLVB(t *testing.T) {
	store := &brokenLVB{fakeLVB: fakeLVB{size: 100}}
	ns := ldlm.New(ldlm.Config{LVB: store})
	e := env.New()
	id := ldlm.ObjectRes(fid.ObjectID{ID: 1})
	var fx ldlm.Effects
	size := func(want uint64) {
		t.Helper()
		if v, err := ns.GetLVB(e, id); err != nil || v.Size != want {
			t.Fatalf("%d, %v; want %d", v.Size, err, want)
		}
	}
	update := func(answer *ldlm.LVB, increaseOnly bool) {
		t.Helper()
		if err := ns.UpdateLVB(e, id, answer, increaseOnly); err != nil {
			t.Fatal(err)
		}
	}
	store.err = errors.New("disk")
	if _, err := ns.GetLVB(e, id); !errors.Is(err, store.err) {
		t.Fatal(err)
	}
	store.err = nil
	size(100) // the failure was not kept
	update(&ldlm.LVB{Size: 900}, true)
	size(100) // without a lock the resource is forgotten, and its LVB with it
	reply := ns.Enqueue(0, &ldlm.Request{Res: id, Mode: ldlm.PW, Client: 1, Extent: extent.Extent{End: 4096}}, &fx)
	size(100)
	update(&ldlm.LVB{Size: 900}, true)
	size(900)
	store.size = 500
	update(nil, true) // a write was committed: only up
	size(900)
	update(nil, false) // truncate: the store's word counts
	size(500)
	store.size = 50
	ns.Cancel(0, 1, []ldlm.Handle{reply.Handle}, &fx)
	size(50)
	if s := ns.Stats(); s.Resources != 0 {
		t.Fatalf("left over: %+v", s)
	}
	if _, err := ldlm.New(ldlm.Config{}).GetLVB(e, id); !errors.Is(err, ldlm.ErrNoLVB) {
		t.Fatal(err)
	}
}
