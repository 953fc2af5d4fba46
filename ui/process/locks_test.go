package process

import (
	"context"
	"reflect"
	"testing"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/server"
	"github.com/strakefs/strake/server/lockd"
	"github.com/strakefs/strake/ui/dash"
)

// TestContendedForPage holds what the page is told of each type of resource: the file where there is one, bits or extent.
func TestContendedForPage(t *testing.T) {
	file := fid.FID{Seq: 0x200000401, OID: 7}
	for _, tt := range []struct {
		name   string
		res    ldlm.ResID
		bits   ldlm.Bits
		extent extent.Extent
		owner  fid.FID // of an object
		want   dash.LockResource
		party  dash.LockParty
	}{
		{"inode", ldlm.InodeRes(file), ldlm.Update, extent.Extent{}, fid.FID{},
			dash.LockResource{Type: "ibits", FID: file, Stripe: -1}, dash.LockParty{Bits: "UPDATE"}},
		{"name in a folder", ldlm.NameRes(file, 99), ldlm.Update, extent.Extent{}, fid.FID{},
			dash.LockResource{Type: "ibits", FID: file, Name: true, Stripe: -1}, dash.LockParty{Bits: "UPDATE"}},
		{"object", ldlm.ObjectRes(fid.ObjectID{Group: 2, ID: 0x30}), 0, extent.Extent{Start: 4096, End: extent.EOF}, file,
			dash.LockResource{Type: "extent", FID: file, Object: "0x2:0x30", Stripe: 3}, dash.LockParty{Extent: "[4096, EOF)"}},
		{"part of an object", ldlm.ObjectRes(fid.ObjectID{ID: 1}), 0, extent.Extent{Start: 0, End: 10}, fid.FID{},
			dash.LockResource{Type: "extent", Object: "0x0:0x1", Stripe: -1}, dash.LockParty{Extent: "[0, 10)"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := lockd.New(lockd.Options{Name: "x.strake-MDT0000", Seed: 1})
			defer s.Close()
			first := lockd.LocalLock{Res: tt.res, Mode: ldlm.EX, Bits: tt.bits, Extent: tt.extent}
			if err := s.Lock(t.Context(), env.New(), &first); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				second := first2(&first)
				_ = s.Lock(ctx, env.New(), second) // ends with ctx
			}()
			defer func() { cancel(); <-done }()
			var all []lockd.Contended
			for len(all) == 0 {
				all = s.Contended(4)
			}
			got := resourceOf(&server.Contended{Contended: all[0], Namespace: s.Name(), File: tt.owner, Stripe: 3})
			tt.party.Client, tt.party.Mode = "server", "EX"
			want := tt.want
			want.Namespace, want.Resource, want.Granted, want.Waiting = "x_strake-MDT0000", tt.res.String(), 1, 1
			want.Waiters = []dash.LockParty{tt.party}
			want.Holders = []dash.LockParty{tt.party}
			want.Holders[0].CalledBack = true
			want.Conflicts = got.Conflicts // counted as package ldlm has it
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%+v, want %+v", got, want)
			}
		})
	}
}

// first2 asks for the same again.
func first2(l *lockd.LocalLock) *lockd.LocalLock {
	return &lockd.LocalLock{Res: l.Res, Mode: l.Mode, Bits: l.Bits, Extent: l.Extent}
}

// TestPathsWithoutMount: a process without a mount says so and asks nobody.
func TestPathsWithoutMount(t *testing.T) {
	if _, err := (&Process{}).paths(t.Context(), fid.FID{Seq: 1}); err == nil {
		t.Error("paths out of nowhere")
	}
	if got := (&Process{}).contended(3); got != nil {
		t.Errorf("locks out of nowhere: %v", got)
	}
}
