package client

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/mdc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/virtual"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// Info and Target are what the tools are told; package virtual describes them.
type (
	Info   = virtual.Info
	Target = virtual.Target
)

// Virtual reports whether the client answers an extended attribute itself.
func Virtual(name string) bool {
	return strings.HasPrefix(name, attr.XattrStrake) || strings.HasPrefix(name, attr.XattrLustre)
}

// GetVirtual appends the value of a virtual attribute to dst.
func (c *Client) GetVirtual(ctx context.Context, who *mdc.Caller, f fid.FID, name string, dst []byte) ([]byte, error) {
	switch name {
	case virtual.FID:
		return append(dst, f.String()...), nil
	case virtual.Layout, virtual.Lov:
		return c.layoutOf(ctx, who, f, dst)
	case virtual.Paths:
		return c.pathsOf(ctx, who, f, dst)
	case virtual.About:
		return appendJSON(dst, c.info())
	case virtual.Space:
		return c.space(ctx, dst)
	}
	if text, ok := strings.CutPrefix(name, virtual.PathsOf); ok {
		g, err := fid.Parse(text)
		if err != nil {
			return dst, status.Errorf(status.Invalid, "client: %v", err)
		}
		return c.pathsOf(ctx, who, g, dst)
	}
	return dst, status.NoData
}

func (c *Client) layoutOf(ctx context.Context, who *mdc.Caller, f fid.FID, dst []byte) ([]byte, error) {
	e := c.entry()
	defer c.putEntry(e)
	if err := c.mdc.Getattr(ctx, who, f, e); err != nil {
		return dst, err
	}
	if len(e.Layout) == 0 {
		return dst, status.NoData
	}
	return append(dst, e.Layout...), nil
}

func (c *Client) pathsOf(ctx context.Context, who *mdc.Caller, f fid.FID, dst []byte) ([]byte, error) {
	paths, err := c.mdc.Paths(ctx, who, f, -1)
	if err != nil {
		return dst, err
	}
	for _, p := range paths {
		dst = append(append(dst, p...), 0)
	}
	return dst, nil
}

func appendJSON(dst []byte, v any) ([]byte, error) {
	b, err := json.Marshal(v)
	return append(dst, b...), err
}

func (c *Client) info() *Info {
	if c.opts.Info == nil {
		return &Info{}
	}
	return c.opts.Info()
}

func (c *Client) space(ctx context.Context, dst []byte) ([]byte, error) {
	var out []virtual.TargetSpace
	names := make(map[uint32]string)
	for _, t := range c.info().Targets {
		switch t.Kind {
		case virtual.KindOST:
			names[t.Index] = t.Name
			continue
		case virtual.KindMDT:
		default: // an MGS holds no files
			continue
		}
		s := virtual.TargetSpace{Name: t.Name, Kind: t.Kind, Index: t.Index}
		var m wirepb.StatfsReply
		if err := c.mdc.Statfs(ctx, &m); err != nil {
			s.Error = err.Error()
		}
		s.Total, s.Free, s.Avail, s.Inodes, s.FreeInodes = m.TotalBytes, m.FreeBytes, m.AvailBytes, m.Inodes, m.FreeInodes
		out = append(out, s)
	}
	d, err := c.data.Statfs(ctx)
	if err != nil && len(d.OSTs) == 0 { // else each says its own reason below
		return dst, err
	}
	for _, o := range d.OSTs {
		s := virtual.TargetSpace{Name: names[uint32(o.Index)], Kind: virtual.KindOST, Index: uint32(o.Index)}
		s.Total, s.Free, s.Avail, s.Inodes, s.FreeInodes = o.Total, o.Free, o.Avail, o.Inodes, o.FreeInodes
		if o.Err != nil {
			s.Error = o.Err.Error()
		}
		out = append(out, s)
	}
	return appendJSON(dst, out)
}

// SetVirtual sets a virtual attribute; only layouts can be set. An empty value removes a folder's default.
func (c *Client) SetVirtual(ctx context.Context, who *mdc.Caller, f fid.FID, name string, value []byte) error {
	if name != virtual.Layout && name != virtual.Lov {
		return status.NotSupport
	}
	if c.opts.ReadOnly {
		return status.ReadOnly
	}
	var l layout.Layout
	if err := l.Decode(value); err != nil {
		return fmt.Errorf("client: set layout of %v: %w", f, err)
	}
	e := c.entry()
	defer c.putEntry(e)
	c.stale(f.Ino())
	err := c.mdc.SetLayout(ctx, who, f, value, e)
	if err == nil {
		c.changed(f.Ino())
		c.detach(f.Ino())
	}
	return err
}
