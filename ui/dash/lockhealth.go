package dash

import (
	"fmt"
	"time"
)

// What of the locks is a finding.
const (
	// evictionNews is how long an eviction is one after it was seen.
	evictionNews = 10 * time.Minute
	// manyWaiters is how many locks waiting for one resource are.
	manyWaiters = 8
)

// judgeLocks answers: does somebody wait for a lock, for which, and was a client lost over one.
func judgeLocks(v *locksView, now time.Time) health {
	h := health{Tone: toneOK, Findings: []finding{}}
	var waiting, servers int64
	for _, ns := range v.Namespaces {
		name, _ := ns["namespace"].(string)
		if at, ok := ns["last_eviction_ms"].(int64); ok && now.Sub(time.UnixMilli(at)) < evictionNews {
			h.Findings = append(h.Findings, evicted(ns, name, now.UnixMilli()-at))
		}
		if ns["side"] == sideServer {
			servers++
			n, _ := ns["lock_waiting_count"].(int64)
			waiting += n
		}
	}
	for i := range v.Resources {
		if r := &v.Resources[i]; r.Waiting >= manyWaiters {
			h.Findings = append(h.Findings, finding{toneBusy, r.subject(), fmt.Sprintf("has %d requests waiting for its locks", r.Waiting),
				"Clients change the same thing at the same time. Give each its own folder or file, or larger parts of the file."})
		}
	}
	switch {
	case len(v.Namespaces) == 0:
		h.Tone, h.Title = toneIdle, "This process has no locks: it serves no target and has no mount."
		return h
	case servers == 0:
		h.Title = "This process is a client. What waits for locks is shown where the targets are."
	case waiting == 0:
		h.Title = "No request waits for a lock."
	default:
		h.Tone, h.Title = toneBusy, count(int(waiting), "request waits", "requests wait")+" for a lock"+forWhat(v)+"."
	}
	for _, f := range h.Findings {
		if f.Tone == toneWarn {
			h.Tone = toneWarn
		}
	}
	return h
}

// evicted is the finding of an eviction.
func evicted(ns map[string]any, name string, ageMs int64) finding {
	if ns["side"] == sideClient {
		return finding{toneWarn, name, fmt.Sprintf("lost all its locks %s ago: the server had evicted this client", words(ageMs)),
			"Files that were open then answer EIO once; open them again. Look for what kept this client from answering: its log, network, load."}
	}
	n, _ := ns["evictions"].(int64)
	return finding{toneWarn, name, fmt.Sprintf("evicted a client %s ago, %d since it started", words(ageMs), n),
		"The client did not give a lock back in time. The log names it; look at its network and load. A slow disk asks for a longer lock_timeout."}
}

// subject names a resource for a reader.
func (r *resourceView) subject() string {
	switch {
	case len(r.Paths) > 0:
		return r.Paths[0]
	case r.Object != "":
		return r.Namespace + " object " + r.Object
	case r.FID != "":
		return r.FID
	}
	return r.Resource
}

// forWhat names the most wanted resource.
func forWhat(v *locksView) string {
	if len(v.Resources) == 0 || v.Resources[0].Waiting == 0 {
		return ""
	}
	if len(v.Resources) > 1 && v.Resources[1].Waiting > 0 {
		return ", most for " + v.Resources[0].subject()
	}
	return ": " + v.Resources[0].subject()
}
