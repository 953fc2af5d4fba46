package dash

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/stats"
)

// maxResources is how many resources of each namespace [Options].Locks is asked for, and maxShownResources how many of
// all of them are shown.
const (
	maxResources      = 16
	maxShownResources = 64
)

// LockResource is a resource that several clients want, as a lock server of this process knows it.
type LockResource struct {
	Namespace string
	// Resource is the name as lctl prints it, such as "[0x200000401:0x5:0x0].0x0 ibits"; Type is its type in a word.
	Resource, Type string
	// FID is the file that it is about, or that the object belongs to; zero when that is not known.
	FID fid.FID
	// Name says that the resource is one name in the folder FID, not the folder.
	Name bool
	// Object is the object's id in words, and Stripe its index in the file, -1 when not known; empty for others.
	Object string
	Stripe int

	Granted, Waiting, Converting int
	// Conflicts is the decayed count of conflicts; Contended that clients are told to work without locks there.
	Conflicts uint32
	Contended bool
	// Holders and Waiters are some of the locks.
	Holders, Waiters []LockParty
}

// LockParty is one lock of a resource: who has it or waits for it.
type LockParty struct {
	Client string
	Mode   string // "PR"
	// Bits are an inode's, "LOOKUP|UPDATE"; Extent is in words, "[0, 1048576)" or "[0, EOF)". One of them, or none.
	Bits, Extent string
	CalledBack   bool
}

// locksView is the JSON of /api/v1/locks. Names within a namespace are those of lctl.
type locksView struct {
	AtMs       int64            `json:"atMs"`
	Health     health           `json:"health"`
	Namespaces []map[string]any `json:"namespaces"`
	Resources  []resourceView   `json:"resources"`
}

type resourceView struct {
	Namespace  string      `json:"namespace"`
	Resource   string      `json:"resource"`
	Type       string      `json:"type"`
	FID        string      `json:"fid,omitempty"`
	Name       bool        `json:"name,omitempty"`
	Paths      []string    `json:"paths,omitempty"`
	Object     string      `json:"object,omitempty"`
	Stripe     *int        `json:"stripe,omitempty"`
	Granted    int         `json:"granted"`
	Waiting    int         `json:"waiting"`
	Converting int         `json:"converting"`
	Conflicts  uint32      `json:"conflicts"`
	Contended  bool        `json:"contended"`
	Holders    []partyView `json:"holders"`
	Waiters    []partyView `json:"waiters"`
}

type partyView struct {
	Client     string `json:"client"`
	Mode       string `json:"mode"`
	Bits       string `json:"bits,omitempty"`
	Extent     string `json:"extent,omitempty"`
	CalledBack bool   `json:"called_back"`
}

// The sides of a namespace.
const (
	sideServer = "server"
	sideClient = "client"
)

// wanted asks for the resources and keeps them for a while, longer when the walk over the tables takes long: a fiftieth
// of the time at most goes into it, however many ask.
type wanted struct {
	ask  func(limit int) []LockResource // nil: there are none
	keep time.Duration

	mu   sync.Mutex
	last []LockResource // replaced, never changed; guarded by mu
	next time.Time      // when last has become too old; guarded by mu
}

// wantedShare is the part of the time that walks may take.
const wantedShare = 50

// read returns the most wanted first. The slice is the caller's to read only.
func (w *wanted) read() []LockResource {
	if w.ask == nil {
		return nil
	}
	w.mu.Lock()
	last, next := w.last, w.next
	w.mu.Unlock()
	began := time.Now()
	if began.Before(next) {
		return last
	}
	found := w.ask(maxResources)
	slices.SortStableFunc(found, func(a, b LockResource) int {
		return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(b.Conflicts, a.Conflicts))
	})
	found = found[:min(len(found), maxShownResources)]
	ended := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last, w.next = found, ended.Add(max(w.keep, wantedShare*ended.Sub(began)))
	return found
}

// readNamespaces arranges what the registry holds below ldlm.namespaces: an object for each namespace, by name, with
// its figures and parameters under their own names, "pool" and the like as objects in it.
func readNamespaces(r *stats.Registry) []map[string]any {
	all := []map[string]any{}
	// The visitor returns no error and the pattern is valid.
	_ = r.Walk("ldlm.namespaces.**", func(e stats.Entry) error {
		elements := strings.Split(e.Path, ".")
		if len(elements) < 4 || e.Kind == stats.KindText || e.Kind == stats.KindRows {
			return nil
		}
		ns := elements[2]
		if len(all) == 0 || all[len(all)-1]["namespace"] != ns {
			all = append(all, map[string]any{"namespace": ns, "side": sideServer})
		}
		at := all[len(all)-1]
		if elements[3] == "lock_unused_count" {
			at["side"] = sideClient
		}
		for _, group := range elements[3 : len(elements)-1] {
			inner, ok := at[group].(map[string]any)
			if !ok {
				inner = map[string]any{}
				at[group] = inner
			}
			at = inner
		}
		at[elements[len(elements)-1]] = figureOf(&e)
		return nil
	})
	return all
}

// figureOf is an entry's value as JSON: a number where it is one.
func figureOf(e *stats.Entry) any {
	if n, ok := e.Value(); ok {
		return n
	}
	if h, ok := e.Histogram(); ok {
		return histogramOf(&h)
	}
	text := e.Text()
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n
	}
	return text
}

// locks makes the view of /api/v1/locks.
func (f *feed) locks(now time.Time) locksView {
	v := locksView{AtMs: now.UnixMilli(), Namespaces: readNamespaces(f.registry), Resources: []resourceView{}}
	f.mu.Lock()
	rates, lastEvicted := f.lockRates, f.lastEvicted // replaced, never changed
	f.mu.Unlock()
	for _, ns := range v.Namespaces {
		name, _ := ns["namespace"].(string)
		if r := rates[name]; len(r) > 0 {
			ns["per_sec"] = r
		}
		if at, ok := lastEvicted[name]; ok {
			ns["last_eviction_ms"] = at.UnixMilli()
		}
	}
	v.Resources = f.resources()
	v.Health = judgeLocks(&v, now)
	return v
}

// resources are those most wanted, with the paths as far as they are known.
func (f *feed) resources() []resourceView {
	found := f.wanted.read()
	views := make([]resourceView, 0, len(found))
	for i := range found {
		r := &found[i]
		v := resourceView{Namespace: r.Namespace, Resource: r.Resource, Type: r.Type, Name: r.Name, Object: r.Object,
			Granted: r.Granted, Waiting: r.Waiting, Converting: r.Converting, Conflicts: r.Conflicts, Contended: r.Contended,
			Holders: partiesOf(r.Holders), Waiters: partiesOf(r.Waiters)}
		if r.Object != "" && r.Stripe >= 0 {
			v.Stripe = &r.Stripe
		}
		if !r.FID.IsZero() {
			v.FID = r.FID.String()
			v.Paths = f.paths.of(r.FID)
		}
		views = append(views, v)
	}
	return views
}

func partiesOf(parties []LockParty) []partyView {
	views := make([]partyView, 0, len(parties))
	for _, p := range parties {
		views = append(views, partyView{printable(p.Client), p.Mode, p.Bits, p.Extent, p.CalledBack})
	}
	return views
}

// printable is a name that others chose, between quotes with escapes when it holds what does not print: control
// characters, those that turn the direction of text, bytes that are no text.
func printable(name string) string {
	if utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return name
	}
	return strconv.Quote(name)
}
