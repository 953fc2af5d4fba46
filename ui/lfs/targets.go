package lfs

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/strakefs/strake/fs/virtual"
)

// newTargets makes the verbs osts and mdts.
func newTargets(verb string) *cobra.Command {
	kind, head := virtual.KindOST, "OBDS:"
	if verb == "mdts" {
		kind, head = virtual.KindMDT, "MDTS:"
	}
	return &cobra.Command{
		Use:   verb + " [PATH]",
		Short: "list the " + kind + "s and whether the mount is connected to them",
		Long: fmt.Sprintf(`%s lists the %ss of the file system that PATH is on, or of every strake file system mounted on
this machine: index, name, and ACTIVE or INACTIVE as this mount sees it.`, verb, kind),
		Example: "  lfs " + verb + " /mnt/strake",
		RunE: run(0, 1, func(s *session, args []string) error {
			found, err := wantMounts(args)
			if err != nil {
				return inPath(args, err)
			}
			for _, m := range found {
				info, err := getInfo(m.dir)
				if err != nil {
					s.fail(m.dir, err)
					continue
				}
				s.printf("%s\n", head)
				for _, t := range info.Targets {
					if t.Kind == kind {
						s.printf("%d: %s %s\n", t.Index, uuid(t.Name), strings.Map(printable, t.State))
					}
				}
			}
			return nil
		}),
	}
}
