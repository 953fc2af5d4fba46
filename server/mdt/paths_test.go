package mdt

import (
	"slices"
	"testing"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/status"
)

// TestPathsForPeople: who shows a FID in this process gets all its names, whatever the permissions of the folders.
func TestPathsForPeople(t *testing.T) {
	c := newCluster(t)
	cl := c.client()
	d := cl.must(fid.Root, "d", dir) // mode 0
	f := cl.must(d, "f", reg|0o600)
	if _, err := cl.link(root, f, fid.Root, "g"); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		f    fid.FID
		want []string
	}{{fid.Root, []string{"/"}}, {d, []string{"d"}}, {f, []string{"d/f", "g"}}} {
		if got, err := c.h.Paths(tt.f); err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%v: %q %v, want %q", tt.f, got, err, tt.want)
		}
	}
	got, err := c.h.Paths(fid.FID{Seq: f.Seq, OID: f.OID + 1000})
	if len(got) != 0 {
		t.Errorf("paths of nothing: %q", got)
	}
	wantKind(t, "no such inode", err, status.Stale)
}
