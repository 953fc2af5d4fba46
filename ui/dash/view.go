package dash

import "time"

// StaleAfter is how long a target or node may be silent before it is shown stale: two of
// the 5 s pings (DESIGN §8) lost.
const StaleAfter = 11 * time.Second

// ClusterView is what the dashboard is told of the file system. All of it is as last heard;
// how long ago is in each Age.
type ClusterView struct {
	FSName  string
	Targets []Target // in any order
	Nodes   []Node   // in any order
}

// Target is one MDT or OST.
type Target struct {
	Name  string // "strake-OST0003"
	Kind  string // "MDT" or "OST"
	Index int
	// State is one of the State constants; another word is shown as it is.
	State   string
	Reason  string    // why the state is what it is, in words; may be empty
	Address string    // "10.0.0.2:9880", or "in-process"
	Since   time.Time // when it entered State; zero when not known

	// Space as statfs gives it. TotalBytes 0 means not measured, and the same for Inodes.
	TotalBytes, FreeBytes, AvailBytes uint64
	Inodes, FreeInodes                uint64

	Age time.Duration // since the last report of this target
}

// Node is one process of the cluster.
type Node struct {
	Host    string
	Address string
	Roles   []string // "mgs", "mds", "oss", "client"
	Version string
	Since   time.Time     // when the process joined; zero when not known
	Age     time.Duration // since its last report
}

// The states of a target that the page knows how to judge.
const (
	StateStarting    = "starting"
	StateActive      = "active"
	StateRecovering  = "recovering"
	StateReadOnly    = "read-only"
	StateFull        = "full"
	StateInactive    = "inactive" // taken out by the administrator
	StateUnreachable = "unreachable"
	StateStopped     = "stopped"
	StateFailed      = "failed" // stopped itself: it could not keep what it would answer
)

// Tones: how much trouble a state or a finding means.
const (
	toneOK   = "ok"
	toneBusy = "busy" // passing by itself
	toneIdle = "idle" // wanted so
	toneWarn = "warn"
	toneBad  = "bad"
)

// toneOf judges a state.
func toneOf(state string) string {
	switch state {
	case StateActive:
		return toneOK
	case StateStarting, StateRecovering:
		return toneBusy
	case StateInactive:
		return toneIdle
	case StateReadOnly, StateFull:
		return toneWarn
	case StateUnreachable, StateStopped, StateFailed:
		return toneBad
	}
	return toneWarn
}
