package lockd

import (
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/ldlm"
	"github.com/strakefs/strake/fs/wire"
)

// Objects is what an OST says of its objects.
type Objects interface {
	// LVB sets v to an object's size, blocks and times as the store has them, with what is written and not committed. An
	// object that does not exist is an error of kind status.NotExist. It must not ask for locks.
	LVB(e *env.Env, o fid.ObjectID, v *ldlm.LVB) error
}

// lvbMethods makes Objects the engine's.
type lvbMethods struct{ o Objects }

func (m lvbMethods) Init(e *env.Env, id ldlm.ResID, v *ldlm.LVB) error {
	return m.o.LVB(e, id.Object(), v)
}

func (m lvbMethods) Update(e *env.Env, id ldlm.ResID, v *ldlm.LVB) error {
	return m.o.LVB(e, id.Object(), v)
}

func (m lvbMethods) Fill(_ *env.Env, _ ldlm.ResID, v *ldlm.LVB, b []byte) []byte {
	return wire.AppendLVB(b, v)
}

// Changed brings an object's LVB up to date after a change in the store: shrink false after a write, true after a truncate,
// punch, setattr or fallocate. An object without locks has none, and nothing is read. A lock's cancel needs no call:
// what was written under it has made its own.
func (s *Server) Changed(e *env.Env, o fid.ObjectID, shrink bool) error {
	return s.ns.UpdateLVB(e, ldlm.ObjectRes(o), nil, !shrink)
}
