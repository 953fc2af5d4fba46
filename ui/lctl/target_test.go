package lctl_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/status"
)

// recorder is a parameter that notes what it is set to.
type recorder struct {
	got     chan string
	refusal error
}

func record(r *stats.Registry, path string, refusal error) *recorder {
	c := &recorder{got: make(chan string, 16), refusal: refusal}
	r.Param(path, "", func() string { return "" }, func(s string) error {
		c.got <- s
		return c.refusal
	})
	return c
}

// took checks what a parameter was set to since the last look.
func (c *recorder) took(t *testing.T, want ...string) {
	t.Helper()
	for _, w := range want {
		select {
		case s := <-c.got:
			if s != w {
				t.Errorf("set to %q, want %q", s, w)
			}
		default:
			t.Errorf("not set to %q", w)
		}
	}
	select {
	case s := <-c.got:
		t.Errorf("set to %q too", s)
	default:
	}
}

func TestRecoveryVerbs(t *testing.T) {
	h := newHost(t)
	mds, _ := h.process("mds", "strake", true)
	oss, _ := h.process("oss", "strake", false)
	mds.Text("mdt.strake-MDT0000.recovery_status", "", func() string { return "status: RECOVERING\ntime_remaining: 12" })
	oss.Text("obdfilter.strake-OST0000.recovery_status", "", func() string { return "status: INACTIVE" })
	h.expect(0, "mdt.strake-MDT0000.recovery_status=\nstatus: RECOVERING\ntime_remaining: 12\nobdfilter.strake-OST0000.recovery_status=status: INACTIVE\n", "",
		"recovery_status")
	h.expect(0, "obdfilter.strake-OST0000.recovery_status=status: INACTIVE\n", "", "recovery_status", "strake-OST0000")

	abort := record(mds, "mdt.strake-MDT0000.abort_recovery", nil)
	other := record(oss, "obdfilter.strake-OST0000.abort_recovery", nil)
	h.expect(0, "", "", "abort_recovery", "strake-MDT0000")
	abort.took(t, "1")
	other.took(t)
	h.expect(6, "", "error: abort_recovery: no process of this host has such a device: strake-MDT0001\n", "abort_recovery", "strake-MDT0001")
	h.expect(22, "", "error: abort_recovery: no target given; see lctl recovery_status\n", "abort_recovery")
	abort.refusal = status.Errorf(status.Invalid, "no recovery runs")
	h.expect(22, "", "error: abort_recovery: strake-MDT0000: no recovery runs\n", "abort_recovery", "strake-MDT0000")
}

func TestEvictClient(t *testing.T) {
	h := newHost(t)
	mds, _ := h.process("mds", "strake", true)
	oss, _ := h.process("oss", "strake", false)
	mdt := record(mds, "mdt.strake-MDT0000.evict_client", nil)
	ost := record(oss, "obdfilter.strake-OST0000.evict_client", status.Errorf(status.NotExist, "no such client"))
	h.expect(0, "strake-MDT0000: evicted\n", "", "evict_client", "strake-MDT0000", "10.0.0.17")
	mdt.took(t, "nid:10.0.0.17")
	ost.took(t)
	// All targets: enough that one knows the client.
	h.expect(0, "strake-MDT0000: evicted\n", "", "evict_client", "*", "1F0c7a54e1b24c1d9d0a8d6a3f0a7b11")
	mdt.took(t, "1F0c7a54e1b24c1d9d0a8d6a3f0a7b11")
	ost.took(t, "1F0c7a54e1b24c1d9d0a8d6a3f0a7b11")
	h.expect(22, "", "error: evict_client: strake-OST0000: no such client\n", "evict_client", "strake-OST0000", "x")
	h.expect(22, "", "error: evict_client: a target and a client are needed; see lctl evict_client --help\n", "evict_client", "strake-MDT0000")
}

func TestDeactivateAndRecover(t *testing.T) {
	h := newHost(t)
	mds, _ := h.process("mds", "strake", true)
	client, _ := h.process("client", "strake", false)
	var off atomic.Bool
	param := func(r *stats.Registry, device string) *recorder {
		c := record(r, device+".recover", nil)
		r.Text(device+".state", "", func() string { return "FULL" })
		r.Text(device+".import", "", func() string {
			return "import:\n    target: x\n    connection:\n       failover_nids: [ 10.0.0.2:9880, 10.0.0.3:9880 ]"
		})
		return c
	}
	osp, osc := param(mds, "osp.strake-OST0001-osc-MDT0000"), param(client, "osc.strake-OST0001-osc")
	mdc := param(client, "mdc.strake-MDT0000-mdc")
	mdsActive := record(mds, "osp.strake-OST0001-osc-MDT0000.active", nil)
	client.Param("osc.strake-OST0001-osc.active", "", func() string {
		if off.Load() {
			return "0"
		}
		return "1"
	}, func(s string) error { off.Store(s == "0"); return nil })

	h.expect(0, "", "", "recover", "strake-OST0001")
	osp.took(t, "1")
	osc.took(t, "1")
	mdc.took(t)
	h.expect(0, "", "", "recover", "strake-OST0001-osc-MDT0000", "strake-MDT0000")
	osp.took(t, "1")
	osc.took(t)
	mdc.took(t, "1")

	h.expect(0, "", "", "deactivate", "strake-OST0001")
	mdsActive.took(t, "0")
	h.expect(0, "  0 UP osp strake-OST0001-osc-MDT0000 strake-OST0001-osc-MDT0000_UUID 1\n"+
		"  1 UP mdc strake-MDT0000-mdc strake-MDT0000-mdc_UUID 1\n"+
		"  2 IN osc strake-OST0001-osc strake-OST0001-osc_UUID 1\n", "", "dl")
	h.expect(0, "", "", "activate", "2") // by its number
	mdsActive.took(t)
	out, _, _ := h.call("dl", "-t")
	if !strings.Contains(out, "  2 UP osc strake-OST0001-osc strake-OST0001-osc_UUID 1 FULL 10.0.0.2:9880, 10.0.0.3:9880\n") {
		t.Error(out)
	}
	h.expect(6, "", "error: activate: there is no device 9\n", "activate", "9")
	h.expect(6, "", "error: deactivate: no process of this host has such a device: strake-OST0007\n", "deactivate", "strake-OST0007")
	h.expect(22, "", "error: recover: no device given; see lctl device_list\n", "recover")

	// For good: by the MGS.
	if _, stderr, code := h.call("deactivate", "-P", "strake-OST0001"); code != 0 || stderr != "" || h.kept["{osc,osp}.strake-OST0001-osc*.active"] != "0" {
		t.Error(code, stderr, h.kept)
	}
}

// TestBackupVerb follows a backup to its end, one that fails, and says what is wrong with the command line.
func TestBackupVerb(t *testing.T) {
	h := newHost(t)
	mds, _ := h.process("mds", "strake", true)
	var file atomic.Value
	var looks atomic.Int64
	file.Store("")
	mds.Param("mdt.strake-MDT0000.backup", "", func() string {
		name := file.Load().(string)
		switch {
		case name == "":
			return ""
		case looks.Add(1) < 3:
			return "state: running\nfile: " + name
		case strings.HasSuffix(name, "full"):
			return "state: failed\nfile: " + name + "\nerror: no space: at all"
		}
		return "state: complete\nfile: " + name + "\nseconds: 0.2\nbytes: 4711\ntransno: 0x10"
	}, func(s string) error {
		if strings.HasSuffix(s, "busy") {
			return status.Errorf(status.Busy, "a backup runs")
		}
		looks.Store(0)
		file.Store(s)
		return nil
	})
	h.expect(0, "strake-MDT0000: 4711 bytes in 0.2 s, transno 0x10: /backup/x\n", "", "backup", "strake-MDT0000", "/backup/x")
	h.expect(5, "", "error: backup: no space: at all\n", "backup", "strake-MDT0000", "/backup/full")
	h.expect(22, "", "error: backup: a backup runs\n", "backup", "strake-MDT0000", "/backup/busy")
	h.expect(6, "", "error: backup: no process of this host serves a metadata target strake-MDT0009\n", "backup", "strake-MDT0009", "/x")
	h.expect(22, "", "error: backup: a target and a file are needed; see lctl backup --help\n", "backup", "strake-MDT0000")
	t.Chdir(h.dir)
	if _, stderr, code := h.call("backup", "strake-MDT0000", "here"); code != 0 || file.Load() != h.dir+"/here" {
		t.Error(code, stderr, file.Load())
	}
}

func TestRestoredVerb(t *testing.T) {
	h := newHost(t)
	mds, _ := h.process("mds", "strake", true)
	var text atomic.Value
	text.Store("state: waiting\nkept: strake-OST0000 objects 3 to 9")
	set := make(chan string, 1)
	mds.Param("mdt.strake-MDT0000.restored", "", func() string { return text.Load().(string) }, func(s string) error {
		set <- s
		text.Store("")
		return nil
	})
	h.expect(0, "state: waiting\nkept: strake-OST0000 objects 3 to 9\n", "", "restored", "strake-MDT0000")
	h.expect(0, "", "", "restored", "strake-MDT0000", "--destroy-orphans")
	if s := <-set; s != "destroy" {
		t.Error(s)
	}
	h.expect(0, "", "", "restored", "strake-MDT0000")
	text.Store("state: waiting\nerror: strake-OST0001 is not connected")
	mds.Param("mdt.strake-MDT0000.restored", "", func() string { return text.Load().(string) }, func(s string) error { set <- s; return nil })
	h.expect(5, "", "error: restored: strake-OST0001 is not connected\n", "restored", "strake-MDT0000", "--keep-orphans")
	if s := <-set; s != "keep" {
		t.Error(s)
	}
}
