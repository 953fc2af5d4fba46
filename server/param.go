package server

import (
	"context"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/status"
)

// SetPermanent keeps a permanent parameter at the MGS, or removes it when value is empty; see mgs.MGS.SetParam. A node
// that hosts no MGS refuses with status.WrongTarget.
func (n *Node) SetPermanent(ctx context.Context, name, value string) error {
	if n.mgs == nil {
		return status.Errorf(status.WrongTarget, "this process does not host the MGS")
	}
	return n.mgs.SetParam(ctx, env.New(), name, value)
}
