package rpc

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

var eventNames = map[string]event{
	"connect": evConnect, "timer": evTimer, "connected": evConnected, "failed": evFailed, "refused": evRefused,
	"replayed": evReplayed, "restored": evRestored, "window_over": evWindowOver, "recovered": evRecovered, "flushed": evFlushed, "lost": evLost, "evicted": evEvicted, "close": evClose,
}

var actionNames = [...]string{"-", "dial", "wait", "replay", "restore", "await", "resend", "flow", "fail", "refuse", "stop"}

// TestImportStates runs scripts of events through the machine and compares its trace. Commands: new addresses=N replays makes a
// machine; step takes one event a line, with now= (ms), instance=, generation=, recovered, recovering, quick, jitter= in percent.
// addresses=N gives the machine new addresses.
func TestImportStates(t *testing.T) {
	datadriven.Walk(t, "testdata/import", func(t *testing.T, path string) {
		var m machine
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			switch d.Cmd {
			case "new":
				m = machine{replays: d.HasArg("replays")}
				n := 1
				d.MaybeScanArgs(t, "addresses", &n)
				m.setAddresses(n)
				return m.state.String() + "\n"
			case "addresses":
				n := 1
				d.MaybeScanArgs(t, "n", &n)
				m.setAddresses(n)
				return ""
			case "step":
				for line := range strings.SplitSeq(d.Input, "\n") {
					o := m.step(parseInput(t, d, line))
					fmt.Fprintf(&out, "%-40s %-10v %s", line, m.state, actionNames[o.action])
					switch o.action {
					case actDial:
						fmt.Fprintf(&out, " address %d", o.address)
					case actWait, actRefuse:
						fmt.Fprintf(&out, " %v", o.delay)
					}
					out.WriteByte('\n')
				}
				return out.String()
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

func parseInput(t *testing.T, d *datadriven.TestData, line string) input {
	words := strings.Fields(line)
	ev, ok := eventNames[words[0]]
	if !ok {
		d.Fatalf(t, "unknown event %s", words[0])
	}
	in := input{event: ev}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		n := 0
		if value != "" {
			if _, err := fmt.Sscan(value, &n); err != nil {
				d.Fatalf(t, "%s: %v", w, err)
			}
		}
		switch key {
		case "now":
			in.now = time.Duration(n) * time.Millisecond
		case "instance":
			in.instance = uint64(n)
		case "generation":
			in.generation = uint64(n)
		case "recovered":
			in.recovered = true
		case "recovering":
			in.recovering = true
		case "quick":
			in.quick = true
		case "jitter":
			in.jitter = float64(n) / 100
		default:
			d.Fatalf(t, "unknown argument %s", w)
		}
	}
	return in
}
