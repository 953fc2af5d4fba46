package ldlm

import (
	"fmt"

	"github.com/strakefs/strake/fs/status"
)

// EffectKind says what the caller of a step has to do.
type EffectKind uint8

// The kinds of effects.
const (
	// EffectCompletion: a waiting or converting lock is granted. Server: build the completion AST with Told when it is
	// about to be sent (flock: the effect says all). Local ones wake their waiter.
	EffectCompletion EffectKind = iota + 1
	// EffectBlocking: ask the holder to give the lock back, or the bits in Cancel. Desc is the lock that wants it; it is
	// zero when the server is short of memory and nobody wants it.
	EffectBlocking
	// EffectGlimpse: ask the holder for its LVB.
	EffectGlimpse
	// EffectDeny: a waiting lock will not be granted; Status says why. The handle is gone.
	EffectDeny
	// EffectDeadlock: a waiting fcntl lock would wait for itself: EDEADLK. The handle is gone.
	EffectDeadlock
	// EffectEvict: the holder did not answer a blocking AST in time. The caller decides, then calls Evict or Prolong.
	EffectEvict
	// EffectCancel (mirror): nobody uses the lock any more and it was asked back. Write back or drop what it covers, send
	// the cancel, call Done.
	EffectCancel
	// EffectConvert (mirror): as EffectCancel for the bits in Cancel only; call Converted when the server has agreed.
	EffectConvert
)

var effectNames = [...]string{"", "completion", "blocking", "glimpse", "deny", "deadlock", "evict", "cancel", "convert"}

// String is the kind in one lower-case word.
func (k EffectKind) String() string {
	if int(k) < len(effectNames) {
		return effectNames[k]
	}
	return fmt.Sprintf("effect %d", uint8(k))
}

// Effect is one thing to do after a step. It holds copies, no references into the namespace.
type Effect struct {
	Kind   EffectKind
	Client ClientID // who holds, or waits for, the lock
	Handle Handle   // this side's handle
	Remote Handle   // the peer's handle
	Res    ResID
	// Desc is the lock that was granted, or for EffectBlocking and EffectGlimpse the one that asks.
	Desc Desc
	// Cancel is the bits to give up; of an extent or plain lock it is empty and means all of it.
	Cancel Bits
	// Discard: what the lock covers need not be written back, its object is being destroyed (EffectBlocking, EffectCancel).
	Discard bool
	// Status is why EffectDeny denies.
	Status status.Kind
	// Data is what the request brought.
	Data any
}

// Effects collects what steps decide. Keep one per worker and Reset it: then it does not allocate.
// The steps of a call append in the order in which things have to happen; effects of different clients may go out in
// parallel.
type Effects struct {
	List []Effect
}

// Reset empties the list and keeps its memory.
func (fx *Effects) Reset() {
	clear(fx.List)
	fx.List = fx.List[:0]
}

func (fx *Effects) add(k EffectKind, l *lock) *Effect {
	fx.List = append(fx.List, Effect{Kind: k, Client: l.client, Handle: l.handle, Remote: l.remote, Res: l.res.id,
		Desc: l.desc(), Data: l.data})
	return &fx.List[len(fx.List)-1]
}
