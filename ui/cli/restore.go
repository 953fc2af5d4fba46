package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

// Backup is what restore tells of a backup file.
type Backup struct {
	Target, FSName, UUID string
	Instance, Transno    uint64
	Keys                 uint64
	Bytes                int64
	Made                 time.Time
}

// Restorer does what restore is about.
type Restorer struct {
	// Check reads a backup file to its end; Restore makes a data folder of it. Errors are sentences.
	Check   func(file string) (Backup, error)
	Restore func(file, dir string) (Backup, error)
}

const restoreLong = `restore makes the data folder of a metadata target from a file that 'lctl backup' has written. DIR must be empty, or not exist. The
file is checked to its end before anything is written; a restore that is interrupted leaves nothing that a target would start on.

Start the target on DIR as ever afterwards, and do not run the folder that it was made from beside it. What was done after the backup
is not there: files made since have no names, files removed since have names and no data. Clients that were connected are
evicted and connect anew. So that nothing else is lost, the restored target gives no FID and no object again that may have been
given since, and the OSTs keep the objects that it does not know until it is told with 'lctl restored': destroy them, or have
'strake check' find whose they were first.

--check reads the file and says what it is, and restores nothing.`

// NewRestore returns the restore command.
func NewRestore(r Restorer) *cobra.Command {
	var dir string
	var check bool
	c := &cobra.Command{
		Use:     "restore FILE --data DIR | restore FILE --check",
		Short:   "make a metadata target's data folder from a backup",
		Long:    restoreLong,
		Example: "  strake restore /backup/mdt0-2026-11-30 --data /srv/mdt\n  strake restore /backup/mdt0-2026-11-30 --check",
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) != 1:
				return usageError{errors.New("one backup file is needed; see strake restore --help")}
			case check == (dir != ""):
				return usageError{errors.New("give --data DIR, or --check alone; see strake restore --help")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var b Backup
			var err error
			if check {
				b, err = r.Check(args[0])
			} else {
				b, err = r.Restore(args[0], dir)
			}
			if err != nil {
				return fmt.Errorf("restore: %w", err)
			}
			out := cmd.OutOrStdout()
			if _, err := fmt.Fprintf(out, "target:   %s of file system %s\nmade:     %s\ninstance: %#x\ntransno:  %#x\nkeys:     %d in %d bytes, checksums good\n",
				b.Target, b.FSName, b.Made.UTC().Format(time.RFC3339), b.Instance, b.Transno, b.Keys, b.Bytes); err != nil || check {
				return err
			}
			_, err = fmt.Fprintf(out, "restored: %s\nNow start the target on it. Objects made after the backup are kept until 'strake lctl restored %s' says what shall be.\n", dir, b.Target)
			return err
		},
	}
	c.Flags().StringVar(&dir, "data", "", "the data folder to make, empty or absent")
	c.Flags().BoolVar(&check, "check", false, "check the file and describe it, restore nothing")
	return c
}
