package bench

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

func TestLocksFlags(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want string // part of the error
	}{
		{"how to be cold", []string{"--cold", "lukewarm"}, "--cold"},
		{"no files", []string{"--files", "0"}, "--files"},
		{"no rounds", []string{"--rounds", "0"}, "--rounds"},
		{"negative bytes", []string{"--bytes", "-1"}, "--bytes"},
		{"three mounts", []string{"--mounts", "/a,/b,/c"}, "--mounts"},
		{"a remount of nothing", []string{"--remount", "true"}, "--remount"},
		{"a cold that cannot be had", []string{"--cold", "remount", "--mounts", "/a"}, "--remount"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := NewCommand()
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			cmd.SetArgs(append([]string{"locks", "--dir", t.TempDir()}, c.args...))
			if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// TestLocksOnAPlainFolder runs the whole experiment with a folder in place of strake: the loopback is started, mounted
// anew before the listing, and stopped.
func TestLocksOnAPlainFolder(t *testing.T) {
	if _, err := os.Stat("/dev/fuse"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and /dev/fuse")
	}
	dir, mnt := t.TempDir(), t.TempDir()
	var out bytes.Buffer
	cmd := NewCommand()
	cmd.SetOut(&out)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs([]string{"locks", "--json", "--dir", dir, "--rounds", "2", "--creates", "10", "--stats", "50", "--writes", "20", "--size", "1",
		"--reads", "10", "--files", "30", "--bytes", "7", "--cold", "remount", "--mounts", mnt, "--remount", "true"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || len(r.Rows) != len(locksBars()) || r.Judged != given {
		t.Fatalf("%v, %s", err, out.Bytes())
	}
	for _, line := range r.Rows {
		if len(line.Figures) != 2 || len(line.Figures[0].Rounds) != 2 || line.Figures[0].Median <= 0 || line.Figures[1].Median <= 0 {
			t.Errorf("%+v", line)
		}
	}
	for _, d := range []string{dir, mnt} {
		if left, err := os.ReadDir(d); err != nil || len(left) != 0 {
			t.Errorf("it leaves %v in %s (%v)", left, d, err)
		}
	}
}
