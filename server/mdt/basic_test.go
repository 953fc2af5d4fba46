package mdt

import (
	"slices"
	"testing"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/status"
)

func TestCreateLookupUnlink(t *testing.T) {
	c := newCluster(t)
	cl := c.client()
	d := cl.must(fid.Root, "d", dir|0o755)
	f := cl.must(d, "f", reg|0o644, withOpen(oRdwr))
	r, err := cl.lookup(root, d, "f")
	if err != nil || fidOf(r.Attr) != f || r.Attr.Mode != reg|0o644 || r.Attr.SizeValid || len(r.Layout) == 0 {
		t.Fatalf("lookup: %v %v", r, err)
	}
	_, err = cl.lookup(root, d, "g")
	wantKind(t, "lookup g", err, status.NotExist)
	_, err = cl.make(root, d, "f", reg|0o644)
	wantKind(t, "create again", err, status.Exist)
	_, err = cl.unlink(root, fid.Root, "d", true)
	wantKind(t, "rmdir", err, status.NotEmpty)
	u, err := cl.unlink(root, d, "f", false)
	if err != nil || u.Attr.Nlink != 0 || u.Parent.Nlink != 2 {
		t.Fatalf("unlink: %v %v", u, err)
	}
	if g, err := cl.getattr(f); err != nil || g.Attr.Nlink != 0 {
		t.Fatalf("open unlinked: %v %v", g, err)
	}
	if u, err = cl.unlink(root, fid.Root, "d", true); err != nil || u.Parent.Nlink != 2 {
		t.Fatalf("rmdir: %v %v", u, err)
	}
	_, err = cl.getattr(d)
	wantKind(t, "getattr of removed folder", err, status.Stale)
}

func TestReaddirWhileDeleting(t *testing.T) {
	c := newCluster(t)
	cl := c.client()
	d := cl.must(fid.Root, "d", dir|0o755)
	const n = 700
	want := []string{".", ".."}
	for i := range n {
		name := string(rune('a'+i%26)) + string(rune('a'+i/26))
		cl.must(d, name, reg|0o644)
		want = append(want, name)
	}
	for _, plus := range []bool{false, true} {
		ds, err := cl.list(d, 4096, plus, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := names(ds)
		slices.Sort(got)
		w := slices.Clone(want)
		slices.Sort(w)
		if !slices.Equal(got, w) {
			t.Fatalf("plus %v: %d names, want %d", plus, len(got), len(w))
		}
	}
	ds, _ := cl.list(d, 1<<20, false, nil)
	gone := map[string]bool{}
	next := 2
	seen, err := cl.list(d, 4096, false, func() {
		for range 40 {
			if next < len(ds) {
				if _, err := cl.unlink(root, d, string(ds[next].Name), false); err != nil {
					t.Fatal(err)
				}
				gone[string(ds[next].Name)] = true
				next += 3
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, x := range names(seen) {
		count[x]++
	}
	for _, x := range want {
		if count[x] > 1 || count[x] == 0 && !gone[x] {
			t.Errorf("%s seen %d times", x, count[x])
		}
	}
}

func TestOpenUnlinkedLivesUntilClose(t *testing.T) {
	c := newCluster(t)
	cl := c.client()
	r, err := cl.make(root, fid.Root, "f", reg|0o644, withOpen(oRdwr))
	if err != nil {
		t.Fatal(err)
	}
	f := fidOf(r.Attr)
	o, err := cl.open(root, f, oRdonly)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cl.unlink(root, fid.Root, "f", false); err != nil {
		t.Fatal(err)
	}
	if err := cl.closeFile(f, r.Handle, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := cl.setattr(root, f, attr.ValidMode, o.Attr, 0); err != nil {
		t.Fatalf("chmod of an open file without a name: %v", err)
	}
	if err := cl.closeFile(f, o.Handle, nil); err != nil {
		t.Fatal(err)
	}
	_, err = cl.getattr(f)
	wantKind(t, "after the last close", err, status.Stale)
}
