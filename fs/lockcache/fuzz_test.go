package lockcache_test

import (
	"testing"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/lockcache"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// FuzzCallback gives a cache any body as an AST, and any grant to adopt: nothing it is told may harm it.
func FuzzCallback(f *testing.F) {
	for _, m := range []interface{ MarshalVT() ([]byte, error) }{
		&wirepb.BlockingAST{Own: 1, Lock: 0x101, ResType: 13, Cancel: 2}, &wirepb.CompletionAST{Own: 1, Lock: 0x101, ResType: 11, Mode: 2, End: 9},
		&wirepb.GlimpseAST{Own: 1, Lock: 0x101}, grantOf(inode(5), 0x101, ldlm.Update), grantOf(object(5), 0x101, 0),
	} {
		b, err := m.MarshalVT()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		c := lockcache.New(lockcache.Options{Import: newScripted(), Owner: quiet{}, Seed: 1})
		defer c.Close()
		var w lockcache.Window
		c.Expect(&w)
		e := env.New()
		for _, op := range []wire.Op{wire.OpBlockingAST, wire.OpCompletionAST, wire.OpGlimpseAST, wire.OpConfigChanged} {
			c.Callback(e, &rpc.Call{Header: wire.Header{Op: op}, Body: body})
		}
		var g wirepb.LockGrant
		if g.UnmarshalVT(body) == nil {
			if got, ok := c.Adopt(&w, &g, nil); ok {
				c.Unpin(got.Handle)
			}
		}
		c.Done(&w)
		r := read(inode(6), ldlm.Lookup)
		got, err := c.Acquire(t.Context(), &r)
		if err != nil {
			t.Fatal(err)
		}
		c.Unpin(got.Handle)
		if _, err := c.Clear(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}
