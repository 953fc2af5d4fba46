package lfs

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/virtual"
)

const plainTwo = `lmm_stripe_count:  2
lmm_stripe_size:   1048576
lmm_pattern:       raid0
lmm_layout_gen:    0
lmm_stripe_offset: 2
	obdidx		 objid		 objid		 group
	     2	             1	          0x1	             0
	     0	             2	          0x2	             0

`

func TestSetstripeGetstripe(t *testing.T) {
	m := newMount(t)
	m.want(t, 0, "", "", "setstripe", "-o", "2,0", "-S", "1m", "MNT/f")
	m.want(t, 0, "MNT/f\n"+plainTwo, "", "getstripe", "MNT/f")
	m.want(t, 0, plainTwo, "", "getstripe", "-d", "MNT/f")
	for flag, value := range map[string]string{"-c": "2", "-S": "1048576", "-i": "2", "-p": "", "-L": "raid0", "-g": "0", "--component-count": "1"} {
		m.want(t, 0, value+"\n", "", "getstripe", flag, "MNT/f")
	}
	m.want(t, 0, "lmm_stripe_count:  2\nlmm_stripe_offset: 2\n", "", "getstripe", "-c", "-i", "MNT/f")
	m.want(t, 0, `--- # MNT/f
lmm_stripe_count:  2
lmm_stripe_size:   1048576
lmm_pattern:       raid0
lmm_layout_gen:    0
lmm_stripe_offset: 2
lmm_objects:
      - l_ost_idx: 2
        l_fid:     0x0:0x1:0x0
      - l_ost_idx: 0
        l_fid:     0x0:0x2:0x0
`, "", "getstripe", "-y", "MNT/f")
	m.want(t, 0, "", "", "setstripe", "-c", "-1", "MNT/all")
	m.want(t, 0, "3\n", "", "getstripe", "-c", "MNT/all")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(filepath.Join(m.dir, "f"), link); err != nil {
		t.Fatal(err)
	}
	m.want(t, 0, "2\n", "", "getstripe", "-c", link)
}

func TestFolderDefaults(t *testing.T) {
	m := newMount(t)
	const unset = "stripe_count:  1 stripe_size:   4194304 pattern:       raid0 stripe_offset: -1\n"
	m.want(t, 0, "", "", "mkdir", "MNT/d", "MNT/d/e")
	m.want(t, 0, unset, "", "getstripe", "-d", "MNT/d")
	m.want(t, 0, "MNT/d has no stripe info\n", "", "getstripe", "-R", "-d", "MNT/d")
	m.want(t, 0, "", "", "setstripe", "-c", "2", "-i", "1", "MNT/d")
	const set = "stripe_count:  2 stripe_size:   4194304 pattern:       raid0 stripe_offset: 1\n"
	m.want(t, 0, set, "", "getstripe", "-d", "MNT/d")
	m.want(t, 0, strings.Replace(set, "4194304", "0", 1), "", "getstripe", "-R", "-d", "MNT/d")
	m.want(t, 0, "stripe_count:  2\nstripe_size:   4194304\npattern:       raid0\nstripe_offset: 1\n", "", "getstripe", "-y", "-d", "MNT/d")
	m.want(t, 0, "", "", "setstripe", "-c", "3", "MNT")
	m.want(t, 0, strings.Replace(unset, "1", "3", 1), "", "getstripe", "-d", "MNT/d/e")
	m.want(t, 0, "", "", "setstripe", "-o", "2,0", "MNT/d/\n\x1b\xff")
	odd := "\"MNT/d/\\n\\x1b\\xff\"\n" + strings.Replace(plainTwo, "1048576", "4194304", 1)
	below := "MNT/d/e\n" + strings.Replace(unset, "1", "3", 1) + "\n"
	out, _, _ := lfs(t, "getstripe", "-r", m.dir+"/d")
	out = strings.ReplaceAll(out, m.dir, "MNT") // what is in a folder comes in any order
	if out != "MNT/d\n"+set+"\n"+odd+below && out != "MNT/d\n"+set+"\n"+below+odd {
		t.Errorf("%s", out)
	}
	m.want(t, 0, "", "", "setstripe", "-d", "MNT/d", "MNT", "MNT/d/e")
	m.want(t, 0, unset, "", "getstripe", "-d", "MNT/d")
	m.want(t, 1, "", "lfs setstripe: MNT/x: no such file or directory\n", "setstripe", "-d", "MNT/x")
}

// TestNothingHalfDone: a layout that is not taken leaves no file behind, and the other paths are done.
func TestNothingHalfDone(t *testing.T) {
	m := newMount(t)
	for errno, text := range map[syscall.Errno]string{
		syscall.ENOSPC: "not enough OSTs with free space for this layout: no space left on device",
		syscall.EINVAL: "the file system does not take this layout: invalid argument",
		syscall.EIO:    "input/output error",
	} {
		m.mu.Lock()
		m.refuse = errno
		m.mu.Unlock()
		m.want(t, 1, "", "lfs setstripe: MNT/f: "+text+"\n", "setstripe", "-c", "2", "MNT/f")
		if _, err := os.Lstat(filepath.Join(m.dir, "f")); !os.IsNotExist(err) {
			t.Errorf("%v: the file is there: %v", errno, err)
		}
	}
	m.mu.Lock()
	m.refuse = 0
	m.mu.Unlock()
	m.want(t, 1, "", "lfs setstripe: MNT/no/f: no such file or directory\n", "setstripe", "MNT/no/f", "MNT/g")
	m.want(t, 0, "1\n", "", "getstripe", "-c", "MNT/g")
	m.want(t, 1, "", "lfs setstripe: MNT/h: there is no OST with index 9 (lfs osts lists them)\n", "setstripe", "-i", "9", "MNT/h")
	m.mu.Lock()
	m.refuse = syscall.EEXIST
	m.mu.Unlock()
	m.want(t, 1, "", "lfs setstripe: MNT/g: has been written or is open for it: the layout of such a file cannot change: file exists\n",
		"setstripe", "-c", "2", "MNT/g")
}

func TestNotStrake(t *testing.T) {
	m := newMount(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"getstripe", file}, {"getstripe", "-d", dir}, {"setstripe", "-c", "1", file}, {"setstripe", "-c", "1", dir + "/new"},
		{"setstripe", "-d", dir}, {"path2fid", file}, {"path2fid", "--parents", file}, {"fid2path", dir, "[0x200000401:0x5:0x0]"},
		{"mkdir", dir + "/new"}, {"df", dir}, {"osts", dir}, {"mdts", file}, {"check", "all", dir},
	} {
		out, errs, code := lfs(t, args...)
		if out != "" || code != exitFailed || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "is not on a strake mount") {
			t.Errorf("%v: %d %q %q", args, code, out, errs)
		}
	}
	if e, err := os.ReadDir(dir); err != nil || len(e) != 1 {
		t.Errorf("left behind: %v %v", e, err)
	}
	m.want(t, 1, "MNT: [0x200000400:0x1:0x0]\n", "lfs path2fid: "+file+": is not on a strake mount\n", "path2fid", file, "MNT")
}

func TestFIDs(t *testing.T) {
	m := newMount(t)
	m.want(t, 0, "", "", "mkdir", "MNT/d")
	m.want(t, 0, "", "", "setstripe", "MNT/d/f")
	fidOf := func(p string) string {
		out, _, _ := lfs(t, "path2fid", m.dir+p)
		return strings.TrimSpace(out)
	}
	d, f := fidOf("/d"), fidOf("/d/f")
	m.want(t, 0, d+"/f\n", "", "path2fid", "--parents", "MNT/d/f")
	m.want(t, 1, "MNT/d: [0x200000400:0x1:0x0]/d\n", "lfs path2fid: MNT: the root folder has no parent\n", "path2fid", "--parents", "MNT/d", "MNT")
	m.set(virtual.PathsOf+f, []byte("d/f\x00other/odd\nname\x00"))
	m.want(t, 0, "MNT/d/f\n\"MNT/other/odd\\nname\"\n", "", "fid2path", "MNT", f)
	m.want(t, 0, f+" f\n", "", "fid2path", "-f", "-n", "-l", "0", "MNT/d", strings.Trim(f, "[]"))
	m.want(t, 0, "MNT/d/f\x00MNT/other/odd\nname\x00", "", "fid2path", "-0", "MNT", f)
	m.want(t, 1, "", "lfs fid2path: "+f+": has no link number 2\n", "fid2path", "-l", "2", "MNT", f)
	m.want(t, 1, "MNT\n", "lfs fid2path: zz: is not a FID, such as [0x200000401:0x5:0x0]\nlfs fid2path: [0x1:0x2:0x0]: no file has this FID\n",
		"fid2path", "MNT", "zz", "[0x1:0x2:0x0]", "[0x200000400:0x1:0x0]")
	m.set(virtual.Paths, []byte("d/f\x00gone/g\x00"))
	m.want(t, 1, "", "lfs path2fid: MNT/d/f: MNT/gone: no such file or directory\n", "path2fid", "--parents", "MNT/d/f")
}

func TestDf(t *testing.T) {
	m := newMount(t)
	m.setJSON(t, virtual.Space, []virtual.TargetSpace{
		{Name: "strake-MDT0000", Kind: "MDT", Total: 100 << 30, Free: 60 << 30, Avail: 50 << 30, Inodes: 1000, FreeInodes: 900},
		{Name: "strake-OST0000", Kind: "OST", Total: 1 << 40, Free: 1 << 39, Avail: 1 << 39, Inodes: 2000, FreeInodes: 500},
		{Name: "strake-OST0001", Kind: "OST", Index: 1, Error: "connection\nrefused"},
	})
	m.want(t, 1, `UUID                   1K-blocks        Used   Available Use% Mounted on
strake-MDT0000_UUID    104857600    41943040    52428800  45% MNT[MDT:0]
strake-OST0000_UUID   1073741824   536870912   536870912  50% MNT[OST:0]
strake-OST0001_UUID : connection refused

filesystem_summary:   1073741824   536870912   536870912  50% MNT

`, "", "df", "MNT")
	m.want(t, 0, `UUID                       bytes        Used   Available Use% Mounted on
strake-MDT0000_UUID       100.0G       40.0G       50.0G  45% MNT[MDT:0]

filesystem_summary:       100.0G       40.0G       50.0G  45% MNT

`, "", "df", "-h", "-m", "MNT")
	m.want(t, 1, `UUID                      Inodes       IUsed       IFree IUse% Mounted on
strake-MDT0000_UUID         1000         100         900  10% MNT[MDT:0]
strake-OST0000_UUID         2000        1500         500  75% MNT[OST:0]
strake-OST0001_UUID : connection refused
strake-OST0002_UUID : inactive device

filesystem_summary:          600         100         500  17% MNT

`, "", "df", "-i", "-v", "MNT")
	m.setJSON(t, virtual.Space, []virtual.TargetSpace{ // figures that cannot be
		{Name: "\x1b[2J", Kind: "OST", Total: 1 << 63, Free: 1<<64 - 1, Avail: 1<<64 - 1}, {Name: "b", Kind: "OST", Total: 1 << 63, Avail: 5},
	})
	m.want(t, 0, `UUID                       bytes        Used   Available Use% Mounted on
"\x1b[2J_UUID"              8.0E           0        8.0E   0% MNT[OST:0]
b_UUID                      8.0E        8.0E           5 100% MNT[OST:0]

filesystem_summary:        16.0E        8.0E        8.0E  50% MNT

`, "", "df", "-h", "MNT")
}

func TestTargets(t *testing.T) {
	m := newMount(t)
	info := fourTargets()
	info.Targets[2].State = "INACTIVE"
	m.setJSON(t, virtual.About, info)
	m.want(t, 0, "OBDS:\n0: strake-OST0000_UUID ACTIVE\n1: strake-OST0001_UUID INACTIVE\n2: strake-OST0002_UUID ACTIVE\n", "", "osts", "MNT")
	m.want(t, 0, "MDTS:\n0: strake-MDT0000_UUID ACTIVE\n", "", "mdts", "MNT")
	m.want(t, 1, "strake-OST0000-osc-c0ffee active.\nstrake-OST0002-osc-c0ffee active.\n",
		"lfs check: strake-OST0001-osc-c0ffee: not connected (inactive)\n", "check", "osts", "MNT")
	m.want(t, 1, "", "lfs check: MNT: the mount knows of no MGS\n", "check", "mgts", "MNT")
	m.want(t, 0, "strake-MDT0000-mdc-c0ffee active.\n", "", "check", "mdts", "MNT")
	m.want(t, 0, "strake-MDT0000-mdc-c0ffee active.\n", "", "check", "mds", "MNT")
	info.Targets[2].State = virtual.Deactivated
	m.setJSON(t, virtual.About, info)
	m.want(t, 1, "strake-MDT0000-mdc-c0ffee active.\nstrake-OST0000-osc-c0ffee active.\nstrake-OST0002-osc-c0ffee active.\n",
		"lfs check: strake-OST0001-osc-c0ffee: deactivated: lctl activate strake-OST0001 brings it back\n", "check", "servers", "MNT")
	info.Targets = append(info.Targets[:1], virtual.Target{Name: "MGS", Kind: "MGS", State: virtual.Active})
	m.setJSON(t, virtual.About, info)
	m.want(t, 0, "MGS-mgc-c0ffee active.\n", "", "check", "mgts", "MNT")
	m.want(t, 2, "", "lfs check: all of them is none of osts, mdts, mds, mgts, servers and all\n", "check", "all of them")
}

func TestMkdir(t *testing.T) {
	m := newMount(t)
	m.want(t, 0, "", "", "mkdir", "-i", "0", "-c", "1", "MNT/a", "MNT/a/b/")
	m.want(t, 1, "", "lfs mkdir: MNT/c: there is no MDT with index 1 (lfs mdts lists them)\n", "mkdir", "-i", "1", "MNT/c")
	m.want(t, 1, "", "lfs mkdir: MNT/c: a folder over 2 MDTs is not supported by this version\n", "mkdir", "-c", "2", "MNT/c")
	m.want(t, 1, "", "lfs mkdir: MNT/a: file exists\n", "mkdir", "MNT/a", "MNT/d")
	m.want(t, 2, "", "lfs mkdir: -i \"0,1\" is not a number; -i takes one MDT here\n", "mkdir", "-i", "0,1", "MNT/c")
	m.want(t, 2, "", "lfs mkdir: mode \"9\" is not an octal number up to 7777\n", "mkdir", "-o", "9", "MNT/c")
	for name, there := range map[string]bool{"a/b": true, "c": false, "d": true} {
		if _, err := os.Stat(filepath.Join(m.dir, name)); (err == nil) != there {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestHostileAnswers: whatever a mount answers is an error, never a panic or a made-up layout.
func TestHostileAnswers(t *testing.T) {
	m := newMount(t)
	m.want(t, 0, "", "", "setstripe", "MNT/f")
	l := layout.Plain(2, 1<<20)
	good := l.Append(nil)
	for name, values := range map[string][]string{
		virtual.Layout: {string(good[:len(good)-1]), "\x01", "\x02", string(good) + "x", "\xff\xff\xff\xff", strings.Repeat("\xff", 60000)},
		virtual.FID:    {"", "[", "[0x1:0x2]", strings.Repeat("x", 60000), "[0x1:0x2:0x3", "\x00\x00"},
		virtual.About:  {"", "{", `{"targets":7}`, `{"default_layout":"!"}`, "null[", `[]`, strings.Repeat("[", 60000)},
		virtual.Space:  {"", "{}", `[{"total":-1}]`, `[{"total":1e400}]`, `[7`, `"x"`},
	} {
		for _, v := range values {
			m.set(name, []byte(v))
			for _, args := range [][]string{
				{"getstripe", "-v", m.dir + "/f"}, {"getstripe", "-y", "-r", m.dir}, {"path2fid", m.dir}, {"df", "-v", m.dir},
				{"osts", m.dir}, {"check", "all", m.dir}, {"setstripe", "-i", "1", m.dir + "/f"}, {"mkdir", m.dir + "/d"},
			} {
				_, errs, code := lfs(t, args...)
				if strings.Contains(errs, "\x00") || strings.ContainsRune(errs, 0x1b) || !utf8.ValidString(errs) || code == 0 != (errs == "") {
					t.Errorf("%s = %.40q: %v: status %d, %.200q", name, v, args, code, errs)
				}
				if uses(name, args[0]) && !strings.Contains(errs, "the mount's answer is damaged") {
					t.Errorf("%s = %.40q: %v: %.200q", name, v, args, errs)
				}
			}
			m.mu.Lock()
			delete(m.values, name)
			m.mu.Unlock()
			m.setJSON(t, virtual.About, fourTargets())
			os.Remove(filepath.Join(m.dir, "d"))
		}
	}
}

// uses reports whether a verb, as TestHostileAnswers calls it, cannot do without an attribute.
func uses(name, verb string) bool {
	switch verb {
	case "path2fid":
		return name == virtual.FID
	case "osts", "check", "mkdir":
		return name == virtual.About
	case "df":
		return name == virtual.Space
	}
	return false
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct{ args, errs string }{
		{"nope", `unknown command "nope" for "lfs"; see lfs --help`},
		{"getstripe", "lfs getstripe: too few arguments; usage: lfs getstripe [-c] [-S] [-i] [-p] [-d | -r] [-y] [-v] PATH..."},
		{"df a b", "lfs df: unexpected argument b; usage: lfs df [-i] [-h | -H] [-o | -m] [-v] [PATH]"},
		{"df -o -m", "lfs df: -o and -m exclude each other; without them both are shown"},
		{"df -p x", "lfs df: -p (--pool) is not supported by this version: pools of OSTs come with a later version"},
		{"getstripe -d -r x", "lfs getstripe: -d and -r exclude each other"},
		{"setstripe -d -c 1 x", "lfs setstripe: -d deletes a default layout and takes no other flag"},
		{"setstripe -E 1M -c 1 -E -1 -c 2 x", "lfs setstripe: -E (--component-end) is not supported by this version: a layout of several components comes with a later version"},
		{"setstripe -L mdt x", "lfs setstripe: -L (--layout) is not supported by this version: files are striped (raid0); other patterns come with a later version"},
		{"setstripe -p fast x", "lfs setstripe: -p (--pool) is not supported by this version: pools of OSTs come with a later version"},
		{"setstripe -C 4 x", "lfs setstripe: -C (--overstripe-count) is not supported by this version: several stripes on one OST come with a later version"},
		{"setstripe -z 64M x", "lfs setstripe: -z (--extension-size) is not supported by this version: components that extend themselves come with a later version"},
		{"setstripe -S 1000 x", "lfs setstripe: stripe size 1000 must be a multiple of 64K"},
		{"setstripe -S 8g x", "lfs setstripe: stripe size 8g is too large: at most 4G"},
		{"setstripe -S 1mm x", `lfs setstripe: stripe size: "1mm" is not a size; write a number with one of k, m, g behind it`},
		{"setstripe -c -2 x", `lfs setstripe: stripe count "-2" is not a number from 0 to 2000, or -1 for all OSTs`},
		{"setstripe -i -2 x", `lfs setstripe: "-2" is not the index of an OST, or -1 for any`},
		{"setstripe -o 1,1 x", "lfs setstripe: OST 1 is named twice: several stripes of a file on one OST are not supported yet"},
		{"setstripe -o 3-1 x", `lfs setstripe: "3-1" in the list of OSTs is not an index or a range of them, such as 0,3-5`},
		{"setstripe -o 0-2147483647 x", "lfs setstripe: too many OSTs: a file has at most 2000 stripes"},
		{"setstripe -o 1,2 -c 3 x", "lfs setstripe: -c 3 and the 2 OSTs of -o 1,2 do not agree"},
		{"setstripe -o 1,2 -i 3 x", "lfs setstripe: -i 3 is not one of the OSTs of -o 1,2"},
		{"mkdir -D x", "lfs mkdir: -D (--default) is not supported by this version: folders over several MDTs come with a later version"},
	} {
		out, errs, code := lfs(t, strings.Fields(c.args)...)
		if out != "" || code != exitUsage || errs != c.errs+"\n" {
			t.Errorf("lfs %s: status %d\n%s%s\nwant %s", c.args, code, out, errs, c.errs)
		}
	}
	if out, _, code := lfs(t); code != 0 || !strings.Contains(out, "setstripe") {
		t.Errorf("lfs alone: %d %s", code, out)
	}
}

func TestWantedGoesRoundFromIndex(t *testing.T) {
	f := setstripeFlags{osts: "4,7,9", index: "7"}
	l, err := f.template()
	if err != nil {
		t.Fatal(err)
	}
	if c := l.Components[0]; wantedText(&c) != "7,9,4" || c.StripeOffset != 7 || c.StripeCount != 3 {
		t.Fatalf("%+v", c)
	}
}
