package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// maxOptionBytes bounds the text of the mount options: mount(2) takes one page and no more.
const maxOptionBytes = 4096

// FlockMode says who sees a flock or fcntl lock (mount.lustre(8)).
type FlockMode uint8

// The modes: flock, localflock and noflock.
const (
	// FlockCluster: locks are seen by every client.
	FlockCluster FlockMode = iota
	// FlockLocal: locks are seen on this mount only.
	FlockLocal
	// FlockNone: lock calls fail with ENOSYS.
	FlockNone
)

// AtimeMode says when a read moves the access time (mount(8)).
type AtimeMode uint8

// The modes: relatime, noatime and strictatime.
const (
	AtimeRelative AtimeMode = iota
	AtimeNever
	AtimeStrict
)

// OptionalID is a uid or gid that may be absent.
type OptionalID struct {
	Set bool
	ID  uint32
}

// OptionalMode is a mode mask that may be absent.
type OptionalMode struct {
	Set  bool
	Mode uint32
}

// MountOptions are the -o options of one mount. DefaultMountOptions gives what holds when none is said.
type MountOptions struct {
	ReadOnly bool
	Flock    FlockMode
	Atime    AtimeMode
	// NoDirAtime keeps the access time of folders unmoved whatever Atime says.
	NoDirAtime bool
	// UserXattr allows user.* attributes, ACL POSIX ACLs. Both are on by default.
	UserXattr bool
	ACL       bool
	// Fileset is the folder of the file system that becomes the mount's root, absolute and clean; empty: "/".
	Fileset string
	// UID, GID: all files are shown as owned by this user or group. Umask: these permission bits are hidden.
	UID, GID OptionalID
	Umask    OptionalMode
	// AllowOther lets users other than the one who mounts in. It is on by default: a mount made by root is for all.
	AllowOther bool
	// NoSuid, NoDev, NoExec and Sync, DirSync are the kernel's flags of these names.
	NoSuid, NoDev, NoExec bool
	Sync, DirSync         bool
	// IOTimeout bounds how long a read or write waits for an OST that is away; 0: as long as it takes.
	IOTimeout time.Duration
}

// DefaultMountOptions returns the options of a mount for which nothing is said: those of mount.lustre, with
// flock.
func DefaultMountOptions() MountOptions {
	return MountOptions{UserXattr: true, ACL: true, AllowOther: true}
}

// ParseMountOptions reads OPT[,OPT]... on top of the defaults. As in mount(8), a later option wins over an earlier
// one, and empty ones are skipped. It returns ErrInvalid that names the option for one that is unknown or
// has a wrong value.
func ParseMountOptions(text string) (MountOptions, error) {
	o := DefaultMountOptions()
	if len(text) > maxOptionBytes {
		return o, invalidf("mount options: %d bytes; at most %d", len(text), maxOptionBytes)
	}
	for opt := range strings.SplitSeq(text, ",") {
		if opt = strings.TrimLeft(opt, " "); opt == "" {
			continue
		}
		if err := o.apply(opt); err != nil {
			return DefaultMountOptions(), err
		}
	}
	return o, nil
}

// apply takes one option, NAME or NAME=VALUE.
func (o *MountOptions) apply(opt string) error {
	name, value, hasValue := strings.Cut(opt, "=")
	if ignoredOption(name) {
		return nil
	}
	if hasValue {
		return o.applyValue(name, value)
	}
	if !o.applyFlag(name) {
		if valueOption(name) {
			return invalidf("mount option %q needs a value: %s=...", name, name)
		}
		return invalidf("mount option %q is unknown; see strake --help for the options", name)
	}
	return nil
}

// applyFlag takes an option without a value and reports whether it knows it.
func (o *MountOptions) applyFlag(name string) bool {
	switch name {
	case "ro":
		o.ReadOnly = true
	case "rw":
		o.ReadOnly = false
	case "flock":
		o.Flock = FlockCluster
	case "localflock":
		o.Flock = FlockLocal
	case "noflock":
		o.Flock = FlockNone
	case "relatime", "atime":
		o.Atime = AtimeRelative
	case "noatime":
		o.Atime = AtimeNever
	case "strictatime":
		o.Atime = AtimeStrict
	case "nodiratime", "diratime":
		o.NoDirAtime = name == "nodiratime"
	case "user_xattr", "nouser_xattr":
		o.UserXattr = name == "user_xattr"
	case "acl", "noacl":
		o.ACL = name == "acl"
	case "allow_other", "noallow_other":
		o.AllowOther = name == "allow_other"
	case "suid", "nosuid":
		o.NoSuid = name == "nosuid"
	case "dev", "nodev":
		o.NoDev = name == "nodev"
	case "exec", "noexec":
		o.NoExec = name == "noexec"
	case "sync", "async":
		o.Sync = name == "sync"
	case "dirsync":
		o.DirSync = true
	default:
		return false
	}
	return true
}

// valueOption reports whether the option of this name takes a value.
func valueOption(name string) bool {
	switch name {
	case "fileset", "uid", "gid", "umask", "io_timeout":
		return true
	}
	return false
}

// ignoredOption reports whether an option is for mount(8), systemd or fstab and says nothing to a file system.
func ignoredOption(name string) bool {
	switch name {
	case "defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "nofail", "_netdev",
		"silent", "loud", "comment", "default_permissions":
		return true
	}
	return strings.HasPrefix(name, "x-") || strings.HasPrefix(name, "X-")
}

// applyValue takes an option NAME=VALUE.
func (o *MountOptions) applyValue(name, value string) error {
	var err error
	switch name {
	case "fileset":
		o.Fileset, err = parseFileset(value)
	case "uid":
		o.UID, err = parseID(name, value)
	case "gid":
		o.GID, err = parseID(name, value)
	case "umask":
		o.Umask, err = parseUmask(value)
	case "io_timeout":
		o.IOTimeout, err = parseDuration("mount option "+name, value)
	default:
		if new(MountOptions).applyFlag(name) {
			return invalidf("mount option %q takes no value", name)
		}
		return invalidf("mount option %q is unknown; see strake --help for the options", name)
	}
	return err
}

// parseID reads a numeric uid or gid. 4294967295 is (uid_t)-1, "no change" to chown(2), and no id.
func parseID(name, value string) (OptionalID, error) {
	n, err := strconv.ParseUint(value, 10, 32)
	if err != nil || n == 1<<32-1 {
		return OptionalID{}, invalidf("mount option %s=%q: want a number from 0 to 4294967294", name, value)
	}
	return OptionalID{Set: true, ID: uint32(n)}, nil
}

// parseUmask reads a mask that is octal with or without a leading 0, as mount(8) takes it.
func parseUmask(value string) (OptionalMode, error) {
	n, err := strconv.ParseUint(value, 8, 32)
	if err != nil || n > 0o777 {
		return OptionalMode{}, invalidf("mount option umask=%q: want an octal number from 0 to 0777", value)
	}
	return OptionalMode{Set: true, Mode: uint32(n)}, nil
}

// String gives the options that differ from the defaults, in a fixed order, in the form ParseMountOptions reads.
func (o MountOptions) String() string {
	var out []string
	flag := func(on bool, name string) {
		if on {
			out = append(out, name)
		}
	}
	flag(o.ReadOnly, "ro")
	flag(o.Flock == FlockLocal, "localflock")
	flag(o.Flock == FlockNone, "noflock")
	flag(o.Atime == AtimeNever, "noatime")
	flag(o.Atime == AtimeStrict, "strictatime")
	flag(o.NoDirAtime, "nodiratime")
	flag(!o.UserXattr, "nouser_xattr")
	flag(!o.ACL, "noacl")
	flag(!o.AllowOther, "noallow_other")
	flag(o.NoSuid, "nosuid")
	flag(o.NoDev, "nodev")
	flag(o.NoExec, "noexec")
	flag(o.Sync, "sync")
	flag(o.DirSync, "dirsync")
	flag(o.Fileset != "", "fileset="+o.Fileset)
	flag(o.UID.Set, fmt.Sprintf("uid=%d", o.UID.ID))
	flag(o.GID.Set, fmt.Sprintf("gid=%d", o.GID.ID))
	flag(o.Umask.Set, fmt.Sprintf("umask=%04o", o.Umask.Mode))
	flag(o.IOTimeout != 0, "io_timeout="+o.IOTimeout.String())
	return strings.Join(out, ",")
}
