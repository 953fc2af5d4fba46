package target

import (
	"bytes"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/store"
)

// ForgetClients puts into tx that a device which was restored from a backup has no clients: what they did since is not
// there, so what they would replay, or hold, has nothing to stand on. They connect anew, as evicted ones do. Call it before New.
func ForgetClients(dev store.Device, clients, slots store.Table, tx *store.Tx) error {
	for _, t := range []store.Table{clients, slots} {
		err := dev.Scan(env.New(), t, nil, nil, func(k, _ []byte) bool {
			tx.Delete(t, bytes.Clone(k))
			return true
		})
		if err != nil {
			return err
		}
	}
	return nil
}
