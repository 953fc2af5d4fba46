package lfs

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/virtual"
)

// setstripeFlags are setstripe's flags as they were given; empty ones were not.
type setstripeFlags struct {
	count, size, index, osts string
	remove                   bool
}

func newSetstripe() *cobra.Command {
	var f setstripeFlags
	c := &cobra.Command{
		Use:   "setstripe [-c COUNT] [-S SIZE] [-i INDEX | -o LIST] PATH... | setstripe -d FOLDER...",
		Short: "create a file with a layout, or set a folder's default layout",
		Long: `setstripe sets how a file's bytes are spread over OSTs.

What PATH is decides what happens:
  nothing yet   an empty file is created with the layout
  a file        its layout is replaced, as long as nothing was ever written to it
  a folder      new files in it get the layout, and new folders inherit it; files that are there stay
                as they are

What is left out is taken from the file system's defaults: one stripe of 4 MiB on an OST that the
MDT chooses. A file gets fewer stripes than asked for when there are fewer OSTs.`,
		Example: `  lfs setstripe -c 4 -S 1m /mnt/big          a new file on 4 OSTs, 1 MiB on each in turn
  lfs setstripe -c -1 /mnt/results           new files in this folder go over all OSTs
  lfs setstripe -o 3,1 /mnt/pair             a new file on OST 3, then OST 1
  lfs setstripe -d /mnt/results              this folder follows the file system's default again`,
	}
	c.Flags().StringVarP(&f.count, "stripe-count", "c", "", "number of stripes; 0: the default, -1: all OSTs")
	c.Flags().StringVarP(&f.size, "stripe-size", "S", "", "bytes on one OST before the next, a multiple of 64K; 0: the default")
	c.Flags().StringVarP(&f.index, "stripe-index", "i", "", "index of the first OST; -1: the MDT chooses")
	c.Flags().StringVarP(&f.osts, "ost", "o", "", "indexes of exactly the OSTs to use, in stripe order, such as 0,3-5")
	c.Flags().BoolVarP(&f.remove, "delete", "d", false, "delete a folder's default layout")
	later := "a layout of several components comes with a later version"
	refuseFlags(c, []refusal{
		{"component-end", "E", true, later}, {"component-add", "", false, later}, {"component-del", "", false, later},
		{"component-set", "", false, later}, {"component-flags", "", true, later}, {"component-id", "I", true, later},
		{"layout", "L", true, "files are striped (raid0); other patterns come with a later version"},
		{"pool", "p", true, "pools of OSTs come with a later version"},
		{"overstripe-count", "C", true, "several stripes on one OST come with a later version"},
		{"extension-size", "z", true, "components that extend themselves come with a later version"},
		{"mirror-count", "N", false, "mirrors come with a later version"},
		{"yaml", "Y", true, "layouts from a file come with a later version"},
		{"copy", "", true, "layouts from a file come with a later version"},
		{"foreign", "", false, "layouts of other systems come with a later version"},
	})
	c.RunE = run(1, -1, func(s *session, args []string) error { return s.setstripe(&f, args) })
	return c
}

func (s *session) setstripe(f *setstripeFlags, args []string) error {
	if f.remove {
		if f.count+f.size+f.index+f.osts != "" {
			return usagef("-d deletes a default layout and takes no other flag")
		}
		for _, p := range args {
			if err := deleteDefault(p); err != nil {
				s.fail(p, err)
			}
		}
		return nil
	}
	l, err := f.template()
	if err != nil {
		return err
	}
	for _, p := range args {
		if err := applyLayout(p, l); err != nil {
			s.fail(p, err)
		}
	}
	return nil
}

// template makes a layout template of the flags.
func (f *setstripeFlags) template() (*layout.Layout, error) {
	count, err := parseCount(f.count)
	if err != nil {
		return nil, err
	}
	var size uint64
	if f.size != "" {
		if size, err = parseStripeSize(f.size); err != nil {
			return nil, err
		}
	}
	l := layout.Plain(count, size)
	c := &l.Components[0]
	if c.StripeOffset, err = parseIndex(f.index); err != nil {
		return nil, err
	}
	if f.osts != "" {
		if err := f.want(c); err != nil {
			return nil, err
		}
	}
	return &l, l.Check()
}

// want puts the list of OSTs into a component. A count beside it must agree, and an index must be one of them: the list
// then goes round from there.
func (f *setstripeFlags) want(c *layout.Component) error {
	osts, err := parseOSTs(f.osts)
	if err != nil {
		return err
	}
	if n := len(osts); c.StripeCount != 0 && c.StripeCount != uint32(n) {
		return usagef("-c %s and the %d OSTs of -o %s do not agree", f.count, n, f.osts)
	}
	if c.StripeOffset >= 0 {
		at := slices.Index(osts, layout.OSTIndex(c.StripeOffset))
		if at < 0 {
			return usagef("-i %s is not one of the OSTs of -o %s", f.index, f.osts)
		}
		osts = slices.Concat(osts[at:], osts[:at])
	}
	c.Wanted, c.StripeCount, c.StripeOffset = osts, uint32(len(osts)), int32(osts[0])
	return nil
}

// parseCount reads a stripe count; empty and 0 leave it to the default.
func parseCount(text string) (uint32, error) {
	switch text {
	case "":
		return 0, nil
	case "-1":
		return layout.CountAll, nil
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n > layout.MaxStripes {
		return 0, usagef("stripe count %s is not a number from 0 to %d, or -1 for all OSTs", strconv.Quote(text), layout.MaxStripes)
	}
	return uint32(n), nil
}

// parseIndex reads the index of the first OST; empty and -1 leave it to the MDT.
func parseIndex(text string) (int32, error) {
	if text == "" || text == "-1" {
		return layout.OffsetAny, nil
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n > math.MaxInt32 {
		return 0, usagef("%s is not the index of an OST, or -1 for any", strconv.Quote(text))
	}
	return int32(n), nil
}

// applyLayout gives what is at a path a layout. Symlinks are followed.
func applyLayout(path string, l *layout.Layout) error {
	fi, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return createWith(path, l)
	}
	if err != nil {
		return err
	}
	if !fi.IsDir() && !fi.Mode().IsRegular() {
		return errors.New("neither a file nor a folder: only these have a layout")
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return err
	}
	if err := checkOSTs(path, l); err != nil {
		return err
	}
	return setLayout(path, l)
}

// createWith creates an empty file with a layout, or nothing. The file is made without opening it, since the layout of
// one that was opened for writing is settled.
func createWith(path string, l *layout.Layout) error {
	parent, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return err
	}
	if err := checkOSTs(parent, l); err != nil {
		return err
	}
	if strings.HasSuffix(path, "/") {
		return unix.ENOENT
	}
	if err := again(func() error { return unix.Mknod(path, unix.S_IFREG|0o666, 0) }); err != nil {
		return err
	}
	if err := setLayout(path, l); err != nil {
		if bad := again(func() error { return unix.Unlink(path) }); bad != nil {
			return errors.Join(err, fmt.Errorf("and the file is left behind with the default layout: %w", bad))
		}
		return err
	}
	return nil
}

// deleteDefault makes a folder follow the file system's default layout.
func deleteDefault(path string) error {
	fi, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !fi.IsDir() {
		return errors.New("not a folder: only a folder's default layout can be deleted")
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return err
	}
	if _, err := getFID(path); err != nil {
		return err
	}
	return removeLayout(path)
}

// checkOSTs refuses a layout that names OSTs which the file system of path does not have.
func checkOSTs(path string, l *layout.Layout) error {
	info, err := getInfo(path)
	if err != nil {
		return err
	}
	c := &l.Components[0]
	named := c.Wanted
	if len(named) == 0 && c.StripeOffset >= 0 {
		named = []layout.OSTIndex{layout.OSTIndex(c.StripeOffset)}
	}
	for _, o := range named {
		if !slices.ContainsFunc(info.Targets, func(t virtual.Target) bool {
			return t.Kind == virtual.KindOST && t.Index == uint32(o)
		}) {
			return fmt.Errorf("there is no OST with index %d (lfs osts lists them)", o)
		}
	}
	return nil
}
