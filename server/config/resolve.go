package config

import (
	"log/slog"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Defaults and limits of single keys.
const (
	defaultFSName     = "strake"
	defaultOSTs       = 2
	defaultMGSTimeout = 30 * time.Second

	// maxFSNameBytes is Lustre's limit (mkfs.lustre(8)): the name leads every target's name.
	maxFSNameBytes = 8
	// maxOSTs bounds --osts. Each OST of a process holds a database with its map, its committer and its open
	// files; past some dozens in one process the default limit of 1,024 open files is what breaks.
	maxOSTs = 64
	// maxDuration bounds timeouts; a longer one is a slip of the unit.
	maxDuration = 24 * time.Hour
)

// New checks the settings and makes the configuration. The first thing that is wrong comes back as ErrInvalid.
func New(s Settings) (Config, error) {
	c := Config{FSName: defaultFSName, MGSTimeout: defaultMGSTimeout}
	steps := [...]func(*Config, Settings) error{
		resolveRoles, resolveNames, resolveTimes, resolveInsecure, resolveFaults, resolveMGS, resolveTargets, resolveMounts,
		resolveListen, resolveHTTP, checkFolders,
	}
	for _, step := range steps {
		if err := step(&c, s); err != nil {
			return Config{}, err
		}
	}
	if c.Roles.Has(RoleAll) && len(c.Mounts) == 0 && c.Listen == "" {
		c.Notes = append(c.Notes, "role all without --mount and --listen: nothing can use this file system")
	}
	return c, nil
}

func resolveRoles(c *Config, s Settings) error {
	words := s.list(KeyRole)
	if len(words) == 0 {
		return invalidf("no role: say --role=all, or one or more of mds, oss, client; see strake --help")
	}
	for _, w := range words {
		r := Roles(0)
		for _, known := range roleNames {
			if w == known.name {
				r = known.role
			}
		}
		if r == 0 {
			return invalidf("%s: unknown role %q; want all, mds, oss or client", s.origin(KeyRole), w)
		}
		if c.Roles != 0 && (r == RoleAll) != c.Roles.Has(RoleAll) {
			return invalidf("%s: all is every role already; say all alone, or name the roles", s.origin(KeyRole))
		}
		c.Roles |= r
	}
	return nil
}

func resolveNames(c *Config, s Settings) error {
	if name, ok := s.one(KeyFSName); ok {
		if !validFSName(name) {
			return invalidf("%s: file system name %q; want 1 to %d letters, digits, '_' or '-'",
				s.origin(KeyFSName), name, maxFSNameBytes)
		}
		c.FSName = name
	}
	if level, ok := s.one(KeyLogLevel); ok {
		switch strings.ToLower(level) {
		case "debug":
			c.LogLevel = slog.LevelDebug
		case "info":
			c.LogLevel = slog.LevelInfo
		case "warn", "warning":
			c.LogLevel = slog.LevelWarn
		case "error":
			c.LogLevel = slog.LevelError
		default:
			return invalidf("%s: unknown log level %q; want debug, info, warn or error", s.origin(KeyLogLevel), level)
		}
	}
	return nil
}

func validFSName(name string) bool {
	if name == "" || len(name) > maxFSNameBytes {
		return false
	}
	for _, c := range []byte(name) {
		ok := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
		if !ok {
			return false
		}
	}
	return true
}

func resolveTimes(c *Config, s Settings) error {
	text, ok := s.one(KeyMGSTimeout)
	if !ok {
		return nil
	}
	d, err := parseDuration(s.origin(KeyMGSTimeout), text)
	if err == nil && d == 0 {
		err = invalidf("%s: want more than 0", s.origin(KeyMGSTimeout))
	}
	c.MGSTimeout = d
	return err
}

// parseDuration reads a Go duration between 0 and maxDuration; what names the thing in the message.
func parseDuration(what, text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > maxDuration {
		return 0, invalidf("%s: %q is no duration between 0 and %v; write 30s or 5m", what, text, maxDuration)
	}
	return d, nil
}

func resolveInsecure(c *Config, s Settings) error {
	mode, _ := s.one(KeyInsecure)
	switch mode {
	case "", "off", "false":
		c.Insecure = InsecureOff
	case "loopback", "true":
		c.Insecure = InsecureLoopback
	case "any":
		c.Insecure = InsecureAny
	default:
		return invalidf("%s: unknown mode %q; want loopback or any", s.origin(KeyInsecure), mode)
	}
	return nil
}

func resolveFaults(c *Config, s Settings) error {
	mode, _ := s.one(KeyFaultInjection)
	switch mode {
	case "", "off", "false":
	case "on", "true":
		c.FaultInjection = true
		c.Notes = append(c.Notes, "fault injection is allowed: whoever reaches the parameter socket can make this process fail")
	default:
		return invalidf("%s: unknown mode %q; want on or off", s.origin(KeyFaultInjection), mode)
	}
	return nil
}

func resolveMGS(c *Config, s Settings) error {
	hosts := s.list(KeyMGS)
	if c.Roles.Has(RoleAll) {
		if len(hosts) > 0 {
			return invalidf("%s: role all hosts the MGS itself; remove it, or name the roles to join another MGS",
				s.origin(KeyMGS))
		}
		c.HostMGS = true
		return nil
	}
	if len(hosts) == 0 {
		if !c.Roles.Has(RoleMDS) {
			return invalidf("role %v needs the MGS: say --mgs HOST:PORT, the address of the first mds", c.Roles)
		}
		c.HostMGS = true
		return nil
	}
	for _, h := range hosts {
		addr, err := parseAddress(h, DefaultPort)
		if err != nil {
			return invalidf("%s: %w", s.origin(KeyMGS), err)
		}
		if strings.HasPrefix(addr, ":") || strings.HasSuffix(addr, ":0") {
			return invalidf("%s: %q: an MGS has a host and a port", s.origin(KeyMGS), h)
		}
		if err := c.allowPlain(s.origin(KeyMGS), addr); err != nil {
			return err
		}
		c.MGS = append(c.MGS, addr)
	}
	return nil
}

// allowPlain refuses an address that leaves this host unless --insecure=any: what goes there is neither encrypted
// nor proven to come from anyone.
func (c *Config) allowPlain(origin, addr string) error {
	if c.Insecure == InsecureAny || IsLoopback(addr) {
		return nil
	}
	return invalidf("%s: %s is not a loopback address and would speak plain TCP without certificates; "+
		"use 127.0.0.1, or say --insecure=any on a network you trust", origin, addr)
}

// defaultAddress replaces a default address for all interfaces by loopback where plain TCP is not allowed there.
func (c *Config) defaultAddress(what string, port int) string {
	p := strconv.Itoa(port)
	if c.Insecure == InsecureAny {
		return ":" + p
	}
	c.Notes = append(c.Notes, what+" opens on 127.0.0.1:"+p+" only; say --insecure=any to open it on every address")
	return "127.0.0.1:" + p
}

func resolveListen(c *Config, s Settings) error {
	text, ok := s.one(KeyListen)
	if !ok {
		if c.Roles.Servers() && !c.Roles.Has(RoleAll) {
			c.Listen = c.defaultAddress("the protocol port", DefaultPort)
		}
		return nil
	}
	if !c.Roles.Servers() {
		return invalidf("%s: role %v serves no target and opens no protocol port; remove it",
			s.origin(KeyListen), c.Roles)
	}
	if noAddress(text) {
		if !c.Roles.Has(RoleAll) {
			return invalidf("%s: role %v needs a protocol port; give HOST:PORT", s.origin(KeyListen), c.Roles)
		}
		return nil
	}
	var err error
	c.Listen, err = c.openAddress(s.origin(KeyListen), text, DefaultPort)
	return err
}

func resolveHTTP(c *Config, s Settings) error {
	text, ok := s.one(KeyHTTP)
	if !ok {
		if c.Roles.Servers() {
			c.HTTP = "127.0.0.1:" + strconv.Itoa(DefaultHTTPPort)
		}
		return nil
	}
	if noAddress(text) {
		return nil
	}
	var err error
	c.HTTP, err = c.openAddress(s.origin(KeyHTTP), text, DefaultHTTPPort)
	if err == nil && c.HTTP == c.Listen && !strings.HasSuffix(c.HTTP, ":0") {
		err = invalidf("%s: %s is the protocol's address too; give another port", s.origin(KeyHTTP), c.HTTP)
	}
	return err
}

// noAddress reports whether a value says that no port is to be opened.
func noAddress(text string) bool { return text == "" || text == "none" || text == "off" }

func (c *Config) openAddress(origin, text string, port int) (string, error) {
	addr, err := parseAddress(text, port)
	if err != nil {
		return "", invalidf("%s: %w", origin, err)
	}
	return addr, c.allowPlain(origin, addr)
}

func resolveMounts(c *Config, s Settings) error {
	dirs := s.list(KeyMount)
	if len(dirs) == 0 {
		if s.has(KeyOptions) {
			return invalidf("%s: mount options without a mount; add --mount DIR", s.origin(KeyOptions))
		}
		if c.Roles == RoleClient {
			return invalidf("role client needs a mount point: say --mount DIR")
		}
		return nil
	}
	if !c.Roles.Has(RoleClient) {
		return invalidf("%s: role %v does not mount; add the role client", s.origin(KeyMount), c.Roles)
	}
	opts, err := ParseMountOptions(strings.Join(s.list(KeyOptions), ","))
	if err != nil {
		return invalidf("%s: %w", s.origin(KeyOptions), err)
	}
	for _, dir := range dirs {
		if !validFolder(dir) {
			return invalidf("%s: %q is no folder name", s.origin(KeyMount), dir)
		}
		c.Mounts = append(c.Mounts, Mount{Dir: filepath.Clean(dir), Options: opts})
	}
	return nil
}

// validFolder refuses what no path can be: the empty name and one with a NUL.
func validFolder(dir string) bool { return dir != "" && !strings.ContainsRune(dir, 0) }

// parseFileset checks the folder that becomes a mount's root.
func parseFileset(value string) (string, error) {
	if !validFolder(value) || !strings.HasPrefix(value, "/") {
		return "", invalidf("mount option fileset=%q: want a folder of the file system from its root, such as /home", value)
	}
	if clean := path.Clean(value); clean != "/" {
		return clean, nil
	}
	return "", nil
}
