package config

// Key is one thing that can be configured, under one name in all sources.
type Key struct {
	// Name is the flag's name and the name in the file; in the environment it is STRAKE_NAME with '_' for '-'.
	Name string
	// Short is the one-letter flag, or empty.
	Short string
	// Arg is the word for the value in help texts.
	Arg string
	// Bare is the value that the flag means when it is given without one; empty: the flag needs a value.
	Bare string
	// Repeated says that the key holds a list.
	Repeated bool
	// Commas says that the list can also be written in one value, separated by commas.
	Commas bool
	// Hidden keeps the key out of the help text: it is for tests.
	Hidden bool
	// Help is one sentence for the help text.
	Help string
}

// The names of the keys.
const (
	KeyRole       = "role"
	KeyData       = "data"
	KeyMGS        = "mgs"
	KeyListen     = "listen"
	KeyHTTP       = "http"
	KeyMount      = "mount"
	KeyOptions    = "o"
	KeyFSName     = "fsname"
	KeyOSTs       = "osts"
	KeyInsecure   = "insecure"
	KeyMGSTimeout = "mgs-timeout"
	KeyLogLevel   = "log-level"
	KeyConfig     = "config"

	KeyFaultInjection = "fault-injection"
)

// keys is the constant table behind Keys.
var keys = [...]Key{
	{Name: KeyRole, Arg: "ROLE", Repeated: true, Commas: true,
		Help: "what this process is: all, or one or more of mds, oss, client"},
	{Name: KeyData, Arg: "DIR", Repeated: true,
		Help: "data folder, one per target; mdt=DIR and ost=DIR with role mds,oss; one for role all holds mdt0, ost0, ..."},
	{Name: KeyMGS, Arg: "HOST:PORT", Repeated: true, Commas: true,
		Help: "where the MGS listens; an mds without it hosts the MGS itself"},
	{Name: KeyListen, Arg: "HOST:PORT",
		Help: "protocol address (default :9880 for mds and oss, none for all and client; none opens no port)"},
	{Name: KeyHTTP, Arg: "HOST:PORT",
		Help: "dashboard address (default 127.0.0.1:9881, none for a client; none opens no port)"},
	{Name: KeyMount, Arg: "DIR", Repeated: true,
		Help: "mount point of the client in this process"},
	{Name: KeyOptions, Short: "o", Arg: "OPT[,OPT]", Repeated: true,
		Help: "mount options, for every --mount"},
	{Name: KeyFSName, Arg: "NAME",
		Help: "file system name, 1 to 8 letters, digits, '_' or '-' (default strake)"},
	{Name: KeyOSTs, Arg: "N",
		Help: "OSTs under one --data of role all or mds,oss (default 2)"},
	{Name: KeyInsecure, Arg: "loopback|any", Bare: "loopback",
		Help: "speak plain TCP without certificates: on loopback, or with --insecure=any on every address"},
	{Name: KeyMGSTimeout, Arg: "DURATION",
		Help: "how long a start waits for the MGS when it has no saved configuration (default 30s)"},
	{Name: KeyLogLevel, Arg: "LEVEL",
		Help: "debug, info, warn or error (default info)"},
	{Name: KeyConfig, Arg: "FILE",
		Help: "configuration file (default " + DefaultFile + " if it exists; none reads no file)"},
	{Name: KeyFaultInjection, Arg: "on|off", Bare: "on", Hidden: true,
		Help: "allow fail_loc to make this process fail, for tests of recovery (default off)"},
}

// Keys returns all keys, in the order of the help text. The slice is the caller's.
func Keys() []Key { return append([]Key(nil), keys[:]...) }

// lookup finds a key by its name.
func lookup(name string) (Key, bool) {
	for _, k := range keys {
		if k.Name == name {
			return k, true
		}
	}
	return Key{}, false
}

// DefaultFile is read when it exists and no other file is named.
const DefaultFile = "/etc/strake/strake.yaml"

// NoFile as the value of KeyConfig means that no file is read, the default one neither.
const NoFile = "none"
