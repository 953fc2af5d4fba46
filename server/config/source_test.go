package config_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/strakefs/strake/server/config"
)

func TestFile(t *testing.T) {
	s, err := config.ParseFile("f.yaml", []byte(`# a node
role: [mds, oss]
data:
  - mdt=/srv/mdt
  - ost=/srv/ost
osts: 4
insecure: true
mgs-timeout: 5s
o: flock,umask=0022
`))
	if err != nil {
		t.Fatal(err)
	}
	want := config.Settings{
		"role":        {Values: []string{"mds", "oss"}, Origin: "f.yaml:2"},
		"data":        {Values: []string{"mdt=/srv/mdt", "ost=/srv/ost"}, Origin: "f.yaml:3"},
		"osts":        {Values: []string{"4"}, Origin: "f.yaml:6"},
		"insecure":    {Values: []string{"true"}, Origin: "f.yaml:7"},
		"mgs-timeout": {Values: []string{"5s"}, Origin: "f.yaml:8"},
		"o":           {Values: []string{"flock,umask=0022"}, Origin: "f.yaml:9"},
	}
	if d := cmp.Diff(want, s); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	for _, text := range []string{"", "# nothing\n", "---\n", "{}"} {
		if s, err := config.ParseFile("f", []byte(text)); err != nil || len(s) != 0 {
			t.Errorf("%q: %v, %v", text, s, err)
		}
	}
}

func TestFileRefused(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"unknown key", "role: all\nrolle: mds\n", `f.yaml:2: unknown key "rolle"`},
		{"twice", "role: all\nrole: mds\n", "f.yaml:2"},
		{"list for one", "fsname: [a, b]\n", "f.yaml:1: fsname takes one value"},
		{"mapping", "data:\n  mdt: /d\n", "f.yaml:1: data has no plain value"},
		{"nothing", "data:\n", "f.yaml:1: data has no plain value"},
		{"scalar", "all\n", "f.yaml:1: want a mapping"},
		{"not yaml", "role: [all\n", "not YAML"},
		{"two documents", "role: all\n---\nrole: mds\n", "more than one"},
		{"config", "config: /x\n", "f.yaml:1: config cannot stand in the file"},
		{"key is a list", "? [a]\n: b\n", "f.yaml:1: unknown key"},
		{"alias", "data: &a x\nmount: *a\n", "f.yaml:2: mount has no plain value"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := config.ParseFile("f.yaml", []byte(tc.text))
			if !errors.Is(err, config.ErrInvalid) || !strings.Contains(err.Error(), tc.want) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := config.ReadFile(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent file: %v", err)
	}
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, make([]byte, 1<<20+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := config.ReadFile(big); !errors.Is(err, config.ErrInvalid) {
		t.Errorf("big file: %v", err)
	}
}

func TestEnv(t *testing.T) {
	s, err := config.FromEnv([]string{"HOME=/root", "STRAKE_ROLE=mds,oss", "STRAKE_DATA=mdt=/a,ost=/b", "STRAKE_MGS=",
		"STRAKE_O=ro,umask=22", "STRAKE_MGS_TIMEOUT=5s", "STRAKE_SOAK=1", "STRAKE_SUITE_DIR=/x", "STRAKE_TEST_X=1",
		"STRAKELY=1"})
	if err != nil {
		t.Fatal(err)
	}
	want := config.Settings{
		"role":        {Values: []string{"mds", "oss"}, Origin: "STRAKE_ROLE"},
		"data":        {Values: []string{"mdt=/a", "ost=/b"}, Origin: "STRAKE_DATA"},
		"o":           {Values: []string{"ro,umask=22"}, Origin: "STRAKE_O"},
		"mgs-timeout": {Values: []string{"5s"}, Origin: "STRAKE_MGS_TIMEOUT"},
	}
	if d := cmp.Diff(want, s); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	_, err = config.FromEnv([]string{"STRAKE_SOAKED=1", "STRAKE_ROLE=all", "STRAKE_role=all"})
	if !errors.Is(err, config.ErrInvalid) || !strings.Contains(err.Error(), "STRAKE_SOAKED, STRAKE_role") {
		t.Errorf("unknown variables: %v", err)
	}
}

func TestMergeWholeKeys(t *testing.T) {
	file := config.Settings{"data": {Values: []string{"a", "b"}}, "fsname": {Values: []string{"f"}}}
	env := config.Settings{"fsname": {Values: []string{"e"}}}
	flags := config.Settings{"data": {Values: []string{"c"}}}
	got := config.Merge(file, env, flags)
	want := config.Settings{"data": {Values: []string{"c"}}, "fsname": {Values: []string{"e"}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

func FuzzParseFile(f *testing.F) {
	f.Add([]byte("role: [mds, oss]\ndata: [a]\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := config.ParseFile("f", text)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error of more than one line: %q", err)
			}
			return
		}
		config.New(s) // must not panic, whatever it says
	})
}
