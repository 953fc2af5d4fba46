package cluster_test

import (
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/mdc"
	"github.com/strakefs/strake/fs/stats"
)

// names lists the root, in order.
func (l *lister) names() []string {
	l.t.Helper()
	d, err := l.c.OpenDir(l.t.Context(), &root, fid.Root, 0)
	if err != nil {
		l.t.Fatal(err)
	}
	defer d.Release()
	var names []string
	for cookie, more := uint64(0), true; more; {
		more = false
		err := d.Read(l.t.Context(), cookie, true, func(e *mdc.Dirent, _ bool) bool {
			cookie, more = e.Cookie, true
			if e.Name[0] != '.' {
				names = append(names, string(e.Name))
			}
			return true
		})
		if err != nil {
			l.t.Fatal(err)
		}
	}
	slices.Sort(names)
	return names
}

// readdirs is how many READDIR requests the MDT has served.
func (s *system) readdirs() (n uint64) {
	s.t.Helper()
	found := false
	if err := s.stats.Walk("mdt.*.stats.readdir", func(e stats.Entry) error {
		h, ok := e.Histogram()
		n, found = h.Count, ok
		return nil
	}); err != nil || !found {
		s.t.Fatal("no figure of readdir requests:", err)
	}
	return n
}

// TestListingsAreCachedUnderTheFoldersLock: a folder that was listed is listed again without a request, until somebody changes it.
func TestListingsAreCachedUnderTheFoldersLock(t *testing.T) {
	s := newSystem(t)
	w, l := s.mount(false), s.lister()
	want := []string{}
	for i := range 20 {
		name := fmt.Sprintf("f%02d", i)
		w.create(name, syscall.O_RDWR).Release()
		want = append(want, name)
	}
	settle := func() {
		t.Helper()
		until(t, "the folder's lock is kept again", func() bool {
			before := s.readdirs()
			if got := l.names(); !slices.Equal(got, want) {
				t.Fatalf("names %v, want %v", got, want)
			}
			return s.readdirs() == before
		})
	}
	settle()
	before := s.readdirs()
	for range 10 {
		if got := l.names(); !slices.Equal(got, want) {
			t.Fatalf("names %v, want %v", got, want)
		}
	}
	if n := s.readdirs() - before; n != 0 {
		t.Errorf("%d requests for ten listings of an unchanged folder", n)
	}
	for i := range 5 {
		name := fmt.Sprintf("g%d", i)
		w.create(name, syscall.O_RDWR).Release()
		want = append(want, name)
		if got := l.names(); !slices.Equal(got, want) {
			t.Fatalf("after a create of another client %v, want %v", got, want)
		}
		if i == 2 {
			settle()
		}
	}
	if err := w.Unlink(t.Context(), &root, fid.Root, want[0], false); err != nil {
		t.Fatal(err)
	}
	want = want[1:]
	settle()
	own := &lister{mount: w, c: w.Client}
	for range 3 { // the client's own changes give no lock back
		var a attr.Attr
		if err := w.Make(t.Context(), &root, fid.Root, "zz", &mdc.Creation{Mode: syscall.S_IFDIR | 0o755}, &a); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if got := own.names(); !slices.Equal(got, append(slices.Clone(want), "zz")) {
				t.Fatalf("after an own mkdir %v", got)
			}
		}
		if err := w.Unlink(t.Context(), &root, fid.Root, "zz", true); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if got := own.names(); !slices.Equal(got, want) {
				t.Fatalf("after an own rmdir %v", got)
			}
		}
	}
	before = s.readdirs()
	if own.names(); s.readdirs() != before {
		t.Error("a request for a folder that only its own client changes")
	}
}
