package lfs

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
)

func TestParseSize(t *testing.T) {
	for text, want := range map[string]uint64{
		"0": 0, "65536": 65536, "64k": 65536, "1M": 1 << 20, "4g": 4 << 30, "2T": 2 << 40, "15E": 15 << 60, "0E": 0,
	} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("%s: %d %v", text, got, err)
		}
	}
	for _, text := range []string{"", "k", "-1", "+1", "1kk", "1.5m", "16E", "99999999999999999999", "1 k", "0x10", "1b"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func TestHuman(t *testing.T) {
	for v, want := range map[uint64]string{
		0: "0", 1023: "1023", 1024: "1.0K", 1536: "1.5K", 1<<20 - 1: "1.0M", 5 << 30: "5.0G", math.MaxUint64: "16.0E",
	} {
		if got := human(v, 1024); got != want {
			t.Errorf("%d: %s, want %s", v, got, want)
		}
	}
}

func TestSafe(t *testing.T) {
	for name, want := range map[string]string{
		"": `""`, "plain name": "plain name", "größe": "größe", "a\nb": `"a\nb"`, "\x1b[31m": `"\x1b[31m"`, "\xff": `"\xff"`,
		`"q"`: `"\"q\""`, `a"b`: `a"b`, "\u202e": `"\u202e"`,
	} {
		if got := safe(name); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
}

const mountinfo = `22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:50 / /mnt/st\040rake rw,nosuid - fuse.strake mds1:9880:/strake rw,user_id=0
41 22 0:51 / /mnt/set rw master:3 shared:2 - fuse.strake mds1:/strake/projects/a rw
42 22 0:51 /sub /mnt/bind rw - fuse.strake mds1:/strake/projects/a rw
43 22 0:52 / /mnt/hidden rw - fuse.strake local:/other rw
44 43 0:53 / /mnt/hidden rw - tmpfs none rw
broken line
45 22 0:54
46 22 0:55 / /mnt/x rw - fuse.strake
`

func TestMounts(t *testing.T) {
	all := parseMounts(mountinfo)
	want := []mount{
		{dev: "0:50", dir: "/mnt/st rake", root: "/"},
		{dev: "0:51", dir: "/mnt/set", root: "/", fileset: "/projects/a"},
		{dev: "0:51", dir: "/mnt/bind", root: "/sub", fileset: "/projects/a"},
	}
	if len(all) != len(want) {
		t.Fatalf("%+v", all)
	}
	for i := range want {
		if all[i] != want[i] {
			t.Errorf("%+v, want %+v", all[i], want[i])
		}
	}
	for _, c := range []struct {
		m            int
		inside, want string
	}{
		{0, "a/b", "/mnt/st rake/a/b"}, {0, "/", "/mnt/st rake"}, {1, "projects/a", "/mnt/set"}, {1, "projects/a/b", "/mnt/set/b"},
		{1, "projects/ab", ""}, {1, "/", ""}, {2, "projects/a/sub/f", "/mnt/bind/f"}, {2, "projects/a/f", ""},
	} {
		if got, ok := all[c.m].reach(c.inside); got != c.want || ok != (c.want != "") {
			t.Errorf("%s at %s: %s", c.inside, all[c.m].dir, got)
		}
	}
}

// FuzzParse: text from outside gives a value or an error.
func FuzzParse(f *testing.F) {
	f.Add(mountinfo)
	f.Add("0,3-5")
	f.Add("64k")
	f.Fuzz(func(t *testing.T, s string) {
		for _, m := range parseMounts(s) {
			if m.dir == "" {
				t.Fatalf("%+v", m)
			}
		}
		if osts, err := parseOSTs(s); err == nil && (len(osts) == 0 || len(osts) > layout.MaxStripes) {
			t.Fatal(osts)
		}
		if n, err := parseStripeSize(s); err == nil && (n%layout.MinStripeSize != 0 || n > layout.MaxStripeSize) {
			t.Fatal(n)
		}
		if strings.ContainsAny(safe(s), "\n\x1b\x00") {
			t.Fatal(safe(s))
		}
	})
}

func printed(w *show, s *subject) string {
	var b bytes.Buffer
	(&printer{w: &b, show: w}).print(s)
	return b.String()
}

func composite() *layout.Layout {
	l := layout.Plain(1, 1<<20)
	c := l.Components[0]
	c.Extent.End, c.Flags, c.Stripes = 1<<20, layout.FlagInit, []layout.Stripe{{OST: 1, Object: fid.ObjectID{ID: 7}}}
	l.Components[0] = c
	l.Components = append(l.Components, layout.Component{
		ID: 2, Extent: extent.Extent{Start: 1 << 20, End: extent.EOF}, Pattern: layout.RAID0, StripeSize: 4 << 20,
		StripeCount: layout.CountAll, StripeOffset: layout.OffsetAny, Pool: "fast",
	})
	l.Gen = 3
	return &l
}

func TestComposite(t *testing.T) {
	s := &subject{name: "f", named: true, layout: composite(), fid: fid.Root}
	if got := printed(&show{}, s); got != `f
  lcm_layout_gen:    3
  lcm_mirror_count:  1
  lcm_entry_count:   2
    lcme_id:             1
    lcme_mirror_id:      0
    lcme_flags:          init
    lcme_extent.e_start: 0
    lcme_extent.e_end:   1048576
      lmm_stripe_count:  1
      lmm_stripe_size:   1048576
      lmm_pattern:       raid0
      lmm_layout_gen:    3
      lmm_stripe_offset: 1
      lmm_objects:
      - 0: { l_ost_idx: 1, l_fid: [0x0:0x7:0x0] }

    lcme_id:             2
    lcme_mirror_id:      0
    lcme_flags:          0
    lcme_extent.e_start: 1048576
    lcme_extent.e_end:   EOF
      lmm_stripe_count:  -1
      lmm_stripe_size:   4194304
      lmm_pattern:       raid0
      lmm_layout_gen:    3
      lmm_stripe_offset: -1
      lmm_pool:          fast

` {
		t.Errorf("%s", got)
	}
	if got := printed(&show{components: true}, s); got != "f\n2\n" {
		t.Errorf("%s", got)
	}
	if got := printed(&show{count: true, index: true}, s); got != "f\nlmm_stripe_count:  1\nlmm_stripe_offset: 1\n" {
		t.Errorf("%s", got)
	}
	if got := printed(&show{yaml: true}, s); !strings.Contains(got, `
  component0:
    lcme_id:             1
    lcme_mirror_id:      0
    lcme_flags:          init
    lcme_extent.e_start: 0
    lcme_extent.e_end:   1048576
    sub_layout:
      lmm_stripe_count:  1
      lmm_stripe_size:   1048576
      lmm_pattern:       raid0
      lmm_layout_gen:    3
      lmm_stripe_offset: 1
      lmm_objects:
            - l_ost_idx: 1
              l_fid:     0x0:0x7:0x0
  component1:
`) {
		t.Errorf("%s", got)
	}
}

func TestVerboseAndQuiet(t *testing.T) {
	l := layout.Plain(1, 1<<20)
	s := &subject{name: "f", layout: &l, fid: fid.FID{Seq: 0x200000401, OID: 5}}
	if got := printed(&show{verbose: true}, s); !strings.HasPrefix(got, "lmm_seq:           0x200000401\nlmm_object_id:     0x5\nlmm_stripe_count:  1\n") {
		t.Errorf("%s", got)
	}
	if got := printed(&show{quiet: true}, s); got != "\tobdidx\t\t objid\t\t objid\t\t group\n\n" {
		t.Errorf("%q", got)
	}
	if got := printed(&show{}, &subject{name: "f"}); got != "f has no stripe info\n" {
		t.Errorf("%q", got)
	}
}
