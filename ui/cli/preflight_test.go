package cli_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRefusedBeforeAnythingStarts holds that what can be seen beforehand stops a start before it touches anything.
func TestRefusedBeforeAnythingStarts(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	if err := os.MkdirAll(filepath.Join(dir, "base", "ost2"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, args, want string }{
		{"missing mount point", "--role=all --mount=" + dir + "/none --http=none", "mkdir -p " + dir + "/none"},
		{"mount point is a file", "--role=all --mount=" + file + " --http=none", "not a folder"},
		{"more OSTs than asked for", "--role=mds,oss --listen=127.0.0.1:0 --http=none --data=" + dir + "/base", "--osts"},
		{"port in use", "--role=mds --http=none --listen=" + busy.Addr().String(), "in use by another process"},
		{"dashboard port in use", "--role=mds --listen=127.0.0.1:0 --http=" + busy.Addr().String(), "give another --http"},
		{"address of another host", "--role=mds --listen=192.0.2.1:9880 --http=none --insecure=any", "protocol address 192.0.2.1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			data, args := filepath.Join(dir, "data"), append([]string{"strake", "--config=none"}, strings.Fields(tc.args)...)
			if !strings.Contains(tc.args, "--data") {
				args = append(args, "--data="+data)
			}
			r := call(nil, never(t), args...)
			if r.status != 1 || !strings.Contains(r.stderr, tc.want) || strings.Count(r.stderr, "\n") != 1 {
				t.Errorf("status %d, stderr %q", r.status, r.stderr)
			}
			if _, err := os.Lstat(data); err == nil {
				t.Error("the data folder was made")
			}
		})
	}
}
