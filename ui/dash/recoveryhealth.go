package dash

import (
	"fmt"
	"strings"
	"time"
)

const (
	// recoveryNews is how long the outcome of a recovery is worth a finding.
	recoveryNews = 10 * time.Minute
	// goneLong is how long a connection may be away before it is more than a restart.
	goneLong = 30 * time.Second
	// namedMissing is how many missing clients a finding names.
	namedMissing = 3
)

// judgeRecovery answers: does a target still wait for its clients, for which and how long, was something lost, and which connection is away.
func judgeRecovery(v *recoveryView, now time.Time) health {
	h := health{Tone: toneOK, Findings: []finding{}}
	recovering := 0
	for i := range v.Targets {
		t := &v.Targets[i]
		if t.TimeRemainingSec != nil {
			recovering++
		}
		h.Findings = append(h.Findings, judgeRecovering(t, now)...)
	}
	away := 0
	for i := range v.Imports {
		f, ok := judgeImport(&v.Imports[i], now)
		if ok {
			h.Findings = append(h.Findings, f)
		}
		if v.Imports[i].Tone == toneWarn || v.Imports[i].Tone == toneBusy {
			away++
		}
	}
	for _, f := range h.Findings {
		if f.Tone == toneWarn {
			h.Tone = toneWarn
		}
	}
	switch {
	case len(v.Targets)+len(v.Imports) == 0:
		h.Tone, h.Title = toneIdle, "This process has no target and no connection to one."
	case recovering > 0:
		if h.Tone == toneOK {
			h.Tone = toneBusy
		}
		h.Title = recoveringTitle(v, recovering)
	case away > 0:
		if h.Tone == toneOK {
			h.Tone = toneBusy
		}
		h.Title = count(away, "connection is", "connections are") + " not up."
	case len(v.Targets) == 0:
		h.Title = "All connections are up."
	case len(v.Targets) == 1:
		h.Title = v.Targets[0].Name + " is in service."
	default:
		h.Title = fmt.Sprintf("All %d targets are in service.", len(v.Targets))
	}
	return h
}

func recoveringTitle(v *recoveryView, recovering int) string {
	for i := range v.Targets {
		if t := &v.Targets[i]; t.TimeRemainingSec != nil && recovering == 1 {
			return fmt.Sprintf("%s takes its clients back: %d of %d are here, %d are done.", t.Name, t.Clients.Connected, t.Clients.Known, t.Clients.Completed)
		}
	}
	return fmt.Sprintf("%d targets take their clients back.", recovering)
}

// judgeRecovering are the findings about a target.
func judgeRecovering(t *recoveryTargetView, now time.Time) []finding {
	var out []finding
	recent := t.EndedMs != nil && now.Sub(time.UnixMilli(*t.EndedMs)) < recoveryNews
	if n := len(t.Clients.Missing); n > 0 && t.TimeRemainingSec != nil {
		names := strings.Join(t.Clients.Missing[:min(n, namedMissing)], ", ")
		if n > namedMissing {
			names += fmt.Sprintf(" and %d more", n-namedMissing)
		}
		out = append(out, finding{toneBusy, t.Name, "waits for " + count(n, "client", "clients") + ": " + names,
			fmt.Sprintf("They come back by themselves when their hosts are up. In %.0f s they are evicted. If they will not come, end the wait: lctl abort_recovery %s",
				*t.TimeRemainingSec, t.Name)})
	}
	if t.Clients.Evicted > 0 && recent {
		out = append(out, finding{toneWarn, t.Name, "evicted " + count(t.Clients.Evicted, "client that was", "clients that were") + " not back in time",
			"What these had not written back is lost, and their applications are told. The log names them; look at their hosts and network."})
	}
	if t.RefusedRequests > 0 && (recent || t.TimeRemainingSec != nil) {
		out = append(out, finding{toneWarn, t.Name, "refused to replay " + count(t.RefusedRequests, "request", "requests") + ": what they stand on was lost with a client",
			"The log of the clients names the files. commit_on_sharing=1 keeps this from happening."})
	}
	if t.Restored != "" {
		out = append(out, finding{toneWarn, t.Name, "was restored from a backup, and the OSTs keep the objects made since",
			fmt.Sprintf("See what is kept: lctl restored %s. Then have it destroyed or left: --destroy-orphans or --keep-orphans.", t.Name)})
	}
	return out
}

// judgeImport is the finding about a connection; false when there is none.
func judgeImport(i *importView, now time.Time) (finding, bool) {
	since := now.UnixMilli() - i.SinceMs
	switch {
	case !i.Active:
		what, device := "fails its requests at once", i.Name[strings.IndexByte(i.Name, '.')+1:]
		if strings.HasPrefix(i.Name, "osp.") {
			what = "gets no new files"
		}
		return finding{toneWarn, i.Target, "is deactivated here and " + what, "When it is to be used again: lctl activate " + device}, true
	case i.Tone == toneWarn && since >= goneLong.Milliseconds():
		title := fmt.Sprintf("cannot be reached from here for %s", words(since))
		if i.Error != "" {
			title += " (" + i.Error + ")"
		}
		return finding{toneWarn, i.Target, title,
			"Calls that need it wait and go on by themselves. Start its process, or look at the network; if it will not come back: lctl deactivate " + i.Target}, true
	}
	return finding{}, false
}
