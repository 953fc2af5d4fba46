package target

import (
	"bytes"
	"context"
	"errors"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/store"
)

// Bounds of one INSPECT: a worker is busy with it for some milliseconds, and its answer fits a frame with the largest record.
const (
	inspectBytes   = 128 << 10
	inspectRecords = 4096
	// InspectObjects is the most objects of one request.
	InspectObjects = 1024
)

// Inspector answers INSPECT, by which a tool reads the records of a running target.
type Inspector struct {
	KV store.KV
	// Tables are those that are shown, by name.
	Tables map[string]store.Table
	// Stat tells of the objects of a group, as ost.Stat does; nil where there are none.
	Stat func(group uint32, ids []uint64, fn func(i int, there bool, size, blocks int64)) error
}

// NamesOf maps the names of specs to their places, but for those left out.
func NamesOf(specs []store.Spec, without ...string) map[string]store.Table {
	names := map[string]store.Table{}
	for i, s := range specs {
		names[s.Name] = store.Table(i)
	}
	for _, n := range without {
		delete(names, n)
	}
	return names
}

// Serve answers a call of an export, which must be a tool's.
func (i *Inspector) Serve(e *env.Env, x *Export, c *rpc.Call) error {
	if x.Kind != rpc.KindTool {
		return status.Errorf(status.Perm, "%v is for tools", c.Header.Op)
	}
	m, r := &wirepb.InspectRequest{}, &wirepb.InspectReply{}
	if err := c.Decode(m); err != nil {
		return err
	}
	c.Reply = r
	if len(m.Ids) > 0 {
		return i.objects(m, r)
	}
	t, ok := i.Tables[string(m.Table)]
	if !ok {
		return status.Errorf(status.NotExist, "no table %q to look at", trim(m.Table))
	}
	if m.Exact {
		v, err := i.KV.Get(e, t, m.From)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		r.Keys, r.Values = append(r.Keys, m.From), append(r.Values, v)
		return Status(err)
	}
	return Status(i.scan(e, t, m, r))
}

func (i *Inspector) scan(e *env.Env, t store.Table, m *wirepb.InspectRequest, r *wirepb.InspectReply) error {
	limit := min(int(min(m.Limit, inspectBytes)), inspectBytes)
	size := 0
	return i.KV.Scan(e, t, m.From, nil, func(k, v []byte) bool {
		if m.KeysOnly {
			v = nil
		}
		size += len(k) + len(v)
		if len(r.Keys) > 0 && (size > limit || len(r.Keys) == inspectRecords) {
			r.More = true
			return false
		}
		r.Keys, r.Values = append(r.Keys, bytes.Clone(k)), append(r.Values, bytes.Clone(v))
		return true
	})
}

func (i *Inspector) objects(m *wirepb.InspectRequest, r *wirepb.InspectReply) error {
	if i.Stat == nil || len(m.Ids) > InspectObjects {
		return status.Errorf(status.Invalid, "%d objects to look at, at most %d on an OST", len(m.Ids), InspectObjects)
	}
	return Status(i.Stat(m.Group, m.Ids, func(_ int, there bool, size, blocks int64) {
		r.There, r.Sizes, r.Blocks = append(r.There, there), append(r.Sizes, uint64(size)), append(r.Blocks, uint64(blocks))
	}))
}

// RemoteRecords are the records of a running target. Import is a tool's.
type RemoteRecords struct {
	Import *rpc.Import
	// Specs name the tables by the places that callers use.
	Specs []store.Spec
	// KeysOnly are the tables whose values nobody wants.
	KeysOnly store.Table
}

// NoTable is a KeysOnly that is none.
const NoTable store.Table = 255

func (r *RemoteRecords) ask(ctx context.Context, m *wirepb.InspectRequest) (*wirepb.InspectReply, error) {
	reply := &wirepb.InspectReply{}
	err := r.Import.Do(ctx, &rpc.Request{Op: wire.OpInspect, Body: m, Reply: reply})
	if err == nil && (len(reply.Keys) != len(reply.Values) || len(reply.There) != len(reply.Sizes) || len(reply.There) != len(reply.Blocks)) {
		err = status.Errorf(status.Protocol, "an answer of %d keys with %d values", len(reply.Keys), len(reply.Values))
	}
	return reply, err
}

// Scan implements Records.
func (r *RemoteRecords) Scan(ctx context.Context, t store.Table, from []byte, fn func(key, value []byte) bool) error {
	m := &wirepb.InspectRequest{Table: []byte(r.Specs[t].Name), From: from, Limit: inspectBytes, KeysOnly: t == r.KeysOnly}
	for {
		reply, err := r.ask(ctx, m)
		if err != nil {
			return err
		}
		for i, k := range reply.Keys {
			if string(k) < string(m.From) {
				return status.Errorf(status.Protocol, "records of table %s out of order", m.Table)
			}
			if !fn(k, reply.Values[i]) {
				return nil
			}
			m.From = k
		}
		if !reply.More || len(reply.Keys) == 0 {
			return nil
		}
		m.From = append(m.From[:len(m.From):len(m.From)], 0)
	}
}

// Get implements Records.
func (r *RemoteRecords) Get(ctx context.Context, t store.Table, key []byte) ([]byte, error) {
	reply, err := r.ask(ctx, &wirepb.InspectRequest{Table: []byte(r.Specs[t].Name), From: key, Exact: true})
	if err != nil {
		return nil, err
	}
	if len(reply.Values) != 1 {
		return nil, store.ErrNotFound
	}
	return reply.Values[0], nil
}

// Stat tells of objects of a running OST, at most InspectObjects.
func (r *RemoteRecords) Stat(ctx context.Context, group uint32, ids []uint64, fn func(i int, there bool, size, blocks int64)) error {
	reply, err := r.ask(ctx, &wirepb.InspectRequest{Group: group, Ids: ids})
	if err != nil {
		return err
	}
	if len(reply.There) != len(ids) {
		return status.Errorf(status.Protocol, "%d objects asked for, %d answered", len(ids), len(reply.There))
	}
	for i := range ids {
		fn(i, reply.There[i], int64(reply.Sizes[i]), int64(reply.Blocks[i]))
	}
	return nil
}
