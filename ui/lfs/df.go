package lfs

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/strakefs/strake/fs/virtual"
)

// dfFlags are df's flags.
type dfFlags struct {
	human, si, inodes, verbose, osts, mdts bool
}

func newDf() *cobra.Command {
	var f dfFlags
	c := &cobra.Command{
		Use:   "df [-i] [-h | -H] [-o | -m] [-v] [PATH]",
		Short: "show the space of each target",
		Long: `df shows the space of each MDT and OST, and of the file system as a whole: that of its OSTs, since
file data is there. Without PATH it shows every strake file system mounted on this machine, with
PATH the one that PATH is on.

A target that does not answer is shown with the reason instead of figures, and the exit status is 1.
The columns are those of df(1): 1 KiB blocks, or inodes with -i. Files can be created while both
an MDT has inodes and an OST has objects left, so the summary of -i shows the smaller of the two.`,
		Example: `  lfs df -h
  lfs df -i /mnt/strake
  lfs df -o -v /mnt/strake                   OSTs only, also those the mount has no connection to`,
	}
	fl := c.Flags()
	fl.Bool("help", false, "help for df")
	fl.BoolVarP(&f.human, "human-readable", "h", false, "sizes with a suffix, powers of 1024")
	fl.BoolVarP(&f.si, "si", "H", false, "sizes with a suffix, powers of 1000")
	fl.BoolVarP(&f.inodes, "inodes", "i", false, "inodes instead of blocks")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "targets of the configuration that are not in use too")
	fl.BoolVarP(&f.osts, "ost", "o", false, "OSTs only")
	fl.BoolVarP(&f.mdts, "mdt", "m", false, "MDTs only")
	refuseFlags(c, []refusal{
		{"pool", "p", true, "pools of OSTs come with a later version"},
		{"lazy", "l", false, "targets are always asked"},
	})
	c.RunE = run(0, 1, func(s *session, args []string) error {
		if f.osts && f.mdts {
			return usagef("-o and -m exclude each other; without them both are shown")
		}
		found, err := wantMounts(args)
		if err != nil {
			return inPath(args, err)
		}
		for i := range found {
			if err := s.df(&f, found[i].dir); err != nil {
				s.fail(found[i].dir, err)
			}
		}
		return nil
	})
	return c
}

// inPath puts the path of the command line, if there is one, before an error.
func inPath(args []string, err error) error {
	if len(args) == 0 {
		return err
	}
	return fmt.Errorf("%s: %s", safe(args[0]), reason(err))
}

// df shows the file system mounted at dir.
func (s *session) df(f *dfFlags, dir string) error {
	all, err := getSpace(dir)
	if err != nil {
		return err
	}
	if f.verbose {
		info, err := getInfo(dir)
		if err != nil {
			return err
		}
		all = append(all, missing(info, all)...)
	}
	d := dfTable{flags: f, s: s}
	d.header()
	var mdts, osts dfRow
	for i := range all {
		t := &all[i]
		if f.osts && t.Kind != virtual.KindOST || f.mdts && t.Kind != virtual.KindMDT {
			continue
		}
		if t.Error != "" {
			d.silent(t)
			continue
		}
		r := rowOf(t, f.inodes)
		d.row(uuid(t.Name), r, fmt.Sprintf("%s[%s:%d]", safe(dir), t.Kind, t.Index))
		if t.Kind == virtual.KindOST {
			osts.add(r)
		} else {
			mdts.add(r)
		}
	}
	s.printf("\n")
	d.row("filesystem_summary:", summary(f, mdts, osts), safe(dir))
	s.printf("\n")
	return nil
}

// summary is what the file system as a whole has.
func summary(f *dfFlags, mdts, osts dfRow) dfRow {
	switch {
	case f.mdts:
		return mdts
	case f.osts || !f.inodes:
		return osts
	}
	if osts.free < mdts.free { // the OSTs' objects run out first
		mdts.total -= mdts.free - osts.free
		mdts.free = osts.free
		mdts.avail = osts.free
	}
	return mdts
}

// missing are the targets of a configuration of which no space is known.
func missing(info *virtual.Info, known []virtual.TargetSpace) []virtual.TargetSpace {
	var out []virtual.TargetSpace
	for _, t := range info.Targets {
		there := slices.ContainsFunc(known, func(s virtual.TargetSpace) bool { return s.Kind == t.Kind && s.Index == t.Index })
		if !there && (t.Kind == virtual.KindMDT || t.Kind == virtual.KindOST) {
			out = append(out, virtual.TargetSpace{Name: t.Name, Kind: t.Kind, Index: t.Index, Error: "inactive device"})
		}
	}
	return out
}

// uuid is a target's name as the field's tools show it.
func uuid(name string) string { return safe(name + "_UUID") }

// dfRow is a row of figures, in bytes or inodes.
type dfRow struct{ total, free, avail uint64 }

func rowOf(t *virtual.TargetSpace, inodes bool) dfRow {
	if inodes {
		return dfRow{t.Inodes, min(t.FreeInodes, t.Inodes), min(t.FreeInodes, t.Inodes)}
	}
	return dfRow{t.Total, min(t.Free, t.Total), min(t.Avail, t.Total)}
}

// add adds up, and stays at the largest number when a damaged answer would wrap it.
func (r *dfRow) add(o dfRow) {
	r.total, r.free, r.avail = plus(r.total, o.total), plus(r.free, o.free), plus(r.avail, o.avail)
}

func plus(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}

// dfTable prints the rows of one file system.
type dfTable struct {
	flags *dfFlags
	s     *session
}

func (d *dfTable) header() {
	names := []any{"UUID", "1K-blocks", "Used", "Available", "Use%", "Mounted on"}
	switch {
	case d.flags.inodes:
		names = []any{"UUID", "Inodes", "IUsed", "IFree", "IUse%", "Mounted on"}
	case d.flags.human || d.flags.si:
		names[1] = "bytes"
	}
	d.s.printf("%-20s %11s %11s %11s %4s %s\n", names...)
}

func (d *dfTable) row(name string, r dfRow, where string) {
	used := r.total - min(r.free, r.total)
	d.s.printf("%-20s %11s %11s %11s %3d%% %s\n", name, d.number(r.total), d.number(used), d.number(r.avail), percent(used, r.avail), where)
}

// silent prints a target that gave no figures.
func (d *dfTable) silent(t *virtual.TargetSpace) {
	d.s.failed = true
	d.s.printf("%-20s: %s\n", uuid(t.Name), reason(errors.New(t.Error)))
}

func (d *dfTable) number(v uint64) string {
	switch {
	case d.flags.si:
		return human(v, 1000)
	case d.flags.human:
		return human(v, 1024)
	case d.flags.inodes:
		return strconv.FormatUint(v, 10)
	}
	return strconv.FormatUint(v/1024, 10)
}

// percent is how much of what a user can have is used, rounded up as df(1) does.
func percent(used, avail uint64) uint64 {
	if used == 0 {
		return 0
	}
	return uint64(math.Ceil(float64(used) / (float64(used) + float64(avail)) * 100))
}
