package check_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	servercheck "github.com/strakefs/strake/server/check"
	"github.com/strakefs/strake/server/mdt"
	"github.com/strakefs/strake/server/osp"
	"github.com/strakefs/strake/server/ost"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/boltdev"
	"github.com/strakefs/strake/ui/check"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// site makes the folders of a file system with one file, whose name is one that a terminal would act on.
func site(t *testing.T) string {
	t.Helper()
	base := t.TempDir()
	key := []byte("0123456789abcdef")
	id := fid.ObjectID{ID: 1}
	var f fid.FID
	with := func(name string, kind store.TargetKind, specs []store.Spec, fn func(d *boltdev.Device)) {
		d, err := boltdev.Open(boltdev.Options{Dir: filepath.Join(base, name), Specs: specs,
			Label: store.Label{FSName: "strake", Kind: kind, Index: 0, UUID: name, FSKey: key}})
		must(t, err)
		fn(d)
		must(t, d.Close())
	}
	with("mdt0", store.KindMDT, servercheck.MDTSpecs(), func(d *boltdev.Device) {
		r, err := mdt.NewRepairer(d, mdt.TablesAt(0), key)
		must(t, err)
		must(t, r.Prepare(nil))
		_, err = r.Fix(t.Context(), &mdt.Problem{Kind: mdt.ProblemRoot, FID: fid.Root})
		must(t, err)
		f, err = r.Adopt(t.Context(), "\x1b[2Jbell\a", layout.Stripe{Object: id}, mdt.File{UID: 5})
		must(t, err)
		k, v := osp.PutLastUsed(0, 1)
		for i, s := range servercheck.MDTSpecs() {
			if s.Name == "ost_last_used" {
				must(t, r.Put(t.Context(), store.Table(i), k, v))
			}
		}
	})
	with("ost0", store.KindOST, ost.Specs(), func(d *boltdev.Device) {
		r := ost.NewRepairer(d)
		must(t, r.Create(id))
		must(t, r.SetObject(t.Context(), ost.Object{ID: id, Owner: f, Owned: true, UID: 5}))
		must(t, r.SetLast(t.Context(), 0, 1))
	})
	return base
}

// run runs a command and gives what it printed and its exit status.
func run(t *testing.T, c *cobra.Command, args ...string) (out string, code int) {
	t.Helper()
	var b bytes.Buffer
	c.SetArgs(args)
	c.SetOut(&b)
	c.SetErr(&b)
	c.SilenceErrors, c.SilenceUsage = true, true
	err := c.ExecuteContext(context.Background())
	if err != nil {
		code = 1
		var coded interface{ ExitCode() int }
		if errors.As(err, &coded) {
			code = coded.ExitCode()
		}
		b.WriteString(err.Error())
	}
	return b.String(), code
}

func TestCheckCommand(t *testing.T) {
	base := site(t)
	expect := func(code int, words string, args ...string) string {
		t.Helper()
		out, got := run(t, check.NewCommand(), args...)
		if got != code || !strings.Contains(out, words) {
			t.Errorf("check %v: status %d, want %d with %q:\n%s", args, got, code, words, out)
		}
		if strings.ContainsAny(out, "\x1b\a") {
			t.Errorf("check %v prints what a terminal acts on: %q", args, out)
		}
		return out
	}
	expect(0, "3 inodes, 1 files, 1 objects on 2 targets: nothing found", "--data", base)
	expect(0, "not looked at: strake-OST0000", "--data", filepath.Join(base, "mdt0"))
	expect(0, "nothing found", "--data", filepath.Join(base, "ost0"))
	expect(4, "says what is checked")
	expect(4, "says what is checked", "--data", base, "--mgs", "localhost")
	expect(4, "no such file", "--data", filepath.Join(base, "absent"))
	expect(4, "not a strake data folder", "--data", t.TempDir())
	expect(4, "two MDTs", "--data", base, "--data", site(t))
	expect(4, "not repaired", "--mgs", "localhost", "--repair")
	expect(4, "--insecure", "--mgs", "192.0.2.1")
	expect(4, "no mount point", "--mount", base)

	o, err := boltdev.Open(boltdev.Options{Dir: filepath.Join(base, "ost0"), Specs: ost.Specs()})
	must(t, err)
	expect(4, "in use", "--data", base)
	must(t, o.Objects().Remove(fid.ObjectID{ID: 1}))
	must(t, o.Close())
	expect(1, `missing-object strake-OST0000 object 0:1 [0x200000401:0x2:0x0] /lost+found/\x1b[2Jbell\a: stripe 0 is not there`, "--data", base)
	out := expect(1, `"summary"`, "--data", base, "--json")
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		if !json.Valid([]byte(line)) {
			t.Errorf("no JSON: %s", line)
		}
	}
	expect(2, "[repaired: made anew, empty]", "--data", base, "--repair")
	expect(0, "nothing found", "--data", base, "--repair")
}

func TestDumpCommand(t *testing.T) {
	base := site(t)
	m := filepath.Join(base, "mdt0")
	d, err := boltdev.Open(boltdev.Options{Dir: m, Specs: servercheck.MDTSpecs()})
	must(t, err)
	tx := d.Begin(env.New())
	tx.Put(3, []byte("not a FID"), []byte{1}) // an orphan
	_, err = d.Publish(tx)
	must(t, errors.Join(err, d.Close()))
	for _, c := range []struct {
		code  int
		words string
		args  []string
	}{
		{0, "fsname: strake", []string{"--data", base}},
		{0, "path: /lost+found\n", []string{"--data", m, "--path", "/lost+found"}},
		{0, `name=\x1b[2Jbell\a`, []string{"--data", base, "--path", "lost+found"}},
		{0, "type: folder", []string{"--data", m, "--fid", "[0x200000400:0x1:0x0]"}},
		{0, `"objects":["OST0000:0:1"]`, []string{"--data", base, "--fid", "0x200000401:0x2:0x0", "--json"}},
		{0, "file: true", []string{"--data", base, "--object", "0:1"}},
		{0, "record: none", []string{"--data", base, "--object", "0:2"}},
		{0, "kind=uid id=5 blocks=0 objects=1", []string{"--data", base, "--table", "usage"}},
		{0, "error=", []string{"--data", base, "--table", "orphan"}},
		{1, "no table", []string{"--data", base, "--table", "absent"}},
		{1, "not found", []string{"--data", base, "--path", "/absent"}},
		{1, "no inode", []string{"--data", base, "--fid", "[0x200000400:0x9:0x0]"}},
		{1, "is no object", []string{"--data", base, "--object", "7"}},
		{1, "none of the folders", []string{"--data", m, "--object", "0:1"}},
		{1, "--data", nil},
	} {
		out, code := run(t, check.NewDumpCommand(), c.args...)
		if code != c.code || !strings.Contains(out, c.words) || strings.ContainsAny(out, "\x1b\a") {
			t.Errorf("dump %v: status %d, want %d with %q:\n%s", c.args, code, c.code, c.words, out)
		}
		if strings.Contains(out, "30313233343536") || strings.Contains(out, "0123456789abcdef") {
			t.Errorf("dump %v shows the key", c.args)
		}
	}
}
