package cli

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestHeldLog(t *testing.T) {
	for _, tc := range []struct {
		name  string
		level slog.Level
		end   func(*heldWriter)
		want  int // lines
	}{
		{"released", slog.LevelInfo, (*heldWriter).release, 2},
		{"dropped", slog.LevelInfo, (*heldWriter).drop, 1},
		{"debug is not held", slog.LevelDebug, (*heldWriter).drop, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out bytes.Buffer
			log, held := newLogger(&out, tc.level)
			log.Info("during")
			tc.end(held)
			log.Info("after")
			if got := strings.Count(out.String(), "\n"); got != tc.want {
				t.Errorf("%d lines: %s", got, out.String())
			}
		})
	}
	var out bytes.Buffer
	log, held := newLogger(&out, slog.LevelInfo)
	for range maxHeldBytes / 32 {
		log.Info("a start that has a lot to say")
	}
	held.drop()
	if out.Len() == 0 {
		t.Error("nothing bounds what is held")
	}
}

func TestMountLine(t *testing.T) {
	for _, tc := range []struct {
		line, point, fstype string
		ok                  bool
	}{
		{`36 35 98:0 / /mnt/a\040b rw,noatime master:1 - fuse.strake strake rw`, "/mnt/a b", "fuse.strake", true},
		{`36 35 98:0 / / rw - ext4 /dev/sda rw`, "/", "ext4", true},
		{`36 35 98:0 / rw`, "", "", false},
		{``, "", "", false},
	} {
		point, fstype, ok := mountLine(tc.line)
		if point != tc.point || fstype != tc.fstype || ok != tc.ok {
			t.Errorf("%q: %q, %q, %v", tc.line, point, fstype, ok)
		}
	}
}
