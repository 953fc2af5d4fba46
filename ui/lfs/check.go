package lfs

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/strakefs/strake/fs/virtual"
)

func newCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check osts|mdts|mds|mgts|servers|all [PATH]",
		Short: "check that the mount is connected to its servers",
		Long: `check says of each OST (osts), MDT (mdts, mds) or the MGS (mgts) whether the mount is connected to it; servers
means osts and mdts, all means every one. It looks at the file system that PATH is on, or at every
strake file system mounted on this machine. The exit status is 1 if a connection is missing.`,
		Example: "  lfs check all\n  lfs check osts /mnt/strake",
		RunE: run(1, 2, func(s *session, args []string) error {
			kinds, err := parseKinds(args[0])
			if err != nil {
				return err
			}
			found, err := wantMounts(args[1:])
			if err != nil {
				return inPath(args[1:], err)
			}
			for _, m := range found {
				if err := s.check(m.dir, kinds); err != nil {
					s.fail(m.dir, err)
				}
			}
			return nil
		}),
	}
}

func parseKinds(name string) ([]string, error) {
	switch name {
	case "osts":
		return []string{virtual.KindOST}, nil
	case "mdts", "mds":
		return []string{virtual.KindMDT}, nil
	case "mgts":
		return []string{virtual.KindMGS}, nil
	case "servers":
		return []string{virtual.KindMDT, virtual.KindOST}, nil
	case "all":
		return []string{virtual.KindMGS, virtual.KindMDT, virtual.KindOST}, nil
	}
	return nil, usagef("%s is none of osts, mdts, mds, mgts, servers and all", safe(name))
}

// check reports on the targets of some kinds. A kind that the mount says nothing of is an error: silence is no proof.
func (s *session) check(dir string, kinds []string) error {
	info, err := getInfo(dir)
	if err != nil {
		return err
	}
	for _, kind := range kinds {
		if !slices.ContainsFunc(info.Targets, func(t virtual.Target) bool { return t.Kind == kind }) {
			s.fail(dir, fmt.Errorf("the mount knows of no %s", kind))
		}
	}
	for _, t := range info.Targets {
		if !slices.Contains(kinds, t.Kind) {
			continue
		}
		name := fmt.Sprintf("%s-%s-%s", t.Name, importName(t.Kind), info.Client)
		if t.State == virtual.Active {
			s.printf("%s active.\n", safe(name))
			continue
		}
		if t.State == virtual.Deactivated {
			s.fail(name, errors.New("deactivated: lctl activate "+t.Name+" brings it back"))
			continue
		}
		s.fail(name, fmt.Errorf("not connected (%s)", strings.ToLower(t.State)))
	}
	return nil
}

// importName is what the field calls the client's end of a connection to a target.
func importName(kind string) string {
	switch kind {
	case virtual.KindOST:
		return "osc"
	case virtual.KindMDT:
		return "mdc"
	}
	return "mgc"
}
