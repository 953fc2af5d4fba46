package config

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// resolveTargets makes the targets out of --data and --osts.
//
// One plain --data of role all, or of a process that is MDS and OSS, is a base folder. Otherwise every --data is one
// target; where both kinds are possible each says which it is.
func resolveTargets(c *Config, s Settings) error {
	data, origin := s.list(KeyData), s.origin(KeyData)
	both := c.Roles.Has(RoleMDS | RoleOSS)
	based := both && len(data) == 1 && !strings.HasPrefix(data[0], "mdt=") && !strings.HasPrefix(data[0], "ost=")
	if s.has(KeyOSTs) && !based {
		return invalidf("%s: counts the OSTs under one --data of role all or mds,oss; here each OST is a --data",
			s.origin(KeyOSTs))
	}
	switch {
	case !c.Roles.Servers():
		if len(data) > 0 {
			return invalidf("%s: role %v keeps no data; remove it, or add the role mds or oss", origin, c.Roles)
		}
		return nil
	case len(data) == 0:
		return invalidf("role %v needs a data folder: say --data DIR; an absent or empty one is formatted", c.Roles)
	case based:
		return baseTargets(c, s, data[0])
	}
	for _, value := range data {
		t, err := parseTarget(c.Roles, value)
		if err != nil {
			return invalidf("%s: %w", origin, err)
		}
		if t.Kind == MDT {
			c.Targets = append([]Target{t}, c.Targets...)
		} else {
			c.Targets = append(c.Targets, t)
		}
	}
	return checkCounts(c, origin)
}

// baseTargets lays the targets out under one folder.
func baseTargets(c *Config, s Settings, base string) error {
	osts := defaultOSTs
	if text, ok := s.one(KeyOSTs); ok {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxOSTs {
			return invalidf("%s: %q; want a number of OSTs from 1 to %d", s.origin(KeyOSTs), text, maxOSTs)
		}
		osts = n
	}
	if !validFolder(base) {
		return invalidf("%s: %q is no folder name", s.origin(KeyData), base)
	}
	c.Base = filepath.Clean(base)
	c.Targets = append(c.Targets, Target{Kind: MDT, Dir: filepath.Join(c.Base, "mdt0")})
	for i := range osts {
		c.Targets = append(c.Targets, Target{Kind: OST, Dir: filepath.Join(c.Base, fmt.Sprintf("ost%d", i))})
	}
	return nil
}

// parseTarget reads one --data that is one target. A folder whose own name begins with mdt= is written ./mdt=.
func parseTarget(roles Roles, value string) (Target, error) {
	var t Target
	switch dir, isMDT := strings.CutPrefix(value, "mdt="); {
	case isMDT:
		t = Target{Kind: MDT, Dir: dir}
	case strings.HasPrefix(value, "ost="):
		t = Target{Kind: OST, Dir: strings.TrimPrefix(value, "ost=")}
	case roles.Has(RoleMDS | RoleOSS):
		return t, invalidf("%q: with role %v say which target it holds: mdt=%s or ost=%s", value, roles, value, value)
	case roles.Has(RoleMDS):
		t = Target{Kind: MDT, Dir: value}
	default:
		t = Target{Kind: OST, Dir: value}
	}
	if !validFolder(t.Dir) {
		return t, invalidf("%q is no folder name", value)
	}
	if before, _, ok := strings.Cut(t.Dir, "="); ok && !strings.Contains(before, "/") {
		return t, invalidf("%q: targets are mdt=DIR and ost=DIR; a folder of that name is ./%s", value, t.Dir)
	}
	if t.Kind == MDT && !roles.Has(RoleMDS) || t.Kind == OST && !roles.Has(RoleOSS) {
		return t, invalidf("%q: role %v serves no %v", value, roles, t.Kind)
	}
	t.Dir = filepath.Clean(t.Dir)
	return t, nil
}

// checkCounts holds that every serving role has a target and that there is one MDT at most.
func checkCounts(c *Config, origin string) error {
	if n := c.MDTs(); n > 1 {
		return invalidf("%s: %d MDT folders; a file system has one MDT for now", origin, n)
	}
	if c.Roles.Has(RoleMDS) && c.MDTs() == 0 {
		return invalidf("%s: role %v has no folder for the MDT; add --data mdt=DIR", origin, c.Roles)
	}
	if c.Roles.Has(RoleOSS) && c.OSTs() == 0 {
		return invalidf("%s: role %v has no folder for an OST; add --data ost=DIR", origin, c.Roles)
	}
	return nil
}

// checkFolders refuses folders that are given twice, and data that lies under a mount point or a mount point in a
// target: the server would wait for the client and the client for the server. It compares names only; links and
// relative against absolute names are met at start.
func checkFolders(c *Config, s Settings) error {
	for i, t := range c.Targets {
		for _, u := range c.Targets[:i] {
			if within(t.Dir, u.Dir) || within(u.Dir, t.Dir) {
				return invalidf("%s: %s and %s are not two separate folders", s.origin(KeyData), u.Dir, t.Dir)
			}
		}
	}
	for i, m := range c.Mounts {
		for _, n := range c.Mounts[:i] {
			if m.Dir == n.Dir {
				return invalidf("%s: %s is given twice", s.origin(KeyMount), m.Dir)
			}
		}
		for _, t := range c.Targets {
			if within(t.Dir, m.Dir) || within(m.Dir, t.Dir) {
				return invalidf("%s: mount point %s and data folder %s lie in each other; separate them",
					s.origin(KeyMount), m.Dir, t.Dir)
			}
		}
	}
	return nil
}

// within reports whether the clean path p is dir or lies under it, by name.
func within(p, dir string) bool {
	if p == dir {
		return true
	}
	rel, err := filepath.Rel(dir, p)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}
