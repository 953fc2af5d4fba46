package check

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/server/check"
)

const dumpLong = `dump shows the records of stopped targets, for people. It changes nothing. Secrets are not shown.

  strake dump --data /srv/mdt                              # what it is, and its tables
  strake dump --data /srv/mdt --table clients              # every record of a table: exports, reply_slots, destroy_log, mgs, ...
  strake dump --data /srv/mdt --path /home/a/file          # an inode: attributes, layout, parent links, xattrs; entries of a folder
  strake dump --data /srv/mdt --fid '[0x200000401:0x5:0x0]'
  strake dump --data /srv/ost0 --object 0:4711             # an object: its record and its file
  strake dump --data /srv/ost0 --table usage

Records that do not decode are shown in hexadecimal, with the reason.

Exit status: 0, or 1 when something could not be read or found.`

// dumpFlags say what is shown.
type dumpFlags struct {
	data                     []string
	table, fid, path, object string
	limit                    int
	json                     bool
}

// NewDumpCommand returns the dump command.
func NewDumpCommand() *cobra.Command {
	var d dumpFlags
	c := &cobra.Command{
		Use:   "dump --data DIR [--data DIR]... [--table NAME | --fid FID | --path PATH | --object GROUP:ID]",
		Short: "show the records of stopped targets",
		Long:  dumpLong,
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return d.run(cmd) },
	}
	c.DisableFlagsInUseLine = true
	f := c.Flags()
	f.StringArrayVar(&d.data, "data", nil, "data `folder` of a stopped target, or a base folder of several; again and again")
	f.StringVar(&d.table, "table", "", "`name` of a table whose records are shown")
	f.StringVar(&d.fid, "fid", "", "`FID` of an inode")
	f.StringVar(&d.path, "path", "", "`path` of an inode, from the root of the file system")
	f.StringVar(&d.object, "object", "", "an object, as `group:id`")
	f.IntVar(&d.limit, "limit", 1000, "entries of a folder and records of a table shown at most, 0 for all")
	f.BoolVar(&d.json, "json", false, "print one JSON object a record")
	c.MarkFlagsMutuallyExclusive("table", "fid", "path", "object")
	return c
}

func (d *dumpFlags) run(cmd *cobra.Command) error {
	if len(d.data) == 0 {
		return fmt.Errorf("--data says which folders are shown; see %s --help", cmd.CommandPath())
	}
	if d.limit == 0 {
		d.limit = 1<<63 - 1
	}
	set, err := check.Open(d.data, false)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(cmd.OutOrStdout())
	err = d.show(cmd, out, set.Dumps())
	if bad := out.Flush(); err == nil && bad != nil {
		err = fmt.Errorf("writing: %w", bad)
	}
	return errors.Join(err, set.Close())
}

func (d *dumpFlags) show(cmd *cobra.Command, w io.Writer, all []*check.Dump) error {
	ctx := cmd.Context()
	switch {
	case d.table != "":
		return d.showTable(cmd, w, all)
	case d.object != "":
		id, err := parseObject(d.object)
		if err != nil {
			return err
		}
		return d.each(w, all, false, func(t *check.Dump) (check.Fields, error) { return t.Object(ctx, id) })
	case d.fid != "" || d.path != "":
		return d.each(w, all, true, func(t *check.Dump) (check.Fields, error) {
			f, err := fid.Parse(d.fid)
			if d.path != "" {
				f, err = t.Find(ctx, d.path)
			}
			if err != nil {
				return nil, err
			}
			return t.Inode(ctx, f, d.limit)
		})
	}
	for _, t := range all {
		f, err := t.Head(ctx)
		if err != nil {
			return err
		}
		d.print(w, f)
	}
	return nil
}

// each shows what fn gives of every target of one kind.
func (d *dumpFlags) each(w io.Writer, all []*check.Dump, mdt bool, fn func(*check.Dump) (check.Fields, error)) error {
	shown := false
	for _, t := range all {
		if t.MDT() != mdt {
			continue
		}
		f, err := fn(t)
		if err != nil {
			return err
		}
		d.print(w, f)
		shown = true
	}
	if !shown {
		return errors.New("none of the folders is of a target that has this")
	}
	return nil
}

// showTable prints the records of a table, one a line, of every target that has it.
func (d *dumpFlags) showTable(cmd *cobra.Command, w io.Writer, all []*check.Dump) error {
	var names []string
	shown := false
	for _, t := range all {
		names = append(names, t.Tables()...)
		if !strings.Contains(" "+strings.Join(t.Tables(), " ")+" ", " "+d.table+" ") {
			continue
		}
		shown = true
		n := 0
		err := t.Table(cmd.Context(), d.table, func(f check.Fields) bool {
			if n == d.limit {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: the first %d records; --limit 0 shows all\n", t.Name(), n)
				return false
			}
			n++
			if len(all) > 1 {
				f = append(check.Fields{{Name: "target", Value: t.Name()}}, f...)
			}
			if d.json {
				printJSON(w, f)
			} else {
				fmt.Fprintln(w, line(f))
			}
			return true
		})
		if err != nil {
			return err
		}
	}
	if !shown {
		return fmt.Errorf("no table %q; there are %s", d.table, strings.Join(names, ", "))
	}
	return nil
}

// print prints one record, a field a line.
func (d *dumpFlags) print(w io.Writer, f check.Fields) {
	if d.json {
		printJSON(w, f)
		return
	}
	for _, x := range f {
		switch v := x.Value.(type) {
		case check.Fields:
			fmt.Fprintf(w, "%s:\n", x.Name)
			for _, y := range v {
				fmt.Fprintf(w, "    %s: %s\n", y.Name, value(y.Value))
			}
		case []check.Fields:
			fmt.Fprintf(w, "%s:\n", x.Name)
			for _, y := range v {
				fmt.Fprintf(w, "    %s\n", line(y))
			}
		default:
			fmt.Fprintf(w, "%s: %s\n", x.Name, value(v))
		}
	}
	fmt.Fprintln(w)
}

// line is a record on one line.
func line(f check.Fields) string {
	words := make([]string, len(f))
	for i, x := range f {
		v := value(x.Value)
		if strings.ContainsAny(v, " \"") || v == "" {
			v = strconv.Quote(v)
		}
		words[i] = x.Name + "=" + v
	}
	return strings.Join(words, " ")
}

// value is one value as people read it.
func value(v any) string {
	switch v := v.(type) {
	case string:
		return visible(v)
	case []string:
		return visible(strings.Join(v, ", "))
	case check.Fields, []check.Fields:
		b, err := json.Marshal(v)
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
	return fmt.Sprint(v)
}

func parseObject(s string) (fid.ObjectID, error) {
	group, id, ok := strings.Cut(s, ":")
	g, err := strconv.ParseUint(group, 0, 32)
	n, bad := strconv.ParseUint(id, 0, 64)
	if !ok || err != nil || bad != nil {
		return fid.ObjectID{}, fmt.Errorf("%q is no object: write group:id, such as 0:4711", s)
	}
	return fid.ObjectID{Group: uint32(g), ID: n}, nil
}
