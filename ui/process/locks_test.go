package process

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/server"
	"github.com/strakefs/strake/server/config"
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

// TestFlockOnDashboard holds that a file lock that somebody waits for is seen by an operator: which file, who holds it, who
// waits, and nothing of it afterwards.
func TestFlockOnDashboard(t *testing.T) {
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Getuid() != 0 {
		t.Skip("needs root and /dev/fuse")
	}
	flock, err := exec.LookPath("flock")
	if err != nil {
		t.Skip("flock(1) is not installed")
	}
	dir, err := os.MkdirTemp("", "strake-process-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Unmount(dir, unix.MNT_DETACH)
		_ = os.Remove(dir)
	})
	base := t.TempDir()
	p, err := Start(t.Context(), config.Config{
		Roles: config.RoleAll, FSName: "strake", HostMGS: true, MGSTimeout: 20 * time.Second, HTTP: "127.0.0.1:0",
		Targets: []config.Target{{Kind: config.MDT, Dir: filepath.Join(base, "mdt0")}, {Kind: config.OST, Dir: filepath.Join(base, "ost0")}},
		Mounts:  []config.Mount{{Dir: dir}},
	}, "test", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	// Other processes lock: one that serves a mount must never touch it.
	first, releaseFirst := lockFile(t, flock, filepath.Join(dir, "wanted"))
	base = "http://" + p.dash.Addr().String()
	<-first
	second, releaseSecond := lockFile(t, flock, filepath.Join(dir, "wanted"))
	waitFor(t, base, func(v *locksView) bool {
		return len(v.Resources) == 1 && v.Resources[0].Type == "flock" && v.Resources[0].Waiting == 1 && len(v.Resources[0].Holders) == 1 &&
			len(v.Resources[0].Waiters) == 1 && len(v.Resources[0].Paths) == 1 && v.Resources[0].Paths[0] == "/wanted" && v.Health.Tone == "busy"
	})
	releaseFirst()
	<-second
	waitFor(t, base, func(v *locksView) bool {
		return v.Health.Tone == "ok" && strings.HasPrefix(v.Health.Title, "No request waits")
	})
	releaseSecond()
}

// lockFile has flock(1) lock a file. The channel is closed when it has the lock or has ended; release gives the lock back and
// waits.
func lockFile(t *testing.T, flock, file string) (locked chan struct{}, release func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), flock, "-x", file, "sh", "-c", "echo locked; cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	locked, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		line := make([]byte, 7)
		if _, err := io.ReadFull(out, line); err != nil {
			t.Errorf("flock of %s: %v", file, err)
		}
		close(locked)
		if err := cmd.Wait(); err != nil {
			t.Errorf("flock of %s: %v", file, err)
		}
	}()
	var once sync.Once
	release = func() {
		once.Do(func() {
			_ = in.Close()
			<-ended
		})
	}
	t.Cleanup(release)
	return locked, release
}

// locksView is what the test reads of /api/v1/locks.
type locksView struct {
	Health    struct{ Tone, Title string }
	Resources []struct {
		Type             string
		Waiting          int
		Paths            []string
		Holders, Waiters []struct{ Client string }
	}
}

func waitFor(t *testing.T, base string, check func(*locksView) bool) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	var body []byte
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		resp, err := client.Get(base + "/api/v1/locks")
		if err != nil {
			t.Fatal(err)
		}
		body, err = io.ReadAll(resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			t.Fatal(err)
		}
		var v locksView
		if err := json.Unmarshal(body, &v); err != nil {
			t.Fatal(err)
		}
		if check(&v) {
			return
		}
	}
	t.Fatalf("not seen in 20 s: %s", body)
}
