package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestMain lets the test binary be what the product's binary is asked for here: the process of a rank, and its version.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 2 && os.Args[1] == "bench":
		cmd := NewCommand()
		cmd.SetArgs(os.Args[2:])
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.Execute(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case len(os.Args) > 1 && os.Args[1] == "version":
		fmt.Println("strake under test")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestWorkloadsDoWhatTheyCount(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	rate, err := CreateMany(ctx, dir, 100)
	if err != nil || rate.Count != 100 || rate.Elapsed <= 0 {
		t.Errorf("CreateMany: %+v, %v", rate, err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "createmany-*", "f*")); err != nil || len(left) != 100 {
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
	if stats, err := StatCached(ctx, dir, 2*StatFiles+1); err != nil || stats.Count != 2*StatFiles+1 || stats.Elapsed <= 0 {
		t.Errorf("StatCached: %+v, %v", stats, err)
	}
	small := filepath.Join(dir, "small")
	if rate, err := SmallWrite(ctx, small, 3); err != nil || rate.Count != 3 {
		t.Errorf("SmallWrite: %+v, %v", rate, err)
	}
	if st, err := os.Stat(small); err != nil || st.Size() != 3*SmallBlock {
		t.Errorf("SmallWrite left %v, %v", st, err)
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := CreateMany(cancelled, dir, 10); err == nil {
		t.Error("CreateMany goes on after its context ended")
	}
	if _, err := StatCached(cancelled, dir, 10); err == nil {
		t.Error("StatCached goes on after its context ended")
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

func BenchmarkCreateMany(b *testing.B) {
	b.ReportAllocs()
	if _, err := CreateMany(context.Background(), b.TempDir(), b.N); err != nil {
		b.Fatal(err)
	}
}
