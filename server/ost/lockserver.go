package ost

import "github.com/strakefs/strake/server/lockd"

// LockServer is the OST's lock server, for who shows its locks. It belongs to the OST.
func (o *OST) LockServer() *lockd.Server { return o.locks }
