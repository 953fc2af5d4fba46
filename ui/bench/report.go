package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// Workload names a measured loop in reports.
type Workload string

// bar is the least ratio to the base asked of a workload; 0 for one that is only reported.
type bar struct {
	workload Workload
	least    float64
	bytes    bool // counts bytes, printed as MiB/s
}

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

// spread is (max-min)/median; 0 for none.
func spread(values []float64) float64 {
	if m := median(values); m > 0 {
		return (slices.Max(values) - slices.Min(values)) / m
	}
	return 0
}

// figure is what one system has reached in one workload.
type figure struct {
	System string    `json:"system"`
	Median float64   `json:"median"`          // in the row's unit
	Spread float64   `json:"spread"`          // (max-min)/median over the rounds
	Rounds []float64 `json:"rounds"`          // in the row's unit, in order
	Ratio  *float64  `json:"ratio,omitempty"` // to the base; nil for the base itself and where a figure is missing
}

// row is one workload on all systems.
type row struct {
	Workload Workload `json:"workload"`
	Unit     string   `json:"unit"`
	Figures  []figure `json:"figures"`
	Bar      *float64 `json:"bar,omitempty"`   // nil: only reported
	Holds    *bool    `json:"holds,omitempty"` // whether the judged system's ratio is the bar or more; nil without a bar
}

// rows puts the results in the order of the bars. A bar without figures does not hold.
func (r results) rows(c contest) []row {
	var list []row
	for _, b := range c.bars {
		line := row{Workload: b.workload, Unit: "ops/s"}
		scale := 1.0
		if b.bytes {
			line.Unit, scale = "MiB/s", 1<<20
		}
		over := median(r[c.base][b.workload]) / scale
		holds := false
		for _, s := range c.columns {
			values := make([]float64, len(r[s][b.workload]))
			for i, v := range r[s][b.workload] {
				values[i] = v / scale
			}
			f := figure{System: s, Median: median(values), Spread: spread(values), Rounds: values}
			if s != c.base && over > 0 && len(values) > 0 {
				ratio := f.Median / over
				f.Ratio = &ratio
				holds = holds || s == c.judged && ratio >= b.least
			}
			line.Figures = append(line.Figures, f)
		}
		if b.least > 0 {
			line.Bar, line.Holds = &b.least, &holds
		}
		list = append(list, line)
	}
	return list
}

// report is the outcome of an experiment, as --json prints it.
type report struct {
	Experiment string   `json:"experiment"`
	Machine    machine  `json:"machine"`
	Conditions []string `json:"conditions"` // sizes, and how the workloads were run
	Rounds     int      `json:"rounds"`
	Base       string   `json:"base"`   // system that ratios are taken of
	Judged     string   `json:"judged"` // system that the bars are for
	Rows       []row    `json:"rows"`
}

// missed are the workloads below their bars.
func (r report) missed() (list []Workload) {
	for _, line := range r.Rows {
		if line.Holds != nil && !*line.Holds {
			list = append(list, line.Workload)
		}
	}
	return list
}

func (r report) printJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// print writes one line per workload: the median of every system with its spread over the rounds, its ratio to the
// base, the bar, and whether the judged system's ratio holds it.
func (r report) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "workload\tunit")
	for _, s := range r.columns() {
		fmt.Fprintf(t, "\t%s", s)
		if s != r.Base {
			fmt.Fprint(t, "\tratio")
		}
	}
	fmt.Fprint(t, "\tbar\t\n")
	for _, line := range r.Rows {
		fmt.Fprintf(t, "%s\t%s", line.Workload, line.Unit)
		for _, f := range line.Figures {
			fmt.Fprintf(t, "\t%s ±%.0f%%", number(f.Median), 50*f.Spread)
			switch {
			case f.Ratio != nil:
				fmt.Fprintf(t, "\t%s", ratioText(*f.Ratio))
			case f.System != r.Base:
				fmt.Fprint(t, "\t-")
			}
		}
		switch {
		case line.Bar == nil:
			fmt.Fprint(t, "\t-\t\n")
		case *line.Holds:
			fmt.Fprintf(t, "\t%.1f\tholds\n", *line.Bar)
		default:
			fmt.Fprintf(t, "\t%.1f\tdoes not\n", *line.Bar)
		}
	}
	return t.Flush()
}

// columns are the systems in the order of the figures.
func (r report) columns() (names []string) {
	if len(r.Rows) > 0 {
		for _, f := range r.Rows[0].Figures {
			names = append(names, f.System)
		}
	}
	return names
}

// ratioText prints a ratio by two digits behind the point, and by more what would look like nothing.
func ratioText(v float64) string {
	if v < 0.095 {
		return fmt.Sprintf("%.2g", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// number prints three digits at least of a figure.
func number(v float64) string {
	switch {
	case v >= 100 || v == 0:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
