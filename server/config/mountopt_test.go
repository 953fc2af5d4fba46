package config_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/strakefs/strake/server/config"
)

func TestParseMountOptions(t *testing.T) {
	for _, tc := range []struct {
		text string
		want func(*config.MountOptions)
	}{
		{"", func(*config.MountOptions) {}},
		{",,", func(*config.MountOptions) {}},
		{"defaults,_netdev,nofail,noauto,user,x-systemd.automount,x-a=b,comment=c", func(*config.MountOptions) {}},
		{"ro", func(o *config.MountOptions) { o.ReadOnly = true }},
		{"ro,rw", func(*config.MountOptions) {}},
		{"localflock", func(o *config.MountOptions) { o.Flock = config.FlockLocal }},
		{"noflock", func(o *config.MountOptions) { o.Flock = config.FlockNone }},
		{"noflock,flock", func(*config.MountOptions) {}},
		{"noatime", func(o *config.MountOptions) { o.Atime = config.AtimeNever }},
		{"noatime,strictatime", func(o *config.MountOptions) { o.Atime = config.AtimeStrict }},
		{"strictatime,relatime", func(*config.MountOptions) {}},
		{"nouser_xattr,noacl", func(o *config.MountOptions) { o.UserXattr, o.ACL = false, false }},
		{"fileset=/home//a/", func(o *config.MountOptions) { o.Fileset = "/home/a" }},
		{"fileset=/", func(*config.MountOptions) {}},
		{"uid=1000, gid=0", func(o *config.MountOptions) {
			o.UID, o.GID = config.OptionalID{Set: true, ID: 1000}, config.OptionalID{Set: true}
		}},
		{"umask=0022", func(o *config.MountOptions) { o.Umask = config.OptionalMode{Set: true, Mode: 0o22} }},
		{"umask=22", func(o *config.MountOptions) { o.Umask = config.OptionalMode{Set: true, Mode: 0o22} }},
		{"umask=0", func(o *config.MountOptions) { o.Umask = config.OptionalMode{Set: true} }},
		{"nosuid,nodev,noexec", func(o *config.MountOptions) { o.NoSuid, o.NoDev, o.NoExec = true, true, true }},
		{"nosuid,nodev,noexec,suid,dev,exec", func(*config.MountOptions) {}},
		{"sync,dirsync,nodiratime", func(o *config.MountOptions) { o.Sync, o.DirSync, o.NoDirAtime = true, true, true }},
		{"allow_other,io_timeout=90s", func(o *config.MountOptions) { o.IOTimeout = 90 * time.Second }},
	} {
		t.Run(tc.text, func(t *testing.T) {
			want := config.DefaultMountOptions()
			tc.want(&want)
			got, err := config.ParseMountOptions(tc.text)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

func TestMountOptionsRefused(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"bogus", `"bogus"`}, {"ro,bogus=1", `"bogus"`}, {"ro=1", `"ro" takes no value`}, {"uid", `"uid" needs a value`},
		{"uid=root", "uid"}, {"uid=-1", "uid"}, {"gid=4294967295", "gid"}, {"umask=0999", "octal"}, {"umask=01000", "octal"},
		{"umask=", "octal"}, {"fileset=home", "fileset"}, {"fileset=", "fileset"}, {"io_timeout=1", "io_timeout"},
		{"RO", `"RO"`}, {"=", `""`}, {strings.Repeat("ro,", 2000), "at most"},
	} {
		t.Run(tc.want, func(t *testing.T) {
			_, err := config.ParseMountOptions(tc.text)
			if !errors.Is(err, config.ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
}

// FuzzParseMountOptions holds that nothing panics, that a refusal is one line of ErrInvalid, and that what was
// accepted reads back from its own text.
func FuzzParseMountOptions(f *testing.F) {
	for _, s := range []string{"ro,noatime,uid=3,umask=022", "fileset=/a/../b ,x-y=z", "io_timeout=1ns", "=,=,uid"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		o, err := config.ParseMountOptions(text)
		if err != nil {
			if !errors.Is(err, config.ErrInvalid) {
				t.Fatalf("%v is not ErrInvalid", err)
			}
			return
		}
		again, err := config.ParseMountOptions(o.String())
		if err != nil || again != o {
			t.Fatalf("%q became %q: %+v, then %+v, %v", text, o.String(), o, again, err)
		}
	})
}
