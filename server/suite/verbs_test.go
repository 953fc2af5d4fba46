package suite

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// uncached reads a file past the kernel's pages.
func uncached(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return nil, err
	}
	got := make([]byte, 64<<10)
	n, err := f.ReadAt(got, 0)
	if n > 0 {
		err = nil
	}
	return got[:n], err
}

// TestDeactivateAndActivate: new files avoid an OST that is deactivated; a client's read of a file there, which waited for its dead
// server, fails with EIO at once; activated, all goes on.
func TestDeactivateAndActivate(t *testing.T) {
	c := newCluster(t, layoutProcesses, clusterOptions{mount: "noatime"})
	client, mds := []string{"client"}, []string{"mds"}
	file := filepath.Join(c.mnt, "f1")
	c.onOST(t, file, 1)
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.Write([]byte("on OST0001"))
	must(t, errors.Join(err, f.Sync(), f.Close()))
	onOST1 := func() (n int) {
		t.Helper()
		for i := range 8 {
			name := filepath.Join(c.mnt, fmt.Sprintf("new%d", i))
			must(t, os.WriteFile(name, []byte("x"), 0o644))
			if strings.TrimSpace(c.lfs(t, "getstripe", "-i", name)) == "1" {
				n++
			}
			must(t, os.Remove(name))
		}
		return n
	}
	c.mustLctl(t, mds, "deactivate", "strake-OST0001")
	if out := c.mustLctl(t, mds, "dl"); !regexp.MustCompile(`(?m)^ *\d+ IN osp strake-OST0001-osc-MDT0000 `).MatchString(out) {
		t.Error(out)
	}
	if n := onOST1(); n != 0 {
		t.Errorf("%d new files are on the OST that is deactivated", n)
	}
	if got, err := uncached(file); err != nil || string(got) != "on OST0001" {
		t.Errorf("what is there cannot be read: %q %v", got, err)
	}
	c.mustLctl(t, mds, "activate", "strake-OST0001")
	must(t, poll(20*time.Second, func() error {
		if onOST1() == 0 {
			return retry("the OST is not used again")
		}
		return nil
	}))

	oss := c.server(t, 1)
	oss.kill(t)
	read := make(chan error, 1)
	go func() { _, err := uncached(file); read <- err }()
	select {
	case err := <-read:
		t.Fatalf("a read from a dead OST did not wait: %v", err)
	case <-time.After(time.Second):
	}
	c.mustLctl(t, client, "deactivate", "strake-OST0001")
	within(t, 10*time.Second, "the read that waited fails", func() error {
		if err := <-read; !errors.Is(err, unix.EIO) {
			return fmt.Errorf("%v", err)
		}
		return nil
	})
	began := time.Now()
	if _, err := uncached(file); !errors.Is(err, unix.EIO) {
		t.Errorf("a read while it is deactivated: %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v to fail", took)
	}
	bin, err := strakeBinary()
	must(t, err)
	if out, err := output("", bin, "lfs", "check", "servers", c.mnt); err == nil || !strings.Contains(out, "strake-OST0000-osc-") || !regexp.MustCompile(`strake-OST0001-osc-\w+: `).MatchString(out) {
		t.Errorf("lfs check servers: %v\n%s", err, out)
	}
	oss.again(t)
	if _, err := uncached(file); !errors.Is(err, unix.EIO) {
		t.Errorf("a read while it is deactivated, its server back: %v", err)
	}
	c.mustLctl(t, client, "activate", "strake-OST0001")
	must(t, poll(30*time.Second, func() error {
		if got, err := uncached(file); err != nil || string(got) != "on OST0001" {
			return retry("%q %v", got, err)
		}
		return nil
	}))
	if out, err := output("", bin, "lfs", "check", "servers", c.mnt); err != nil {
		t.Errorf("lfs check servers: %v\n%s", err, out)
	}
	// recover makes another connection, and nothing is lost over it.
	before := c.mustLctl(t, client, "get_param", "-n", "osc.strake-OST0000-osc.reconnects")
	c.mustLctl(t, client, "recover", "strake-OST0000")
	must(t, poll(20*time.Second, func() error {
		if now := c.mustLctl(t, client, "get_param", "-n", "osc.strake-OST0000-osc.reconnects"); now == before {
			return retry("%s reconnects", now)
		}
		return nil
	}))
	must(t, os.WriteFile(filepath.Join(c.mnt, "after"), []byte("x"), 0o644))
}

// TestEvictClientByName: an administrator throws a client out by its uuid; it comes back, and works.
func TestEvictClientByName(t *testing.T) {
	c := newCluster(t, layoutProcesses, clusterOptions{})
	mds := []string{"mds"}
	must(t, os.WriteFile(filepath.Join(c.mnt, "f"), []byte("x"), 0o644))
	exports := c.mustLctl(t, mds, "get_param", "-n", "mdt.strake-MDT0000.exports")
	uuid := regexp.MustCompile(`(?m)^([0-9a-f]{32}) +client`).FindStringSubmatch(exports)
	if uuid == nil {
		t.Fatalf("no client in\n%s", exports)
	}
	if out := c.mustLctl(t, mds, "evict_client", "strake-MDT0000", uuid[1]); out != "strake-MDT0000: evicted\n" {
		t.Error(out)
	}
	if out := c.mustLctl(t, mds, "get_param", "-n", "mdt.strake-MDT0000.evictions"); out != "1\n" {
		t.Errorf("%q evictions", out)
	}
	must(t, poll(30*time.Second, func() error {
		if err := os.WriteFile(filepath.Join(c.mnt, "g"), []byte("x"), 0o644); err != nil {
			return retry("%v", err)
		}
		return nil
	}))
	if out, err := c.lctlOf(t, mds, "evict_client", "strake-MDT0000", strings.Repeat("0", 32)); err == nil || !strings.Contains(out, "has no client") {
		t.Errorf("a client that is not there: %v\n%s", err, out)
	}
}

// TestAbortRecovery: an OST that has started again waits for a client that is stopped, and says so to lctl and the dashboard; abort_recovery
// ends that, with the client evicted.
func TestAbortRecovery(t *testing.T) {
	c := newCluster(t, layoutProcesses, clusterOptions{clients: 2})
	var clients []*node
	for _, n := range c.nodes {
		if n.mnt != "" {
			clients = append(clients, n)
		}
	}
	for i, n := range clients {
		name := filepath.Join(n.mnt, fmt.Sprintf("f%d", i))
		c.onOST(t, name, 0)
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		must(t, err)
		_, err = f.Write([]byte("x"))
		must(t, errors.Join(err, f.Sync(), f.Close()))
	}
	oss := c.server(t, 0)
	must(t, clients[1].cmd.Process.Signal(syscall.SIGSTOP))
	defer func() { must(t, clients[1].cmd.Process.Signal(syscall.SIGCONT)) }()
	oss.kill(t)
	must(t, oss.start())
	type view struct {
		Health  struct{ Title string }
		Targets []struct {
			Name, Status string
			Clients      struct {
				Known, Connected, Completed, Evicted int
				Missing                              []string
			}
			TimeRemainingSec *float64 `json:"time_remaining_sec"`
		}
		Imports []struct{ Name, State string }
	}
	look := func() (v view, err error) {
		resp, err := http.Get("http://" + oss.http + "/api/v1/recovery")
		if err != nil {
			return v, err
		}
		defer resp.Body.Close()
		return v, json.NewDecoder(resp.Body).Decode(&v)
	}
	must(t, poll(startTimeout, func() error {
		v, err := look()
		if err != nil || len(v.Targets) != 1 || v.Targets[0].Status != "RECOVERING" || v.Targets[0].Clients.Connected != 1 {
			return retry("%v %+v", err, v)
		}
		return nil
	}))
	v, err := look()
	must(t, err)
	if o := v.Targets[0]; o.Name != "strake-OST0000" || o.Clients.Known != 2 || len(o.Clients.Missing) != 1 || !strings.Contains(o.Clients.Missing[0], clients[1].mnt) ||
		o.TimeRemainingSec == nil || len(v.Imports) == 0 {
		t.Errorf("%+v", v)
	}
	names := []string{oss.name}
	must(t, poll(startTimeout, func() error { // the client that is there has replayed what it had, or waits for its turn
		out := c.mustLctl(t, names, "recovery_status")
		if !strings.Contains(out, "req_replay_clients: 1") && !strings.Contains(out, "queued_requests: 1") {
			return retry("%s", out)
		}
		return nil
	}))
	if out := c.mustLctl(t, names, "recovery_status"); !strings.Contains(out, "status: RECOVERING") || !strings.Contains(out, "connected_clients: 1/2") {
		t.Error(out)
	}
	c.mustLctl(t, names, "abort_recovery", "strake-OST0000")
	must(t, poll(20*time.Second, func() error {
		v, err := look()
		if err != nil || v.Targets[0].Status != "COMPLETE" || v.Targets[0].Clients.Evicted != 1 {
			return retry("%v %+v", err, v)
		}
		return nil
	}))
	got, err := uncached(filepath.Join(clients[0].mnt, "f0"))
	if err != nil || string(got) != "x" {
		t.Errorf("the client that was there: %q %v", got, err)
	}
}
