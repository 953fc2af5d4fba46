package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// cosSample is one slice.
type cosSample struct {
	rate   float64 // operations per second
	cpu    float64 // seconds of the servers for an operation
	forced float64 // commits that sharing forced, per second
}

// cosSamples are the slices of each arm, in the order of the turns.
type cosSamples map[string][]cosSample

// row is one figure of an arm's slices.
func (s cosSamples) row(name string, figure func(cosSample) float64) []float64 {
	list := make([]float64, len(s[name]))
	for i, v := range s[name] {
		list[i] = figure(v)
	}
	return list
}

func rateOf(s cosSample) float64   { return s.rate }
func cpuTime(s cosSample) float64  { return s.cpu }
func forcedOf(s cosSample) float64 { return s.forced }

// The verdicts.
const (
	verdictHolds = "holds"
	verdictNot   = "does not hold"
	verdictShort = "no verdict: too few slices"
)

// cosLine is an arm in the report.
type cosLine struct {
	Arm    string    `json:"arm"`
	Median float64   `json:"ops_per_second"`
	Slices []float64 `json:"slices"` // operations per second, in order
	CPU    float64   `json:"server_cpu_seconds_per_op"`
	Forced float64   `json:"forced_commits_per_second"`
	// Of names the arm that Ratio and CPURatio are to; empty for a base itself.
	Of       string    `json:"of,omitempty"`
	Ratio    *interval `json:"ratio,omitempty"`
	CPURatio *interval `json:"cpu_ratio,omitempty"`
}

// cosReport is the outcome, as --json prints it.
type cosReport struct {
	Experiment string        `json:"experiment"`
	Machine    machine       `json:"machine"`
	Slices     int           `json:"slices"`
	Slice      time.Duration `json:"slice_ns"`
	Seed       uint64        `json:"seed"`
	Lines      []cosLine     `json:"arms"`
	Verdict    string        `json:"verdict"`
}

// report makes the lines and the verdict.
func (s cosSamples) report(o cosOptions) cosReport {
	r := cosReport{Experiment: "cos", Slices: o.slices, Slice: o.slice, Seed: o.seed}
	bases := map[string]string{armOff: armBase, armOn: armBase, armShared: armSharedBase}
	for _, a := range cosArms() {
		rates, cpu := s.row(a.name, rateOf), s.row(a.name, cpuTime)
		l := cosLine{Arm: a.name, Median: median(rates), Slices: rates, CPU: median(cpu), Forced: median(s.row(a.name, forcedOf)), Of: bases[a.name]}
		if l.Of != "" {
			ratio, cost := medianRatio(rates, s.row(l.Of, rateOf), o.seed), medianRatio(cpu, s.row(l.Of, cpuTime), o.seed)
			l.Ratio, l.CPURatio = &ratio, &cost
			if a.name == armOn {
				r.Verdict = verdictOf(o.slices, ratio)
			}
		}
		r.Lines = append(r.Lines, l)
	}
	return r
}

// verdictOf judges the ratio of COS=1 to base.
func verdictOf(slices int, ratio interval) string {
	switch {
	case slices < cosSlices:
		return verdictShort
	case ratio.Estimate >= cosEstimate && ratio.Low >= cosLow:
		return verdictHolds
	}
	return verdictNot
}

func (r cosReport) printJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// print writes one line per arm and the verdict.
func (r cosReport) print(w io.Writer) error {
	m := r.Machine
	fmt.Fprintf(w, "%s, %s, Linux %s, %d CPUs, disk's file system type %s, %s\n",
		m.Version, m.Go, m.Linux, m.CPUs, m.Disk, m.Ended.Format(time.RFC3339))
	fmt.Fprintf(w, "1 MDT, 2 OSTs, two clients, a thread on each; %d slices of %v in turn, medians, ratios with 95 %% limits (seed %d)\n", r.Slices, r.Slice, r.Seed)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "arm\top/s\tratio\tlimits\tserver CPU/op\tratio\tlimits\tforced commits/s\t")
	for _, l := range r.Lines {
		fmt.Fprintf(t, "%s\t%s\t%s\t%.1f µs\t%s\t%s\t\n", l.Arm, number(l.Median), l.Ratio.text(), l.CPU*1e6, l.CPURatio.text(), number(l.Forced))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "COS=1 beside base, estimate at least %.2f and lower limit at least %.2f: %s\n", cosEstimate, cosLow, r.Verdict)
	return err
}

// text is the estimate and the limits as two columns.
func (v *interval) text() string {
	if v == nil {
		return "-\t-"
	}
	return fmt.Sprintf("%.3f\t%.3f to %.3f", v.Estimate, v.Low, v.High)
}
