package boltdev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Check looks at a data folder as Open would and changes nothing, so that a process with several can see that all are good
// before it starts on the first. A folder that is absent or empty is good. Its errors are Open's.
func Check(o Options) error {
	o = o.withDefaults()
	if err := check(o); err != nil {
		return fmt.Errorf("data folder %s: %w", o.Dir, explain(err))
	}
	return nil
}

func check(o Options) error {
	if _, err := os.Stat(o.Dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	lock, err := lockDir(o.Dir, o.LockTimeout)
	if err != nil {
		return err
	}
	defer lock.Close()
	fresh, err := isFresh(o.Dir)
	if err != nil || fresh {
		return err
	}
	if err := checkFile(filepath.Join(o.Dir, dbName)); err != nil {
		return err
	}
	db, _, err := openDB(o)
	if err != nil {
		return err
	}
	return db.Close()
}
