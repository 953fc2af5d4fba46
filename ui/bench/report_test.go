package bench

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
)

// sample is a report whose judged system is at 0.8 and whose third one is at 1.2 of the base.
func sample(c contest) report {
	r := results{}
	for i, system := range c.columns {
		for _, b := range c.bars {
			for round := range 3 {
				r.add(system, b.workload, Rate{Count: []int64{1000, 800, 1200}[i]<<20 + int64(round), Elapsed: time.Second})
			}
		}
	}
	return report{Experiment: "sample", Rounds: 3, Base: c.base, Judged: c.judged, Rows: r.rows(c)}
}

func TestReportComparesWithTheBars(t *testing.T) {
	c := contest{[]string{loopback, processes, single}, loopback, processes, foundationBars()}
	r := sample(c)
	if missed := r.missed(); !slices.Equal(missed, []Workload{Creates}) {
		t.Errorf("missed %v", missed)
	}
	var out bytes.Buffer
	if err := r.print(&out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	for i, want := range map[int]string{
		0: "workload unit loopback strake, 4 processes ratio strake, role all ratio bar",
		1: "file creates ops/s 1048576001 ±0% 838860801 ±0% 0.80 1258291201 ±0% 1.20 1.0 does not",
		2: "1 MiB streaming writes MiB/s 1000 ±0% 800 ±0% 0.80 1200 ±0% 1.20 0.6 holds",
		3: "1 MiB writes and fsync MiB/s 1000 ±0% 800 ±0% 0.80 1200 ±0% 1.20 -",
	} {
		if got := strings.Join(strings.Fields(lines[i]), " "); got != want {
			t.Errorf("line %d is\n%s, want\n%s", i, got, want)
		}
	}
	if missed := (report{Rows: results{}.rows(c)}).missed(); len(missed) != 4 {
		t.Errorf("without figures only %v are missed", missed)
	}
}

func TestReportAsJSON(t *testing.T) {
	want := sample(contest{[]string{loopback, processes}, loopback, processes, locksBars()})
	var out bytes.Buffer
	if err := want.printJSON(&out); err != nil {
		t.Fatal(err)
	}
	var got report
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || len(got.Rows) != len(locksBars()) {
		t.Fatalf("%d rows, %v, of\n%s", len(got.Rows), err, out.Bytes())
	}
	for i, b := range locksBars() {
		line := got.Rows[i]
		judged := line.Figures[1]
		if line.Workload != b.workload || judged.System != processes || judged.Ratio == nil || len(judged.Rounds) != 3 {
			t.Errorf("row %d: %+v", i, line)
			continue
		}
		if (line.Bar != nil) != (b.least > 0) || line.Bar != nil && (*line.Bar != b.least || *line.Holds != (*judged.Ratio >= b.least)) {
			t.Errorf("row %d: bar %v, holds %v, ratio %v", i, line.Bar, line.Holds, *judged.Ratio)
		}
		if line.Figures[0].Ratio != nil {
			t.Errorf("row %d: the base has a ratio", i)
		}
	}
}

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 0}, {[]float64{8, 12, 10}, 0.4}} {
		if got := spread(c.values); got != c.want {
			t.Errorf("spread(%v) = %v, want %v", c.values, got, c.want)
		}
	}
}

func TestFiguresAsText(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.0048: "0.0048", 0.094: "0.094", 0.096: "0.10", 1.4: "1.40"} {
		if got := ratioText(v); got != want {
			t.Errorf("the ratio %v is printed as %s, want %s", v, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0", 5.678: "5.68", 56.78: "56.8", 567.8: "568"} {
		if got := number(v); got != want {
			t.Errorf("the figure %v is printed as %s, want %s", v, got, want)
		}
	}
}
