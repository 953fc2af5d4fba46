package config

import (
	"log/slog"
	"strings"
	"time"
)

// Roles is the set of roles that one process has.
type Roles uint8

// The roles. All is every role in one process and has a bit of its own, because such a process speaks to itself
// over a pipe and opens no protocol port unless told: RoleMDS|RoleOSS|RoleClient is not RoleAll.
const (
	RoleMDS Roles = 1 << iota
	RoleOSS
	RoleClient
	roleEmbedded

	RoleAll = RoleMDS | RoleOSS | RoleClient | roleEmbedded
)

// Has reports whether every role of want is in r.
func (r Roles) Has(want Roles) bool { return r&want == want }

// Servers reports whether the process serves a target.
func (r Roles) Servers() bool { return r&(RoleMDS|RoleOSS) != 0 }

// String gives the roles as --role takes them: "all" or "mds,oss".
func (r Roles) String() string {
	if r.Has(RoleAll) {
		return "all"
	}
	var names []string
	for _, one := range roleNames {
		if r.Has(one.role) {
			names = append(names, one.name)
		}
	}
	return strings.Join(names, ",")
}

// roleNames is the constant table of role words; all comes last so that String meets the single roles first.
var roleNames = [...]struct {
	name string
	role Roles
}{
	{"mds", RoleMDS}, {"oss", RoleOSS}, {"client", RoleClient}, {"all", RoleAll},
}

// TargetKind tells an MDT from an OST.
type TargetKind uint8

// The kinds of target. The zero value is no kind, so that a forgotten one is seen.
const (
	MDT TargetKind = iota + 1
	OST
)

// String gives "MDT" or "OST", as in the target's name.
func (k TargetKind) String() string {
	switch k {
	case MDT:
		return "MDT"
	case OST:
		return "OST"
	}
	return "unknown target kind"
}

// Target is one data folder and what is kept in it. The index is not configured: the MGS gives it at the first
// start and the folder keeps it.
type Target struct {
	Kind TargetKind
	// Dir is the data folder: absent, empty or formatted before.
	Dir string
}

// Mount is one mount point of this process.
type Mount struct {
	// Dir is the mount point: an existing folder.
	Dir     string
	Options MountOptions
}

// Insecure says where plain TCP without certificates is allowed.
type Insecure uint8

// The modes of --insecure.
const (
	// InsecureOff is without --insecure.
	InsecureOff Insecure = iota
	// InsecureLoopback is --insecure: plain TCP on loopback addresses only.
	InsecureLoopback
	// InsecureAny is --insecure=any: plain TCP on every address.
	InsecureAny
)

// String gives the word that --insecure= takes.
func (i Insecure) String() string {
	switch i {
	case InsecureLoopback:
		return "loopback"
	case InsecureAny:
		return "any"
	}
	return "off"
}

// Config is one process's configuration, checked and with every default filled in.
type Config struct {
	Roles Roles

	// FSName is the file system's name: 1 to 8 characters of A-Z, a-z, 0-9, '_' and '-'.
	FSName string

	// Targets are the data folders, the MDT (there is one at most) first, then the OSTs in the order given.
	// Empty for a pure client.
	Targets []Target

	// Base is the folder that holds mdt0, ost0, ... when the targets were laid out under one --data; empty when
	// every target was given its own folder. Base is created with the targets.
	Base string

	// MGS are the MGS's addresses, HOST:PORT each, tried in order. Empty if HostMGS.
	MGS []string

	// HostMGS says that this process hosts the MGS, beside its MDT.
	HostMGS bool

	// Listen is the protocol's address, HOST:PORT with an empty host for all interfaces and port 0 for any free
	// one; empty: no protocol port is opened.
	Listen string

	// HTTP is the dashboard's address in the same form; empty: no dashboard.
	HTTP string

	// Mounts are the mount points; they share the process's caches and limits.
	Mounts []Mount

	Insecure Insecure
	LogLevel slog.Level

	// MGSTimeout is how long a start waits for an MGS when no configuration is saved yet.
	MGSTimeout time.Duration

	// FaultInjection allows fail_loc (package failpoint).
	FaultInjection bool

	// Notes are sentences about what was chosen on the operator's behalf. They belong in the log at start.
	Notes []string
}

// MDTs returns how many of the targets are MDTs.
func (c *Config) MDTs() int { return c.count(MDT) }

// OSTs returns how many of the targets are OSTs.
func (c *Config) OSTs() int { return c.count(OST) }

func (c *Config) count(kind TargetKind) int {
	n := 0
	for _, t := range c.Targets {
		if t.Kind == kind {
			n++
		}
	}
	return n
}
