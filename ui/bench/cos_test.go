package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestCOSSliceOnPlainFolders: both threads work until the time is over, and what they count is there.
func TestCOSSliceOnPlainFolders(t *testing.T) {
	mnt := t.TempDir()
	other := filepath.Join(t.TempDir(), "other")
	if err := os.Symlink(mnt, other); err != nil {
		t.Fatal(err)
	}
	for _, shared := range []bool{false, true} {
		s, err := newCOSSlice([]string{mnt, other}, 100*time.Millisecond, shared)
		if err != nil {
			t.Fatal(err)
		}
		rate, err := s.run(context.Background())
		if err != nil || rate.Elapsed < s.length {
			t.Fatalf("%+v, %v", rate, err)
		}
		tops, err := filepath.Glob(filepath.Join(mnt, "cos-*"))
		if err != nil || len(tops) != 1 {
			t.Fatalf("%v, %v", tops, err)
		}
		made, changed := 0, 0
		for _, own := range []string{"own0", "own1"} {
			files, err := os.ReadDir(filepath.Join(tops[0], own))
			if err != nil || len(files) == 0 {
				t.Fatalf("%s: %d files, %v", own, len(files), err)
			}
			for _, f := range files {
				info, err := f.Info()
				if err != nil {
					t.Fatal(err)
				}
				made++
				if info.Mode().Perm() == 0o600 {
					changed++
				}
			}
		}
		if int64(made+changed) != rate.Count || (changed > 0) != shared {
			t.Errorf("shared %v: %d operations are counted, %d files, %d changed", shared, rate.Count, made, changed)
		}
		if err := os.RemoveAll(tops[0]); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := newCOSSlice([]string{mnt, t.TempDir()}, time.Millisecond, false); err == nil {
		t.Error("two folders that are not the same pass for one file system")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s, err := newCOSSlice([]string{mnt, other}, time.Second, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.run(ctx); err == nil {
		t.Error("a slice that was given up counts")
	}
}

// samplesOf makes slices whose rates are a base's by factors.
func samplesOf(slices int, factors map[string]float64) cosSamples {
	s := cosSamples{}
	for name, f := range factors {
		for i := range slices {
			base := 1000 + float64(i%7)
			s[name] = append(s[name], cosSample{rate: base * f, cpu: 1e-4 / f, forced: 3})
		}
	}
	return s
}

func TestCOSVerdict(t *testing.T) {
	for _, c := range []struct {
		name   string
		slices int
		on     float64
		want   string
	}{
		{"no cost", 40, 1, verdictHolds},
		{"just", 40, 0.991, verdictHolds},
		{"too much", 40, 0.985, verdictNot},
		{"too few slices", 39, 1, verdictShort},
	} {
		s := samplesOf(c.slices, map[string]float64{armBase: 1, armOff: 1, armOn: c.on, armSharedBase: 0.5, armShared: 0.05})
		r := s.report(cosOptions{slices: c.slices, slice: time.Second, seed: 3})
		if r.Verdict != c.want || len(r.Lines) != 5 {
			t.Errorf("%s: %q of %d lines, want %q", c.name, r.Verdict, len(r.Lines), c.want)
		}
		if l := r.Lines[4]; l.Of != armSharedBase || l.Ratio.Estimate < 0.099 || l.Ratio.Estimate > 0.101 || l.CPURatio.Estimate < 9.9 {
			t.Errorf("%s: %+v", c.name, l)
		}
		var text, raw bytes.Buffer
		if err := r.print(&text); err != nil || !strings.Contains(text.String(), c.want) || strings.Count(text.String(), "\n") != 9 {
			t.Errorf("%v\n%s", err, text.String())
		}
		var back cosReport
		if err := r.printJSON(&raw); err != nil || json.Unmarshal(raw.Bytes(), &back) != nil || len(back.Lines[2].Slices) != c.slices {
			t.Errorf("%v, %s", err, raw.String())
		}
	}
	wide := interval{Estimate: 1, Low: 0.96, High: 1.1}
	if got := verdictOf(cosSlices, wide); got != verdictNot {
		t.Errorf("limits that are too wide: %q", got)
	}
}

func TestCPUTime(t *testing.T) {
	const line = "12 (a) b (c) S 1 12 12 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 1 0 100 1000 10 18446744073709551615 1 1"
	if d, err := parseCPU(line); err != nil || d != 3*time.Second {
		t.Errorf("%v, %v", d, err)
	}
	for _, bad := range []string{"", "1 (x)", "1 (x) S 1 2 3", strings.Replace(line, "250", "-1", 1), strings.Replace(line, "50 0 0 20", "x 0 0 20", 1)} {
		if d, err := parseCPU(bad); err == nil {
			t.Errorf("%q: %v", bad, d)
		}
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{name: "sleep", cmd: cmd}
	if d, err := cpuOf([]*process{p}); err != nil || d < 0 || d > time.Second {
		t.Errorf("%v, %v", d, err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if _, err := cpuOf([]*process{p}); err == nil {
		t.Error("a process that has ended has a CPU time")
	}
	if _, err := paramsOf(context.Background(), os.Getpid()); err == nil {
		t.Error("this process has a parameter socket")
	}
}

func TestCOSFlags(t *testing.T) {
	for _, args := range [][]string{{"--slices", "0"}, {"--slice", "0s"}, {"extra"}} {
		cmd := newCOS()
		cmd.SetArgs(args)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.Execute(); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}
