package lfs

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// refusal is a flag of the field's tool that this version refuses.
type refusal struct {
	long, short string
	// takes says that the flag has an argument.
	takes bool
	why   string
}

// refusedBy is the annotation that holds why a flag is refused.
const refusedBy = "refused"

// refuseFlags makes flags known to a verb, hidden in its help, so that refuse can answer by name.
func refuseFlags(c *cobra.Command, flags []refusal) {
	for _, r := range flags {
		if r.takes {
			c.Flags().StringP(r.long, r.short, "", "")
		} else {
			c.Flags().BoolP(r.long, r.short, false, "")
		}
		f := c.Flags().Lookup(r.long)
		f.Hidden = true
		f.Annotations = map[string][]string{refusedBy: {r.why}}
	}
}

// refuse answers a command line that holds a refused flag.
func refuse(c *cobra.Command) error {
	var err error
	c.Flags().Visit(func(f *pflag.Flag) {
		why := f.Annotations[refusedBy]
		if err != nil || len(why) == 0 {
			return
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + " (" + name + ")"
		}
		err = usage{fmt.Sprintf("%s is not supported by this version: %s", name, why[0])}
	})
	return err
}
