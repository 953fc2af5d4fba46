package server

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/server/mdt"
	"github.com/strakefs/strake/server/osp"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store/boltdev"
)

// Backup describes a backup file of a metadata target.
type Backup = boltdev.Backup

// CheckBackup reads a backup file to its end and describes it; errors say what is wrong with it.
func CheckBackup(path string) (Backup, error) { return boltdev.CheckBackup(path) }

// Restore makes the data folder of a metadata target from a backup file. dir has to be absent or empty. The target's first
// start then goes on with numbers that were never given, without its clients of then, and keeps objects that it does not know.
func Restore(path, dir string) (Backup, error) { return boltdev.Restore(path, dir) }

// takeNote prepares the device of an MDT that was restored from a backup, once, before anything reads it: FIDs and object
// ids that may have been given since are passed over, clients are forgotten, orphans are kept until an administrator has
// spoken. A crash in between does it again.
func takeNote(ctx context.Context, dev *boltdev.Device, log *slog.Logger) error {
	note, ok := dev.RestoredFrom()
	if !ok {
		return nil
	}
	_, clients, logs, _ := mdsSpecs()
	tx := dev.Begin(env.New())
	if err := target.ForgetClients(dev, clients, clients+1, tx); err != nil {
		return fmt.Errorf("clients of before the restore: %w", err)
	}
	if err := mdt.SkipSequences(dev, mdt.TablesAt(0), tx); err != nil {
		return fmt.Errorf("sequences after the restore: %w", err)
	}
	osp.MarkRestored(tx, osp.TablesAt(logs), note.Made)
	n, err := dev.Publish(tx)
	if err == nil {
		err = dev.WaitCommitted(ctx, n)
	}
	if err != nil {
		return fmt.Errorf("taking note of the restore: %w", err)
	}
	log.Warn("this MDT was restored from a backup: objects made since are kept on the OSTs until 'lctl restored' says what shall be",
		"made", note.Made, "transno", uint64(note.Transno))
	return dev.TakenNote()
}
