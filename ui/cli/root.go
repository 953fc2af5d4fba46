package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	"github.com/strakefs/strake/server/config"
)

const rootLong = `strake is a parallel file system in one binary: files striped over many storage servers, one coherent POSIX
name space.

A node is one process with one or more roles. Role all is every role in one process:

  strake --role=all --data /srv/strake --mount /mnt/strake

Three nodes, on a network you trust:

  strake --role=mds    --data /srv/mdt --insecure=any                              # on mds1
  strake --role=oss    --data /srv/ost0 --data /srv/ost1 --mgs mds1:9880 --insecure=any   # on oss1
  strake --role=client --mgs mds1:9880 --mount /mnt/strake --insecure=any          # on a client

An absent or empty data folder is formatted at the first start. Every flag can also be set in the environment
(STRAKE_MGS_TIMEOUT=1m) and in the file (mgs-timeout: 1m); flags win over the environment, the environment over the
file.

Mount options (-o): ro, rw, flock (default), localflock, noflock, relatime (default), noatime, strictatime,
nodiratime, user_xattr (default), nouser_xattr, acl (default), noacl, fileset=/DIR, uid=N, gid=N, umask=OCTAL,
allow_other (default), noallow_other, suid, nosuid, dev, nodev, exec, noexec, sync, async, dirsync,
io_timeout=DURATION (how long a read or write waits for an OST that is away; 0, the default, waits until it is back).
Options of mount(8), fstab and systemd (_netdev, nofail, x-...) are accepted and mean nothing here.`

// newRoot makes the command tree.
func newRoot(deps Deps) *cobra.Command {
	values := map[string]*flagValue{}
	root := &cobra.Command{
		Use:   "strake --role=ROLE[,ROLE] [flags]",
		Short: "a parallel file system in one binary",
		Long:  rootLong,
		// Gives --version beside the version command.
		Version: BuildVersion(deps.Version),
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := load(deps.Environ, flagSettings(cmd, values))
			if err != nil {
				return err
			}
			return runNode(cmd.Context(), deps, cfg)
		},
	}
	flags := root.Flags()
	flags.SortFlags = false
	for _, k := range config.Keys() {
		v := &flagValue{key: k}
		values[k.Name] = v
		f := flags.VarPF(v, k.Name, k.Short, k.Help)
		f.NoOptDefVal, f.Hidden = k.Bare, k.Hidden
	}
	root.AddCommand(newVersion(deps))
	for _, tool := range deps.Tools {
		root.AddCommand(tool)
	}
	return root
}

// noArgs refuses words that belong to no flag; the usual cause is a blank where '=' is needed.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return usageError{fmt.Errorf("unknown command %q; see %s --help (a value of --insecure is written with '=')",
		args[0], cmd.CommandPath())}
}

// flagValue collects what a flag is given; config checks it, as it checks what the other sources say.
type flagValue struct {
	key    config.Key
	values []string
}

// Set takes one more value.
func (v *flagValue) Set(s string) error {
	v.values = append(v.values, s)
	return nil
}

// String gives the values for the help text.
func (v *flagValue) String() string { return strings.Join(v.values, ",") }

// Type gives the word for the value in the help text.
func (v *flagValue) Type() string { return v.key.Arg }

// flagSettings takes the flags that were given.
func flagSettings(cmd *cobra.Command, values map[string]*flagValue) config.Settings {
	s := config.Settings{}
	for name, v := range values {
		if cmd.Flags().Changed(name) {
			origin := "--" + name
			if v.key.Short != "" {
				origin = "-" + v.key.Short
			}
			s[name] = config.Setting{Values: v.values, Origin: origin}
		}
	}
	return s
}

// load puts flags, environment and file together. The file is the one that the flags or the environment name, and
// otherwise the default one if there is one.
func load(environ []string, flags config.Settings) (config.Config, error) {
	env, err := config.FromEnv(environ)
	if err != nil {
		return config.Config{}, err
	}
	above := config.Merge(env, flags)
	path, named := config.DefaultFile, false
	if set, ok := above[config.KeyConfig]; ok {
		path, named = set.Values[len(set.Values)-1], true
	}
	var file config.Settings
	if path != config.NoFile {
		file, err = config.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) && !named {
			file, err = nil, nil
		}
		if err != nil {
			return config.Config{}, err
		}
	}
	return config.New(config.Merge(file, above))
}
