package lctl

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/strakefs/strake/ui/param"
)

// classes are the kinds of devices, in the order in which they are shown: servers from the disk up, then who uses them.
var classes = []string{"osd-strake", "mgs", "mgc", "mdt", "osp", "obdfilter", "mdc", "osc", "llite"}

func newDevices(h *host) *cobra.Command {
	return &cobra.Command{
		Use: "device_list", Aliases: []string{"dl"}, Short: "list the devices of this host's processes",
		Long: `device_list prints a line for each device of this host: number, state, type, name, uuid, references. The state is UP,
or IN for a device that an administrator has switched off. The references of a target are its clients', and one of its own.`,
		Args: cobra.NoArgs,
		RunE: run(h, func(s *session, _ []string) error { return s.devices() }),
	}
}

// device is one line.
type device struct {
	class int
	name  string
	proc  string
	state string
	refs  string
}

func (s *session) devices() error {
	var all []device
	for class, word := range classes {
		for _, p := range s.procs {
			folders, err := p.List(word+".*", false)
			if err != nil {
				return err
			}
			for _, n := range folders {
				if !n.Folder {
					continue
				}
				d := device{class: class, name: strings.TrimPrefix(n.Name, word+"."), proc: p.Path, state: "UP", refs: "1"}
				values, err := p.Get(n.Name+".{state,num_exports}", false)
				if err != nil {
					return err
				}
				d.read(values)
				all = append(all, d)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b device) int {
		return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.name, b.name), cmp.Compare(a.proc, b.proc))
	})
	for i, d := range all {
		s.printf("%3d %s %s %s %s_UUID %s\n", i, d.state, classes[d.class], d.name, d.name, d.refs)
	}
	return nil
}

// read takes what a device says of itself.
func (d *device) read(values []param.Node) {
	for _, v := range values {
		switch {
		case strings.HasSuffix(v.Name, ".num_exports"):
			d.refs = plusOne(v.Text)
		case v.Text == "deactivated":
			d.state = "IN"
		}
	}
}

// plusOne adds the target's own reference to its clients'.
func plusOne(exports string) string {
	n, err := strconv.ParseUint(exports, 10, 32)
	if err != nil {
		return exports
	}
	return strconv.FormatUint(n+1, 10)
}
