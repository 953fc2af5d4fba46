package bench

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// Workload names a measured loop in reports.
type Workload string

// The workloads of the foundation.
const (
	Creates    Workload = "file creates"
	Writes     Workload = "1 MiB streaming writes"
	WritesSync Workload = "1 MiB writes and fsync"
	Reads      Workload = "1 MiB streaming reads"
	Random     Workload = "4 KiB direct random reads"
)

// bar is the least ratio to the loopback asked of a workload; 0 for one that is only reported.
type bar struct {
	workload Workload
	least    float64
	bytes    bool // counts bytes, printed as MiB/s
}

// bars are the workloads in the order of the report, with what the foundation asks of each.
var bars = []bar{{Creates, 1.0, false}, {Writes, 0.6, true}, {WritesSync, 0, true}, {Reads, 0.6, true}, {Random, 0.6, false}}

// results are the rates of every round, by system and workload.
type results map[string]map[Workload][]float64

func (r results) add(system string, w Workload, rate Rate) {
	if r[system] == nil {
		r[system] = map[Workload][]float64{}
	}
	r[system][w] = append(r[system][w], rate.PerSecond())
}

// median is the middle of the values, or the mean of the two middle ones; 0 for none. It sorts a copy.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(values))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// ratio is a system's figure over the base's; false when either was not measured.
func (r results) ratio(system, base string, w Workload) (float64, bool) {
	over := median(r[base][w])
	if over == 0 || len(r[system][w]) == 0 {
		return 0, false
	}
	return median(r[system][w]) / over, true
}

// print writes one line per workload: figures of every system, ratios to the base, the bar, and whether the judged
// system reaches it. Spread is (max-min)/median over the rounds of the judged system. It returns the workloads below
// their bars.
func (r results) print(w io.Writer, systems []string, base, judged string) (missed []Workload, err error) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "workload\tunit")
	for _, s := range systems {
		fmt.Fprintf(t, "\t%s", s)
		if s != base {
			fmt.Fprint(t, "\tratio")
		}
	}
	fmt.Fprint(t, "\tspread\tbar\t\n")
	for _, b := range bars {
		unit, scale := "ops/s", 1.0
		if b.bytes {
			unit, scale = "MiB/s", 1<<20
		}
		fmt.Fprintf(t, "%s\t%s", b.workload, unit)
		for _, s := range systems {
			fmt.Fprintf(t, "\t%.0f", median(r[s][b.workload])/scale)
			if s == base {
				continue
			}
			if v, ok := r.ratio(s, base, b.workload); ok {
				fmt.Fprintf(t, "\t%.2f", v)
			} else {
				fmt.Fprint(t, "\t-")
			}
		}
		fmt.Fprintf(t, "\t%.0f %%", 100*spread(r[judged][b.workload]))
		switch v, ok := r.ratio(judged, base, b.workload); {
		case b.least == 0:
			fmt.Fprint(t, "\t-\t\n")
		case ok && v >= b.least:
			fmt.Fprintf(t, "\t%.1f\treached\n", b.least)
		default:
			fmt.Fprintf(t, "\t%.1f\tmissed\n", b.least)
			missed = append(missed, b.workload)
		}
	}
	return missed, t.Flush()
}

// spread is (max-min)/median; 0 for none.
func spread(values []float64) float64 {
	if m := median(values); m > 0 {
		return (slices.Max(values) - slices.Min(values)) / m
	}
	return 0
}
