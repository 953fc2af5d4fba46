package bench

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestWorkloadsDoWhatTheyCount(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	rate, err := CreateMany(ctx, dir, 100)
	if err != nil || rate.Count != 100 || rate.Elapsed <= 0 {
		t.Errorf("CreateMany: %+v, %v", rate, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("CreateMany leaves %v (%v)", left, err)
	}
	path := filepath.Join(dir, "f")
	const length = 5<<20 + 12345
	written, synced, err := StreamWrite(ctx, path, length)
	if err != nil || written.Count != length || synced.Count != length || synced.Elapsed < written.Elapsed {
		t.Errorf("StreamWrite: %+v, %+v, %v", written, synced, err)
	}
	if st, err := os.Stat(path); err != nil || st.Size() != length {
		t.Errorf("StreamWrite left %v, %v", st, err)
	}
	if read, err := StreamRead(ctx, path); err != nil || read.Count != length {
		t.Errorf("StreamRead: %+v, %v", read, err)
	}
	if random, err := RandomRead(ctx, path, 50, 1); err != nil || random.Count != 50 {
		t.Errorf("RandomRead: %+v, %v", random, err)
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := CreateMany(cancelled, dir, 10); err == nil {
		t.Error("CreateMany goes on after its context ended")
	}
	if _, _, err := StreamWrite(cancelled, path, length); err == nil {
		t.Error("StreamWrite goes on after its context ended")
	}
	if err := os.WriteFile(path, []byte("short"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := RandomRead(ctx, path, 1, 1); err == nil {
		t.Error("RandomRead of a file without a block")
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 3, 2}, 2.5}} {
		if got := median(c.values); got != c.want {
			t.Errorf("median(%v) = %v, want %v", c.values, got, c.want)
		}
	}
}

func TestReportComparesWithTheBars(t *testing.T) {
	r := results{}
	for system, perSecond := range map[string]int64{loopback: 1000, processes: 800, single: 1200} {
		for _, b := range bars {
			for i := range 3 {
				r.add(system, b.workload, Rate{Count: perSecond + int64(i), Elapsed: time.Second})
			}
		}
	}
	var out bytes.Buffer
	missed, err := r.print(&out, []string{loopback, processes, single}, loopback, processes)
	if err != nil || len(missed) != 1 || missed[0] != Creates {
		t.Errorf("missed %v, error %v", missed, err)
	}
	if text := out.String(); strings.Count(text, "reached") != 3 || !strings.Contains(text, "0.80") || !strings.Contains(text, "1.20") {
		t.Errorf("the report is\n%s", text)
	}
	if missed, _ := (results{}).print(&out, []string{loopback}, loopback, processes); len(missed) != 4 {
		t.Errorf("without figures only %v are missed", missed)
	}
}

func BenchmarkCreateMany(b *testing.B) {
	b.ReportAllocs()
	if _, err := CreateMany(context.Background(), b.TempDir(), b.N); err != nil {
		b.Fatal(err)
	}
}
