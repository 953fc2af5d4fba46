package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestHardOnPlainFolders runs the whole experiment, ranks as processes, on two names of one folder.
func TestHardOnPlainFolders(t *testing.T) {
	t.Setenv("GORACE", "atexit_sleep_ms=0") // ranks of a test with -race would each wait a second before they leave
	mnt := t.TempDir()
	other := filepath.Join(t.TempDir(), "other")
	if err := os.Symlink(mnt, other); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, error) {
		var out bytes.Buffer
		cmd := NewCommand()
		cmd.SetOut(&out)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(append([]string{"hard", "--dir", t.TempDir(), "--rounds", "2", "--records", "7", "--files", "9"}, args...))
		err := cmd.Execute()
		return out.String(), err
	}
	out, err := run("--json", "--mounts", mnt+","+other)
	var r report
	if err != nil || json.Unmarshal([]byte(out), &r) != nil || len(r.Rows) != 4 {
		t.Fatalf("%v, %s", err, out)
	}
	for _, line := range r.Rows {
		if len(line.Figures) != 2 || line.Figures[0].Median <= 0 || len(line.Figures[1].Rounds) != 2 || line.Figures[1].Ratio == nil {
			t.Errorf("%+v", line)
		}
	}
	if left, err := os.ReadDir(mnt); err != nil || len(left) != 0 {
		t.Errorf("it leaves %v (%v)", left, err)
	}
	if out, err = run("--rounds", "1", "--mounts", mnt+","+other); err != nil || !strings.Contains(out, string(HardRecords)) {
		t.Errorf("%v, %s", err, out)
	}
	if _, err = run("--mounts", mnt+","+t.TempDir()); err == nil {
		t.Error("two folders that are not the same pass for one file system")
	}
	if left, err := os.ReadDir(mnt); err != nil || len(left) != 0 {
		t.Errorf("a failure leaves %v (%v)", left, err)
	}
	if _, err = run("--mounts", mnt); err == nil {
		t.Error("one folder passes for two mounts")
	}
}

func TestRecordsInterleave(t *testing.T) {
	ctx, path := context.Background(), filepath.Join(t.TempDir(), "f")
	work := task{File: path, Count: 5, Size: 100, Stride: 3}
	for rank := range 3 {
		each := work
		each.Index = rank
		var out bytes.Buffer
		if err := each.run(ctx, strings.NewReader(lineGo+"\n"), &out); err != nil || out.String() != lineReady+"\n"+lineDone+"\n" {
			t.Fatalf("rank %d: %v, %q", rank, err, out.String())
		}
	}
	if err := checkRecords(ctx, path, 3, work); err != nil {
		t.Error(err)
	}
	if err := checkRecords(ctx, path, 1, work); err == nil {
		t.Error("records of three ranks pass for those of one")
	}
	good, err := os.ReadFile(path)
	if err != nil || len(good) != 3*5*100 {
		t.Fatalf("%d bytes, %v", len(good), err)
	}
	for _, c := range []struct {
		name string
		bad  []byte
	}{
		{"cut", good[:len(good)-1]},
		{"longer", append(bytes.Clone(good), 0)},
		{"torn", append(append(bytes.Clone(good[:150]), make([]byte, 50)...), good[200:]...)},
		{"swapped", append(append(bytes.Clone(good[100:200]), good[:100]...), good[200:]...)},
	} {
		if err := os.WriteFile(path, c.bad, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := checkRecords(ctx, path, 3, work); err == nil {
			t.Errorf("a %s file passes", c.name)
		}
	}
}

func TestCheckFiles(t *testing.T) {
	dir := t.TempDir()
	if err := createFiles(context.Background(), fileNames(dir, "f", 3), []byte("four")); err != nil {
		t.Fatal(err)
	}
	if err := checkFiles(dir, 3, 4); err != nil {
		t.Error(err)
	}
	if checkFiles(dir, 4, 4) == nil || checkFiles(dir, 3, 5) == nil || checkFiles(filepath.Join(dir, "absent"), 0, 0) == nil {
		t.Error("files that are not there, or not of the size, pass")
	}
}

func TestRankRefuses(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	good := task{Folder: dir, Count: 1}
	for name, bad := range map[string]task{
		"nothing":           {Count: 1, Size: 1},
		"file and folder":   {Folder: dir, File: dir, Count: 1, Size: 100, Stride: 1},
		"no count":          {Folder: dir},
		"a negative size":   {Folder: dir, Count: 1, Size: -1},
		"a record too huge": {File: dir, Count: 1, Size: 1 << 40, Stride: 1},
		"offsets past 2^63": {File: dir, Count: 1 << 30, Size: 1 << 30, Stride: 1 << 30},
		"index past stride": {File: dir, Count: 1, Size: 100, Index: 2, Stride: 2},
		"a short record":    {File: dir, Count: 1, Size: 4, Stride: 1},
	} {
		var out bytes.Buffer
		if err := bad.run(ctx, strings.NewReader(lineGo+"\n"), &out); err == nil || out.Len() != 0 {
			t.Errorf("%s: %v, %q", name, err, out.String())
		}
	}
	for _, in := range []string{"", "stop\n"} {
		if err := good.run(ctx, strings.NewReader(in), &bytes.Buffer{}); err == nil {
			t.Errorf("a rank goes on %q", in)
		}
	}
	if _, err := runRanks(ctx, []task{good, {Folder: filepath.Join(dir, "absent"), Index: 1, Count: 1}}); err == nil {
		t.Error("a rank that fails is not noticed")
	}
	if _, err := runRanks(ctx, []task{{}}); err == nil {
		t.Error("a rank that does not start is not noticed")
	}
}
