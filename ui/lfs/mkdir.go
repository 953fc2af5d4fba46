package lfs

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/strakefs/strake/fs/virtual"
)

// mkdirFlags are mkdir's flags as they were given; empty ones were not.
type mkdirFlags struct{ index, count, mode string }

func newMkdir() *cobra.Command {
	var f mkdirFlags
	c := &cobra.Command{
		Use:     "mkdir [-i INDEX] [-c COUNT] [-o MODE] FOLDER...",
		Aliases: []string{"setdirstripe"},
		Short:   "make a folder on a chosen MDT",
		Long: `mkdir makes folders. -i names the MDT that holds the folder, -c the number of MDTs that its entries are
spread over. A file system with one MDT takes index 0 and count 1 (or -1 for any and all); anything
else is refused, and no folder is made.`,
		Example: "  lfs mkdir -i 0 /mnt/strake/project\n  lfs mkdir -o 2770 /mnt/strake/shared",
	}
	c.Flags().StringVarP(&f.index, "mdt-index", "i", "", "index of the MDT, -1: any")
	c.Flags().StringVarP(&f.count, "mdt-count", "c", "", "number of MDTs to spread over, -1: all")
	c.Flags().StringVarP(&f.mode, "mode", "o", "", "permission bits in octal, as chmod(1) sets them; else by the umask")
	several := "folders over several MDTs come with a later version"
	refuseFlags(c, []refusal{
		{"mdt-hash", "H", true, several}, {"mdt-overcount", "C", true, several}, {"default", "D", false, several},
		{"max-inherit", "X", true, several}, {"max-inherit-rr", "", true, several}, {"delete", "d", false, several},
	})
	c.RunE = run(1, -1, func(s *session, args []string) error {
		mode, err := f.parse()
		if err != nil {
			return err
		}
		for _, p := range args {
			if err := f.make(p, mode); err != nil {
				s.fail(p, err)
			}
		}
		return nil
	})
	return c
}

// parse checks what can be checked without a file system. The mode is -1 if none was given.
func (f *mkdirFlags) parse() (int, error) {
	for _, v := range []struct{ flag, text string }{{"-i", f.index}, {"-c", f.count}} {
		if _, err := strconv.ParseInt(v.text, 10, 32); v.text != "" && err != nil {
			return 0, usagef("%s %s is not a number; -i takes one MDT here", v.flag, strconv.Quote(v.text))
		}
	}
	if f.mode == "" {
		return -1, nil
	}
	mode, err := strconv.ParseUint(f.mode, 8, 32)
	if err != nil || mode > 0o7777 {
		return 0, usagef("mode %s is not an octal number up to 7777", strconv.Quote(f.mode))
	}
	return int(mode), nil
}

// make makes one folder, or nothing.
func (f *mkdirFlags) make(path string, mode int) error {
	trimmed := strings.TrimRight(path, "/")
	if trimmed == "" {
		return unix.EEXIST
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(trimmed))
	if err != nil {
		return err
	}
	info, err := getInfo(parent)
	if err != nil {
		return err
	}
	if err := f.fits(info); err != nil {
		return err
	}
	first := uint32(0o777)
	if mode >= 0 {
		first = uint32(mode) & 0o700 // nobody else gets in before the mode is whole
	}
	if err := again(func() error { return unix.Mkdir(trimmed, first) }); err != nil || mode < 0 {
		return err
	}
	if err := again(func() error { return unix.Chmod(trimmed, uint32(mode)) }); err != nil {
		return errors.Join(fmt.Errorf("set the mode: %w", err), unix.Rmdir(trimmed))
	}
	return nil
}

// fits refuses what the file system's MDTs cannot do.
func (f *mkdirFlags) fits(info *virtual.Info) error {
	mdt := func(t virtual.Target) bool { return t.Kind == virtual.KindMDT }
	if f.index != "" && f.index != "-1" {
		i, err := strconv.ParseUint(f.index, 10, 32)
		if err != nil || !slices.ContainsFunc(info.Targets, func(t virtual.Target) bool { return mdt(t) && uint64(t.Index) == i }) {
			return fmt.Errorf("there is no MDT with index %s (lfs mdts lists them)", f.index)
		}
		if i != 0 {
			return fmt.Errorf("a folder on another MDT than 0 is not supported by this version")
		}
	}
	switch f.count {
	case "", "-1", "0", "1":
		return nil
	}
	return fmt.Errorf("a folder over %s MDTs is not supported by this version", f.count)
}
