package config_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/strakefs/strake/server/config"
)

// settings makes Settings out of words as a command line has them: "--role=all", "--insecure".
func settings(t *testing.T, line ...string) config.Settings {
	t.Helper()
	s := config.Settings{}
	for _, word := range line {
		name, value, has := strings.Cut(strings.TrimPrefix(word, "--"), "=")
		if !has {
			value = "loopback"
		}
		set := s[name]
		set.Values = append(set.Values, value)
		set.Origin = "--" + name
		s[name] = set
	}
	return s
}

func TestRolesAndTargets(t *testing.T) {
	mdt := func(dir string) config.Target { return config.Target{Kind: config.MDT, Dir: dir} }
	ost := func(dir string) config.Target { return config.Target{Kind: config.OST, Dir: dir} }
	for _, tc := range []struct {
		name, line string
		roles      string
		targets    []config.Target
		base       string
		hostMGS    bool
		mgs        []string
		listen     string
		http       string
	}{
		{name: "all", line: "--role=all --data=d --mount=m", roles: "all", base: "d", hostMGS: true,
			targets: []config.Target{mdt("d/mdt0"), ost("d/ost0"), ost("d/ost1")}, http: "127.0.0.1:9881"},
		{name: "all with osts", line: "--role=all --data=/d/ --osts=3 --mount=m", roles: "all", base: "/d", hostMGS: true,
			targets: []config.Target{mdt("/d/mdt0"), ost("/d/ost0"), ost("/d/ost1"), ost("/d/ost2")},
			http:    "127.0.0.1:9881"},
		{name: "all that serves others", line: "--role=all --data=d --listen=127.0.0.1:0 --http=none --mount=m",
			roles: "all", base: "d", hostMGS: true, listen: "127.0.0.1:0",
			targets: []config.Target{mdt("d/mdt0"), ost("d/ost0"), ost("d/ost1")}},
		{name: "all with folders of its own", line: "--role=all --data=ost=b --data=mdt=a --data=ost=c --mount=m",
			roles: "all", hostMGS: true, targets: []config.Target{mdt("a"), ost("b"), ost("c")}, http: "127.0.0.1:9881"},
		{name: "mds hosts the MGS", line: "--role=mds --data=d", roles: "mds", hostMGS: true,
			targets: []config.Target{mdt("d")}, listen: "127.0.0.1:9880", http: "127.0.0.1:9881"},
		{name: "mds elsewhere", line: "--role=mds --data=mdt=d --mgs=127.0.0.1", roles: "mds", mgs: []string{"127.0.0.1:9880"},
			targets: []config.Target{mdt("d")}, listen: "127.0.0.1:9880", http: "127.0.0.1:9881"},
		{name: "oss with several", line: "--role=oss --data=a --data=ost=b --mgs=localhost:7 --insecure=any", roles: "oss",
			targets: []config.Target{ost("a"), ost("b")}, mgs: []string{"localhost:7"}, listen: ":9880",
			http: "127.0.0.1:9881"},
		{name: "mds,oss on one base", line: "--role=mds,oss --data=d --osts=1", roles: "mds,oss", base: "d", hostMGS: true,
			targets: []config.Target{mdt("d/mdt0"), ost("d/ost0")}, listen: "127.0.0.1:9880", http: "127.0.0.1:9881"},
		{name: "mds,oss apart", line: "--role=oss --role=mds --data=ost=o --data=mdt=m", roles: "mds,oss", hostMGS: true,
			targets: []config.Target{mdt("m"), ost("o")}, listen: "127.0.0.1:9880", http: "127.0.0.1:9881"},
		{name: "every role is not all", line: "--role=mds,oss,client --data=d --mount=m", roles: "mds,oss,client", base: "d",
			hostMGS: true, targets: []config.Target{mdt("d/mdt0"), ost("d/ost0"), ost("d/ost1")},
			listen: "127.0.0.1:9880", http: "127.0.0.1:9881"},
		{name: "client", line: "--role=client --mgs=127.0.0.1:1,[::1]:2 --mgs=::1 --mount=m", roles: "client",
			mgs: []string{"127.0.0.1:1", "[::1]:2", "[::1]:9880"}},
		{name: "client with dashboard", line: "--role=client --mgs=127.0.0.1:1 --mount=m --http=:8080 --insecure=any",
			roles: "client", mgs: []string{"127.0.0.1:1"}, http: ":8080"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := config.New(settings(t, strings.Fields(tc.line)...))
			if err != nil {
				t.Fatal(err)
			}
			got := []any{c.Roles.String(), c.Targets, c.Base, c.HostMGS, c.MGS, c.Listen, c.HTTP}
			want := []any{tc.roles, tc.targets, tc.base, tc.hostMGS, tc.mgs, tc.listen, tc.http}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

func TestDefaultsAndValues(t *testing.T) {
	c, err := config.New(settings(t, "--role=all", "--data=d", "--mount=m"))
	if err != nil {
		t.Fatal(err)
	}
	if c.FSName != "strake" || c.LogLevel != slog.LevelInfo || c.MGSTimeout != 30*time.Second ||
		c.Insecure != config.InsecureOff || len(c.Notes) != 0 || c.MDTs() != 1 || c.OSTs() != 2 {
		t.Errorf("defaults: %+v", c)
	}
	c, err = config.New(settings(t, "--role=mds", "--data=d", "--fsname=A_b-9", "--log-level=debug", "--mgs-timeout=1m30s",
		"--insecure"))
	if err != nil {
		t.Fatal(err)
	}
	if c.FSName != "A_b-9" || c.LogLevel != slog.LevelDebug || c.MGSTimeout != 90*time.Second ||
		c.Insecure != config.InsecureLoopback {
		t.Errorf("values: %+v", c)
	}
	if len(c.Notes) != 1 || !strings.Contains(c.Notes[0], "127.0.0.1:9880") {
		t.Errorf("the narrowed default is not noted: %q", c.Notes)
	}
	c, err = config.New(settings(t, "--role=all", "--data=d", "--mount=a", "--mount=b/", "--o=ro", "--o=noatime,umask=22"))
	if err != nil {
		t.Fatal(err)
	}
	o := config.DefaultMountOptions()
	o.ReadOnly, o.Atime, o.Umask = true, config.AtimeNever, config.OptionalMode{Set: true, Mode: 0o22}
	if d := cmp.Diff([]config.Mount{{Dir: "a", Options: o}, {Dir: "b", Options: o}}, c.Mounts); d != "" {
		t.Errorf("mounts -want +got:\n%s", d)
	}
}

func TestRefused(t *testing.T) {
	for _, tc := range []struct{ name, line, want string }{
		{"no role", "--data=d", "no role"},
		{"empty role", "--role=, --data=d", "no role"},
		{"unknown role", "--role=mgs --data=d", `unknown role "mgs"`},
		{"all and another", "--role=all,mds --data=d", "all is every role already"},
		{"another and all", "--role=mds --role=all --data=d", "all is every role already"},
		{"no data", "--role=all --mount=m", "needs a data folder"},
		{"data of a client", "--role=client --data=d --mgs=127.0.0.1 --mount=m", "keeps no data"},
		{"two MDTs", "--role=mds --data=a --data=b", "one MDT for now"},
		{"which is it", "--role=mds,oss --data=a --data=b", "mdt=a or ost=a"},
		{"no MDT", "--role=mds,oss --data=ost=a", "no folder for the MDT"},
		{"no OST", "--role=mds,oss --data=mdt=a", "no folder for an OST"},
		{"wrong kind", "--role=mds --data=ost=a", "serves no OST"},
		{"empty folder", "--role=mds --data=mdt=", "no folder name"},
		{"same folder", "--role=oss --mgs=127.0.0.1 --data=a --data=./a", "not two separate folders"},
		{"folder in folder", "--role=oss --mgs=127.0.0.1 --data=a/b --data=a", "not two separate folders"},
		{"osts of apart", "--role=oss --mgs=127.0.0.1 --data=a --osts=3", "each OST is a --data"},
		{"osts 0", "--role=all --data=a --osts=0", "from 1 to 64"},
		{"osts many", "--role=all --data=a --osts=65", "from 1 to 64"},
		{"osts no number", "--role=all --data=a --osts=two", "from 1 to 64"},
		{"mgs of all", "--role=all --data=d --mgs=127.0.0.1", "hosts the MGS itself"},
		{"oss without mgs", "--role=oss --data=d", "needs the MGS"},
		{"client without mgs", "--role=client --mount=m", "needs the MGS"},
		{"mgs without host", "--role=oss --data=d --mgs=:9880", "has a host and a port"},
		{"mgs bad port", "--role=oss --data=d --mgs=127.0.0.1:99999", "no port between"},
		{"mgs bad host", "--role=oss --data=d --mgs=a/b:1", "no host name"},
		{"mgs elsewhere", "--role=oss --data=d --mgs=10.0.0.1:9880", "--insecure=any"},
		{"mgs by name", "--role=oss --data=d --mgs=mds1:9880 --insecure", "--insecure=any"},
		{"listen elsewhere", "--role=mds --data=d --listen=:9880", "--insecure=any"},
		{"listen elsewhere v6", "--role=mds --data=d --listen=[::]:9880 --insecure", "--insecure=any"},
		{"http elsewhere", "--role=all --data=d --http=0.0.0.0:80", "--insecure=any"},
		{"http is listen", "--role=mds --data=d --http=127.0.0.1:9880", "protocol's address too"},
		{"listen none", "--role=mds --data=d --listen=none", "needs a protocol port"},
		{"listen of a client", "--role=client --mgs=127.0.0.1 --mount=m --listen=127.0.0.1:1", "opens no protocol port"},
		{"listen bad", "--role=mds --data=d --listen=1:2:3", "no address"},
		{"client without mount", "--role=client --mgs=127.0.0.1", "needs a mount point"},
		{"mount of an mds", "--role=mds --data=d --mount=m", "does not mount"},
		{"options without mount", "--role=all --data=d --o=ro", "without a mount"},
		{"mount twice", "--role=all --data=d --mount=m --mount=m/", "given twice"},
		{"empty mount", "--role=all --data=d --mount=", "no folder name"},
		{"data under mount", "--role=all --data=/mnt/d --mount=/mnt", "lie in each other"},
		{"mount in target", "--role=all --data=/d --mount=/d/ost0/m", "lie in each other"},
		{"option", "--role=all --data=d --mount=m --o=ro,bogus", `"bogus"`},
		{"fsname long", "--role=all --data=d --fsname=ninechars", "ninechars"},
		{"fsname empty", "--role=all --data=d --fsname=", "1 to 8"},
		{"fsname dot", "--role=all --data=d --fsname=a.b", "1 to 8"},
		{"log level", "--role=all --data=d --log-level=loud", `"loud"`},
		{"timeout", "--role=all --data=d --mgs-timeout=30", "30s or 5m"},
		{"timeout 0", "--role=all --data=d --mgs-timeout=0s", "more than 0"},
		{"timeout negative", "--role=all --data=d --mgs-timeout=-1s", "30s or 5m"},
		{"insecure", "--role=all --data=d --insecure=maybe", `"maybe"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := config.New(settings(t, strings.Fields(tc.line)...))
			if !errors.Is(err, config.ErrInvalid) {
				t.Fatalf("got %v, want ErrInvalid", err)
			}
			if !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("message %q does not say %q in one line", err, tc.want)
			}
		})
	}
}

func TestIsLoopback(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:1": true, "127.8.9.10:1": true, "[::1]:1": true, "localhost:1": true, "LocalHost:1": true,
		"[::ffff:127.0.0.1]:1": true, ":1": false, "0.0.0.0:1": false, "[::]:1": false, "10.0.0.1:1": false,
		"localhost.example.org:1": false, "127.0.0.1": false,
	} {
		if got := config.IsLoopback(addr); got != want {
			t.Errorf("IsLoopback(%q) = %v", addr, got)
		}
	}
}
