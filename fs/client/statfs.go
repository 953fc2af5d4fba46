package client

import (
	"context"

	"github.com/strakefs/strake/fs/wire/wirepb"
)

// Statfs is what df shows of the whole file system. Bytes are the sums over the OSTs that answer.
type Statfs struct {
	Total, Free, Avail uint64
	Inodes, FreeInodes uint64
}

// Statfs sums the OSTs' space and takes the inodes that both the MDT and the OSTs have room for.
func (c *Client) Statfs(ctx context.Context) (Statfs, error) {
	m := wirepb.StatfsReplyFromVTPool()
	defer m.ReturnToVTPool()
	if err := c.mdc.Statfs(ctx, m); err != nil {
		return Statfs{}, err
	}
	d, err := c.data.Statfs(ctx)
	if err != nil {
		return Statfs{}, err
	}
	s := Statfs{Total: d.Total, Free: d.Free, Avail: min(d.Avail, d.Free), Inodes: m.Inodes, FreeInodes: m.FreeInodes}
	if used := s.Inodes - min(s.FreeInodes, s.Inodes); d.FreeInodes < s.FreeInodes {
		s.FreeInodes = d.FreeInodes
		s.Inodes = used + s.FreeInodes
	}
	return s, nil
}
