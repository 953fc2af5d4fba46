package dash

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// overview is the JSON of /api/v1/overview and of each tick.
type overview struct {
	AtMs    int64        `json:"atMs"` // Unix time of the view in milliseconds
	FSName  string       `json:"fsname"`
	Health  health       `json:"health"`
	Space   *space       `json:"space,omitempty"` // sum over the OSTs
	Files   *inodes      `json:"files,omitempty"` // sum over the MDTs
	Targets []targetView `json:"targets"`
	Nodes   []nodeView   `json:"nodes"`
	// Problem says why the view is old or missing; empty when it is current.
	Problem string `json:"problem,omitempty"`
}

type space struct {
	TotalBytes uint64 `json:"totalBytes"`
	FreeBytes  uint64 `json:"freeBytes"`
	AvailBytes uint64 `json:"availBytes"`
}

// usedPercent is how full, as df counts it: what is reserved is neither used nor available.
func (s *space) usedPercent() float64 {
	used := s.TotalBytes - s.FreeBytes
	if used == 0 {
		return 0
	}
	return 100 * float64(used) / float64(used+s.AvailBytes)
}

type inodes struct {
	Total uint64 `json:"total"`
	Free  uint64 `json:"free"`
}

type targetView struct {
	Name    string  `json:"name"`
	Kind    string  `json:"kind"`
	Index   int     `json:"index"`
	State   string  `json:"state"`
	Tone    string  `json:"tone"`
	Reason  string  `json:"reason,omitempty"`
	Address string  `json:"address,omitempty"`
	SinceMs int64   `json:"sinceMs,omitempty"` // Unix time in milliseconds
	AgeMs   int64   `json:"ageMs"`
	Stale   bool    `json:"stale"`
	Space   *space  `json:"space,omitempty"`
	Inodes  *inodes `json:"inodes,omitempty"`
	// Bytes per second since the second before; only for targets of this process.
	ReadPerSec  *float64 `json:"readPerSec,omitempty"`
	WritePerSec *float64 `json:"writePerSec,omitempty"`
}

type nodeView struct {
	Host    string   `json:"host"`
	Address string   `json:"address,omitempty"`
	Roles   []string `json:"roles"`
	Version string   `json:"version,omitempty"`
	SinceMs int64    `json:"sinceMs,omitempty"`
	AgeMs   int64    `json:"ageMs"`
	Stale   bool     `json:"stale"`
}

// makeOverview prepares a view that was taken at taken for the page at now: ages grow by
// what passed between, sums are made of what was measured.
func makeOverview(v ClusterView, taken, now time.Time) overview {
	o := overview{AtMs: taken.UnixMilli(), FSName: v.FSName, Targets: []targetView{}, Nodes: []nodeView{}}
	passed := max(now.Sub(taken), 0)
	for _, t := range v.Targets {
		tv := targetOf(t, passed)
		o.Targets = append(o.Targets, tv)
		if strings.EqualFold(t.Kind, "OST") && tv.Space != nil {
			if o.Space == nil {
				o.Space = &space{}
			}
			o.Space.TotalBytes += tv.Space.TotalBytes
			o.Space.FreeBytes += tv.Space.FreeBytes
			o.Space.AvailBytes += tv.Space.AvailBytes
		}
		if strings.EqualFold(t.Kind, "MDT") && tv.Inodes != nil {
			if o.Files == nil {
				o.Files = &inodes{}
			}
			o.Files.Total += tv.Inodes.Total
			o.Files.Free += tv.Inodes.Free
		}
	}
	for _, n := range v.Nodes {
		nv := nodeView{Host: n.Host, Address: n.Address, Roles: n.Roles, Version: n.Version,
			SinceMs: unixMilli(n.Since), AgeMs: (n.Age + passed).Milliseconds(), Stale: n.Age+passed > StaleAfter}
		if nv.Roles == nil {
			nv.Roles = []string{}
		}
		o.Nodes = append(o.Nodes, nv)
	}
	slices.SortFunc(o.Targets, func(a, b targetView) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Index, b.Index), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(o.Nodes, func(a, b nodeView) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Address, b.Address))
	})
	o.Health = judge(&o)
	return o
}

func targetOf(t Target, passed time.Duration) targetView {
	age := t.Age + passed
	tv := targetView{
		Name: t.Name, Kind: t.Kind, Index: t.Index, State: t.State, Tone: toneOf(t.State), Reason: t.Reason,
		Address: t.Address, SinceMs: unixMilli(t.Since), AgeMs: age.Milliseconds(), Stale: age > StaleAfter,
	}
	if t.TotalBytes > 0 {
		tv.Space = &space{t.TotalBytes, min(t.FreeBytes, t.TotalBytes), min(t.AvailBytes, t.TotalBytes)}
	}
	if t.Inodes > 0 {
		tv.Inodes = &inodes{t.Inodes, min(t.FreeInodes, t.Inodes)}
	}
	return tv
}

// unixMilli is 0 for a time that is not known.
func unixMilli(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}
