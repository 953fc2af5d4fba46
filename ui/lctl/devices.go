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
	var more bool
	c := &cobra.Command{
		Use: "device_list [-t]", Aliases: []string{"dl"}, Short: "list the devices of this host's processes",
		Long: `device_list prints a line for each device of this host: number, state, type, name, uuid, references. The state is UP,
or IN for a device that an administrator has switched off. The references of a target are its clients', and one of its own.
With -t the line of a connection ends with its state and address, that of a target with the state of its recovery.`,
		Args: cobra.NoArgs,
		RunE: run(h, func(s *session, _ []string) error { return s.devices(more) }),
	}
	c.Flags().BoolVarP(&more, "target", "t", false, "state of connections and recovery, too")
	return c
}

// device is one line.
type device struct {
	class int
	name  string
	proc  string
	state string
	refs  string
	// more is what -t adds.
	more string
}

// imported reports whether the device is a connection to a target.
func (d *device) imported() bool {
	switch classes[d.class] {
	case "mgc", "osp", "mdc", "osc":
		return true
	}
	return false
}

// devices prints them, with more of each if asked.
func (s *session) devices(more bool) error {
	all, err := s.listDevices()
	if err != nil {
		return err
	}
	for i, d := range all {
		s.printf("%3d %s %s %s %s_UUID %s", i, d.state, classes[d.class], d.name, d.name, d.refs)
		if more && d.more != "" {
			s.printf(" %s", printable(d.more))
		}
		s.printf("\n")
	}
	return nil
}

// listDevices are the devices of this host's processes, in the order of their numbers.
func (s *session) listDevices() ([]device, error) {
	var all []device
	for class, word := range classes {
		for _, p := range s.procs {
			folders, err := p.List(word+".*", false)
			if err != nil {
				return nil, err
			}
			for _, n := range folders {
				if !n.Folder {
					continue
				}
				d := device{class: class, name: strings.TrimPrefix(n.Name, word+"."), proc: p.Path, state: "UP", refs: "1"}
				values, err := p.Get(n.Name+".{state,num_exports,active,import,recovery_status}", false)
				if err != nil {
					return nil, err
				}
				d.read(values)
				all = append(all, d)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b device) int {
		return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.name, b.name), cmp.Compare(a.proc, b.proc))
	})
	return all, nil
}

// read takes what a device says of itself.
func (d *device) read(values []param.Node) {
	for _, v := range values {
		switch {
		case strings.HasSuffix(v.Name, ".num_exports"):
			d.refs = plusOne(v.Text)
		case strings.HasSuffix(v.Name, ".active"):
			if v.Text == "0" {
				d.state = "IN"
			}
		case strings.HasSuffix(v.Name, ".state"):
			if v.Text == "deactivated" {
				d.state = "IN"
			}
			d.more = strings.TrimSpace(stateIn(v.Text) + " " + d.more)
		case strings.HasSuffix(v.Name, ".import"):
			d.more = strings.TrimSpace(d.more + " " + valueIn(v.Text, "current_connection", "failover_nids"))
		case strings.HasSuffix(v.Name, ".recovery_status"):
			d.more = valueIn(v.Text, "status")
		}
	}
}

// stateIn is the state in a state file: a word, or the first of a list of lines.
func stateIn(text string) string {
	if s := valueIn(text, "current_state"); s != "" {
		return s
	}
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// valueIn is the value of the first of the keys that a text of "key: value" lines has.
func valueIn(text string, keys ...string) string {
	for _, key := range keys {
		for line := range strings.Lines(text) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), key+":"); ok {
				return strings.Trim(v, " []\"")
			}
		}
	}
	return ""
}

// plusOne adds the target's own reference to its clients'.
func plusOne(exports string) string {
	n, err := strconv.ParseUint(exports, 10, 32)
	if err != nil {
		return exports
	}
	return strconv.FormatUint(n+1, 10)
}
