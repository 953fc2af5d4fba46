package lfs

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/strakefs/strake/fs/layout"
)

// show says what getstripe prints.
type show struct {
	count, size, index, pool, pattern, gen, fid, components bool
	folder, recursive, raw, yaml, verbose, quiet            bool
}

// fields counts the single values asked for.
func (w *show) fields() int {
	n := 0
	for _, on := range []bool{w.count, w.size, w.index, w.pool, w.pattern, w.gen, w.fid, w.components} {
		if on {
			n++
		}
	}
	return n
}

func newGetstripe() *cobra.Command {
	var w show
	c := &cobra.Command{
		Use:   "getstripe [-c] [-S] [-i] [-p] [-d | -r] [-y] [-v] PATH...",
		Short: "show the layout of files, and the default layout of folders",
		Long: `getstripe shows how files are spread over OSTs: the number and size of stripes, the first OST, and
each object with its OST's index, its number (decimal and hexadecimal) and its group.

Of a folder it shows the default layout that new files in it get, then the files in it; with -d
only the default, with -r everything below. A folder without a default of its own shows what it
follows; -R shows what is set on it alone. A path that is a symlink is followed.

With one of -c, -S, -i, -p, -L, -g, -F and --component-count the bare value is printed, with several
of them each with its name. A folder among the paths then shows its own default only, unless -r
is given. Names that hold line breaks, control characters or bytes that are no text are printed
between quotes with escapes.`,
		Example: `  lfs getstripe /mnt/big
  lfs getstripe -c /mnt/big                  the number of stripes alone
  lfs getstripe -d /mnt/results              a folder's default layout
  lfs getstripe -r -y /mnt/results           everything below, as YAML, one document each`,
	}
	fl := c.Flags()
	fl.BoolVarP(&w.count, "stripe-count", "c", false, "the number of stripes")
	fl.BoolVarP(&w.size, "stripe-size", "S", false, "the stripe size in bytes")
	fl.BoolVarP(&w.index, "stripe-index", "i", false, "the index of the first OST")
	fl.BoolVarP(&w.pool, "pool", "p", false, "the name of the pool, an empty line for none")
	fl.BoolVarP(&w.pattern, "layout", "L", false, "the pattern")
	fl.BoolVarP(&w.gen, "generation", "g", false, "the generation of the layout")
	fl.BoolVarP(&w.fid, "fid", "F", false, "the FID")
	fl.BoolVar(&w.components, "component-count", false, "the number of components")
	fl.BoolVarP(&w.folder, "directory", "d", false, "folders themselves, not what is in them")
	fl.BoolVarP(&w.recursive, "recursive", "r", false, "everything below")
	fl.BoolVarP(&w.raw, "raw", "R", false, "of folders only what is set on them")
	fl.BoolVarP(&w.yaml, "yaml", "y", false, "as YAML")
	fl.BoolVarP(&w.verbose, "verbose", "v", false, "the file's sequence and object number too")
	fl.BoolVarP(&w.quiet, "quiet", "q", false, "names and objects only")
	later := "a layout of several components comes with a later version"
	refuseFlags(c, []refusal{
		{"component-start", "", true, later}, {"component-end", "E", true, later}, {"component-flags", "", true, later},
		{"component-id", "I", true, later}, {"mirror-count", "N", false, "mirrors come with a later version"},
		{"mdt-index", "m", false, "there is one MDT, index 0"},
		{"obd", "O", true, "searching by OST comes with lfs find"},
	})
	c.RunE = run(1, -1, func(s *session, args []string) error {
		if w.folder && w.recursive {
			return usagef("-d and -r exclude each other")
		}
		g := getstripe{session: s, show: &w, printer: printer{w: s.out, show: &w}, defaults: make(map[uint64]*layout.Layout)}
		for _, p := range args {
			g.path(p)
		}
		return nil
	})
	return c
}

// getstripe is one run of the verb.
type getstripe struct {
	*session
	show    *show
	printer printer
	// defaults holds, by device, what a folder follows that has no default of its own.
	defaults map[uint64]*layout.Layout
}

// path shows a path of the command line and what is below it as far as the flags say.
func (g *getstripe) path(name string) {
	var st unix.Stat_t
	if err := again(func() error { return unix.Stat(name, &st) }); err != nil {
		g.fail(name, err)
		return
	}
	real := name
	var link unix.Stat_t
	if err := again(func() error { return unix.Lstat(name, &link) }); err == nil && link.Mode&unix.S_IFMT == unix.S_IFLNK {
		if real, err = filepath.EvalSymlinks(name); err != nil {
			g.fail(name, err)
			return
		}
	}
	depth := 1
	switch {
	case g.show.recursive:
		depth = -1
	case g.show.folder || g.show.fields() > 0:
		depth = 0
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		g.dir(entry{shown: name, path: real, dev: st.Dev, depth: depth})
	case unix.S_IFREG:
		g.file(entry{shown: name, path: real, depth: depth})
	default:
		g.fail(name, errors.New("neither a file nor a folder: only these have a layout"))
	}
}

// entry is an inode that the walk has come to: the name it is shown by, the path it is reached by, its file system and
// how many levels further down to go (0 none, below 0 all).
type entry struct {
	shown, path string
	dev         uint64
	depth       int
}

func (g *getstripe) file(e entry) {
	l, err := getLayout(e.path)
	g.print(e, l, err, false)
}

// dir shows a folder's default, then what is in it. Other file systems mounted below are left out.
func (g *getstripe) dir(e entry) {
	l, err := getLayout(e.path)
	if errors.Is(err, errNoValue) && !g.show.raw {
		l, err = g.follows(e)
	} else if err == nil && !g.show.raw {
		err = g.complete(e, l)
	}
	if !g.print(e, l, err, true) || e.depth == 0 {
		return
	}
	d, err := os.Open(e.path)
	if err != nil {
		g.fail(e.shown, err)
		return
	}
	defer d.Close()
	for {
		entries, err := d.ReadDir(readdirBatch)
		for _, i := range entries {
			g.below(e, i)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				g.fail(e.shown, err)
			}
			return
		}
	}
}

// readdirBatch bounds the entries of a folder held in memory at once.
const readdirBatch = 1024

func (g *getstripe) below(e entry, i os.DirEntry) {
	in := entry{shown: join(e.shown, i.Name()), path: join(e.path, i.Name()), dev: e.dev, depth: e.depth}
	switch {
	case i.Type().IsRegular():
		g.file(in)
	case i.IsDir() && e.depth < 0:
		var st unix.Stat_t
		if err := again(func() error { return unix.Lstat(in.path, &st) }); err != nil {
			g.fail(in.shown, err)
		} else if st.Dev == e.dev && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			g.dir(in)
		}
	}
}

func join(dir, name string) string { return strings.TrimSuffix(dir, "/") + "/" + name }

// follows gives the layout that a folder without a default of its own follows: the root folder's, or the file system's.
func (g *getstripe) follows(e entry) (*layout.Layout, error) {
	if l := g.defaults[e.dev]; l != nil {
		return l, nil
	}
	m, err := mountOf(e.path)
	if err != nil {
		return nil, err
	}
	l, err := getLayout(m.dir)
	if errors.Is(err, errNoValue) {
		l, err = builtIn(m.dir)
	} else if err == nil {
		err = g.complete(e, l)
	}
	if err == nil {
		g.defaults[e.dev] = l
	}
	return l, err
}

// builtIn is the file system's own default.
func builtIn(path string) (*layout.Layout, error) {
	info, err := getInfo(path)
	if err != nil {
		return nil, err
	}
	return decodeLayout(info.Default)
}

// complete fills in what a folder's default leaves to the file system's.
func (g *getstripe) complete(e entry, l *layout.Layout) error {
	for i := range l.Components {
		c := &l.Components[i]
		if c.StripeCount != 0 && c.StripeSize != 0 {
			continue
		}
		def, err := builtIn(e.path)
		if err != nil {
			return err
		}
		if c.StripeCount == 0 {
			c.StripeCount = def.Components[0].StripeCount
		}
		if c.StripeSize == 0 {
			c.StripeSize = def.Components[0].StripeSize
		}
	}
	return nil
}

// print shows one layout. It reports whether there was no error.
func (g *getstripe) print(e entry, l *layout.Layout, err error, dir bool) bool {
	if err != nil && !errors.Is(err, errNoValue) {
		g.fail(e.shown, err)
		return false
	}
	s := subject{name: e.shown, named: e.depth != 0, dir: dir, layout: l}
	if err != nil {
		s.layout = nil
	}
	if g.show.verbose || g.show.fid {
		if s.fid, err = getFID(e.path); err != nil {
			g.fail(e.shown, err)
			return false
		}
	}
	g.printer.print(&s)
	return true
}
