package target

import (
	"testing"
	"time"

	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
)

func TestWindow(t *testing.T) {
	start := time.Unix(1000, 0)
	a, b := &Export{Kind: rpc.KindClient, Restored: true}, &Export{Kind: rpc.KindClient, Restored: true}
	m, c := &Export{Kind: rpc.KindMDT, Restored: true}, &Export{Kind: rpc.KindClient}
	var w window
	if w.open(start.Add(time.Second), []*Export{m, c}); !w.over {
		t.Error("open with nobody to wait for")
	}
	w.open(start.Add(time.Second), []*Export{a, m, b, c})
	if w.over || w.total != 2 {
		t.Fatalf("%+v", w)
	}
	if w.leave(c) || w.leave(m) || w.leave(a) || w.leave(a) {
		t.Error("ended while b is away")
	}
	if ended, late := w.tick(start.Add(time.Second - 1)); ended || late != nil {
		t.Error("ended before time")
	}
	if ended, late := w.tick(start.Add(time.Second)); !ended || len(late) != 1 || late[0] != b {
		t.Errorf("%v %v", ended, late)
	}
	if w.leave(b) {
		t.Error("ended twice")
	}
	w.open(start.Add(time.Second), []*Export{a, b})
	if w.leave(a) || !w.leave(b) {
		t.Error("not ended by the last one")
	}
	if ended, late := w.tick(start.Add(time.Hour)); ended || late != nil {
		t.Error("ended twice")
	}
	for _, x := range []struct {
		kind uint32
		op   wire.Op
		back bool
		want bool
	}{
		{rpc.KindClient, wire.OpEnqueue, false, false}, {rpc.KindClient, wire.OpEnqueue, true, true},
		{rpc.KindClient, wire.OpCancel, false, true}, {rpc.KindClient, wire.OpConvert, false, true},
		{rpc.KindClient, wire.OpReplayDone, false, true}, {rpc.KindClient, wire.OpWrite, false, false},
		{rpc.KindClient, wire.OpRead, false, false}, {rpc.KindTool, wire.OpRead, false, false},
		{rpc.KindMDT, wire.OpPrecreate, false, true}, {rpc.KindMDT, wire.OpDestroy, false, true},
		{rpc.KindMDT, wire.OpGlimpse, false, false},
	} {
		if got := serves(x.kind, x.op, x.back); got != x.want {
			t.Errorf("%+v: served %v", x, got)
		}
	}
}
