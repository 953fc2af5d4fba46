package mdt

import "github.com/strakefs/strake/server/lockd"

// LockServer is the MDT's lock server, for who shows its locks. It belongs to the handler.
func (h *Handler) LockServer() *lockd.Server { return h.ldlm }
