package dash

import (
	"fmt"
	"slices"
	"time"
)

// Shares of a target's space in use from which it is a finding.
const (
	warnUsedPercent = 85
	badUsedPercent  = 95
)

// health is the answer on top of the page.
type health struct {
	Tone     string    `json:"tone"`  // ok, busy, warn, bad or idle (nothing to judge)
	Title    string    `json:"title"` // one sentence
	Findings []finding `json:"findings"`
}

// finding is one thing that is wrong, why, and what to do.
type finding struct {
	Tone    string `json:"tone"`
	Subject string `json:"subject"` // target or host
	Title   string `json:"title"`
	Remedy  string `json:"remedy"`
}

// remedy says what to do about a state.
func remedy(state string) string {
	switch state {
	case StateStarting:
		return "It opens its data folder. Nothing to do unless this lasts more than a minute; then read the log of its process."
	case StateRecovering:
		return "It takes back what clients had not seen committed. New work on it waits; the window ends by itself."
	case StateReadOnly:
		return "It serves reads only. Look for the first error of its disk in the log of its process."
	case StateFull:
		return "New files avoid it; writes to files on it fail. Delete data or add a target."
	case StateUnreachable:
		return "Check that its process runs and that its address can be reached. Calls that need it wait and go on by themselves."
	case StateStopped:
		return "Start its process again with the same data folder."
	case StateFailed:
		return "It stopped to keep what it had answered. Read the last lines of its log, mend the disk, start it again."
	}
	return "Read the log of its process."
}

// judge makes the answer from the targets and nodes of an overview.
func judge(o *overview) health {
	h := health{Tone: toneOK, Findings: []finding{}}
	bad, trouble, idle := 0, 0, 0
	for i := range o.Targets {
		if o.Targets[i].Tone == toneIdle {
			idle++
		}
		h.Findings = append(h.Findings, judgeTarget(&o.Targets[i])...)
	}
	for _, n := range o.Nodes {
		if n.Stale {
			h.Findings = append(h.Findings, finding{toneWarn, n.Host,
				fmt.Sprintf("has not reported for %s", words(n.AgeMs)), remedy(StateUnreachable)})
		}
	}
	for _, f := range h.Findings {
		switch f.Tone {
		case toneBad:
			bad++
		case toneWarn:
			trouble++
		}
	}
	slices.SortStableFunc(h.Findings, func(a, b finding) int { return severity(b.Tone) - severity(a.Tone) })
	switch {
	case len(o.Targets) == 0:
		h.Tone, h.Title = toneIdle, "No target has registered yet."
	case len(h.Findings) == 1:
		h.Tone, h.Title = h.Findings[0].Tone, h.Findings[0].Subject+" "+h.Findings[0].Title+"."
	case bad > 0:
		h.Tone, h.Title = toneBad, count(bad+trouble, "thing needs", "things need")+" attention."
	case trouble > 0:
		h.Tone, h.Title = toneWarn, count(trouble, "thing needs", "things need")+" attention."
	case len(h.Findings) > 0:
		h.Tone, h.Title = toneBusy, "Working, with "+count(len(h.Findings), "target", "targets")+" not ready yet."
	case idle > 0:
		h.Title = fmt.Sprintf("%d of %s active, the others are taken out.", len(o.Targets)-idle, count(len(o.Targets), "target is", "targets are"))
	case len(o.Targets) == 1:
		h.Title = "The only target is active."
	default:
		h.Title = fmt.Sprintf("All %d targets are active.", len(o.Targets))
	}
	return h
}

// severity orders findings.
func severity(tone string) int {
	return slices.Index([]string{toneOK, toneIdle, toneBusy, toneWarn, toneBad}, tone)
}

func judgeTarget(t *targetView) []finding {
	var found []finding
	switch {
	case t.Stale:
		f := finding{toneBad, t.Name, fmt.Sprintf("has not reported for %s; last seen %s", words(t.AgeMs), t.State), remedy(StateUnreachable)}
		return append(found, f)
	case t.Tone != toneOK && t.Tone != toneIdle:
		title := "is " + t.State
		if t.Reason != "" {
			title += ": " + t.Reason
		}
		found = append(found, finding{t.Tone, t.Name, title, remedy(t.State)})
	}
	if t.Space != nil && t.State != StateFull {
		used := t.Space.usedPercent()
		if tone := fullTone(used); tone != toneOK {
			found = append(found, finding{tone, t.Name, fmt.Sprintf("is %.0f %% full", used), remedy(StateFull)})
		}
	}
	if t.Inodes != nil {
		used := 100 - float64(t.Inodes.Free)/float64(t.Inodes.Total)*100
		if tone := fullTone(used); tone != toneOK {
			found = append(found, finding{tone, t.Name, fmt.Sprintf("has used %.0f %% of its inodes", used),
				"When they are gone no file can be created on it, whatever space is left. Delete files or add a target."})
		}
	}
	return found
}

func fullTone(usedPercent float64) string {
	switch {
	case usedPercent >= badUsedPercent:
		return toneBad
	case usedPercent >= warnUsedPercent:
		return toneWarn
	}
	return toneOK
}

// count puts a number before the fitting word.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// words says an age for reading: "34 s", "12 min", "3 h", "5 days".
func words(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}
