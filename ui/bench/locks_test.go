package bench

import (
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
