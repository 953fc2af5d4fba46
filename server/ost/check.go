package ost

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
)

// ProblemKind is what an OST's records say that cannot be. The texts never change.
type ProblemKind string

// Kinds of problems of an OST's own records. Beside each: what Repairer.Fix does.
const (
	// ProblemRecord: a record does not decode. It goes, and a group's is made anew from its objects.
	ProblemRecord ProblemKind = "bad-record"
	// ProblemUsage: what an id is charged is not the sum over the objects. It is set.
	ProblemUsage ProblemKind = "usage"
)

// Problem is one thing that is wrong. Two of the same Key are the same.
type Problem struct {
	Kind      ProblemKind
	Table     store.Table
	RecordKey string
	Detail    string
	// Settled is false for what may have changed while it was looked at.
	Settled bool
	want    usage
}

// Key names the problem.
func (p *Problem) Key() string { return fmt.Sprintf("%s %d %q", p.Kind, p.Table, p.RecordKey) }

// Object is an object's record as a checker sees it.
type Object struct {
	ID     fid.ObjectID
	Owner  fid.FID
	Stripe uint32
	// Owned says that UID, GID and Project are known.
	Owned             bool
	UID, GID, Project uint32
	Size, Blocks      uint64
}

// Group is what an OST keeps of the objects of one metadata target.
type Group struct {
	Last, Fresh uint64
}

// State is what an OST's tables say as a whole.
type State struct {
	// Clean says that the last stop was clean: every record agrees with its file.
	Clean bool
	// Committed is the newest number on disk.
	Committed uint64
	Groups    map[uint32]Group
	Hot       uint64 // objects marked
	Objects   uint64 // records
	// Clients counts the mounts that may still have something to send again.
	Clients int
}

// TableObjects is the table of object records, for who reads a target's records over the wire.
const TableObjects = tableObjects

// DecodeObject reads an object's record.
func DecodeObject(k, v []byte) (Object, error) {
	id, err := fid.ObjectFromKey(k)
	if err != nil || len(k) != fid.ObjectKeySize {
		return Object{}, fmt.Errorf("an object record with a key of %d bytes", len(k))
	}
	var r record
	if err := r.parse(v); err != nil {
		return Object{ID: id}, err
	}
	return Object{ID: id, Owner: r.owner, Stripe: r.stripe, Owned: r.owned, UID: r.uid, GID: r.gid, Project: r.project,
		Size: r.size, Blocks: r.blocks}, nil
}

// DecodeGroup reads the record of a group.
func DecodeGroup(k, v []byte) (id uint32, g Group, err error) {
	if len(k) != 4 || len(v) != groupSize || v[0] != tableVersion || number(v, 9) > number(v, 1) {
		return 0, g, fmt.Errorf("a group of %d and %d bytes, or of a version that is not known", len(k), len(v))
	}
	return binary.BigEndian.Uint32(k), Group{Last: number(v, 1), Fresh: number(v, 9)}, nil
}

// DecodeUsage reads what an id is charged: kind is uid, gid or project; blocks are of 512 bytes.
func DecodeUsage(k, v []byte) (kind string, id uint32, blocks, objects int64, err error) {
	if len(k) != 5 || len(v) != usageSize || k[0] != 'u' && k[0] != 'g' && k[0] != 'p' {
		return "", 0, 0, 0, fmt.Errorf("usage of %d and %d bytes", len(k), len(v))
	}
	return idName(k[0]), binary.BigEndian.Uint32(k[1:]), int64(number(v, 0)), int64(number(v, 8)), nil
}

// DecodeMeta reads the record of the whole: whether the last stop was clean, and the newest number on disk.
func DecodeMeta(_, v []byte) (clean bool, committed uint64, err error) {
	if len(v) != metaSize || v[0] != tableVersion {
		return false, 0, fmt.Errorf("a meta record of %d bytes, or of a version that is not known", len(v))
	}
	return v[1] == 1, number(v, 2), nil
}

// usage is what an id is charged.
type usage struct{ blocks, objects int64 }

func (u usage) String() string { return fmt.Sprintf("%d blocks in %d objects", u.blocks, u.objects) }

// checkRun is one check of an OST's own records.
type checkRun struct {
	r      target.Records
	object func(Object)
	state  State
	sums   map[[5]byte]usage
	found  []*Problem
}

func (c *checkRun) bad(t store.Table, k []byte, err error) {
	c.found = append(c.found, &Problem{Kind: ProblemRecord, Table: t, RecordKey: string(k), Detail: err.Error(), Settled: true})
}

// Check goes over the records of an OST: each object's is given to object, in the order of ids, and the usage counters are
// held against their sum. On a running target a counter that moves meanwhile is not settled. It keeps 100 bytes for each uid,
// gid and project, and each problem.
func Check(ctx context.Context, r target.Records, object func(Object)) (State, []*Problem, error) {
	c := &checkRun{r: r, object: object, state: State{Groups: map[uint32]Group{}}, sums: map[[5]byte]usage{}}
	before, err := c.counters(ctx, true)
	if err == nil {
		err = r.Scan(ctx, tableObjects, nil, c.record)
	}
	var after map[[5]byte]usage
	if err == nil {
		after, err = c.counters(ctx, false)
	}
	if err == nil {
		err = c.rest(ctx)
	}
	if err != nil {
		return State{}, nil, fmt.Errorf("ost: check: %w", err)
	}
	for k := range before {
		c.compare(k, before[k], after[k])
	}
	for k := range c.sums {
		if _, ok := before[k]; !ok {
			c.compare(k, usage{}, after[k])
		}
	}
	return c.state, c.found, nil
}

// compare holds a counter, as it was before and after the records were read, against their sum.
func (c *checkRun) compare(k [5]byte, before, after usage) {
	if sum := c.sums[k]; sum != before {
		c.found = append(c.found, &Problem{Kind: ProblemUsage, Table: tableUsage, RecordKey: string(k[:]), Settled: before == after, want: sum,
			Detail: fmt.Sprintf("%s %d is charged %v, its objects are %v", idName(k[0]), binary.BigEndian.Uint32(k[1:]), before, sum)})
	}
}

// idName names a kind of id.
func idName(kind byte) string {
	switch kind {
	case 'u':
		return "uid"
	case 'g':
		return "gid"
	}
	return "project"
}

func (c *checkRun) counters(ctx context.Context, report bool) (map[[5]byte]usage, error) {
	all := map[[5]byte]usage{}
	return all, c.r.Scan(ctx, tableUsage, nil, func(k, v []byte) bool {
		_, _, blocks, objects, err := DecodeUsage(k, v)
		if err == nil {
			all[[5]byte(k)] = usage{blocks, objects}
		} else if report {
			c.bad(tableUsage, k, err)
		}
		return true
	})
}

func (c *checkRun) record(k, v []byte) bool {
	o, err := DecodeObject(k, v)
	if err != nil {
		c.bad(tableObjects, k, err)
		return true
	}
	c.state.Objects++
	if o.Owned {
		for _, id := range ownersOf(&charge{uid: o.UID, gid: o.GID, project: o.Project}) {
			s := c.sums[id]
			c.sums[id] = usage{s.blocks + int64(o.Blocks), s.objects + 1}
		}
	}
	if c.object != nil {
		c.object(o)
	}
	return true
}

// ownersOf are the keys of the counters that a charge goes to.
func ownersOf(r *charge) (keys [3][5]byte) {
	for i, id := range [...]uint32{r.uid, r.gid, r.project} {
		keys[i][0] = "ugp"[i]
		binary.BigEndian.PutUint32(keys[i][1:], id)
	}
	return keys
}

// rest reads groups, marks and the record of the whole.
func (c *checkRun) rest(ctx context.Context) error {
	err := c.r.Scan(ctx, tableGroups, nil, func(k, v []byte) bool {
		id, g, err := DecodeGroup(k, v)
		if err != nil {
			c.bad(tableGroups, k, err)
			return true
		}
		c.state.Groups[id] = g
		return true
	})
	if err != nil {
		return err
	}
	err = c.r.Scan(ctx, tableHot, nil, func(k, _ []byte) bool {
		if _, err := fid.ObjectFromKey(k); err != nil || len(k) != fid.ObjectKeySize {
			c.bad(tableHot, k, fmt.Errorf("a mark with a key of %d bytes", len(k)))
			return true
		}
		c.state.Hot++
		return true
	})
	if err != nil {
		return err
	}
	c.state.Clean = true
	return c.r.Scan(ctx, tableMeta, nil, func(k, v []byte) bool {
		if string(k) != string(metaKey) {
			return true
		}
		var err error
		if c.state.Clean, c.state.Committed, err = DecodeMeta(k, v); err != nil {
			c.bad(tableMeta, k, err)
		}
		return true
	})
}

// Stat tells which objects of one group have a file, and its size and blocks: at i for ids[i].
func Stat(dev store.Objects, group uint32, ids []uint64, fn func(i int, there bool, size, blocks int64)) error {
	for i, id := range ids {
		h, err := dev.Open(fid.ObjectID{Group: group, ID: id})
		if errors.Is(err, store.ErrNotFound) {
			fn(i, false, 0, 0)
			continue
		}
		if err != nil {
			return fmt.Errorf("ost: object %d of group %d: %w", id, group, err)
		}
		size, blocks, err := h.Stat()
		if err = errors.Join(err, h.Close()); err != nil {
			return fmt.Errorf("ost: object %d of group %d: %w", id, group, err)
		}
		fn(i, true, size, blocks)
	}
	return nil
}

// Repairer mends the records and objects of an OST that does not run.
type Repairer struct {
	dev store.Device
	e   *env.Env
}

// NewRepairer makes one for a device that was opened with Specs.
func NewRepairer(dev store.Device) *Repairer { return &Repairer{dev: dev, e: env.New()} }

func (r *Repairer) publish(ctx context.Context, fn func(tx *store.Tx) error) error {
	r.e.Reset()
	if err := r.dev.Throttle(ctx, true); err != nil {
		return fmt.Errorf("ost: repair: %w", err)
	}
	tx := r.dev.Begin(r.e)
	if err := fn(tx); err != nil || tx.Empty() {
		return err
	}
	if _, err := r.dev.Publish(tx); err != nil {
		return fmt.Errorf("ost: repair: %w", err)
	}
	return nil
}

// Fix mends one problem of Check's and says what it did.
func (r *Repairer) Fix(ctx context.Context, p *Problem) (done string, err error) {
	key := []byte(p.RecordKey)
	err = r.publish(ctx, func(tx *store.Tx) error {
		switch {
		case p.Kind == ProblemUsage && p.want == usage{}:
			done = "counter removed"
			tx.Delete(tableUsage, key)
		case p.Kind == ProblemUsage:
			done = fmt.Sprintf("set to %v", p.want)
			v := binary.BigEndian.AppendUint64(nil, uint64(p.want.blocks))
			tx.Put(tableUsage, key, binary.BigEndian.AppendUint64(v, uint64(p.want.objects)))
		case p.Table == tableGroups && len(key) == 4:
			last, err := r.highest(binary.BigEndian.Uint32(key))
			if err != nil {
				return err
			}
			// All of them are hot, so that the next start looks at each.
			done = fmt.Sprintf("made anew, last object %d", last)
			tx.Put(tableGroups, key, putGroup(make([]byte, groupSize), last, 0))
		case p.Table == tableMeta:
			done = "made anew, as after a crash"
			tx.Put(tableMeta, key, putMeta(make([]byte, metaSize), false, 0), metaStampAt)
		default:
			done = "record removed"
			tx.Delete(p.Table, key)
		}
		return nil
	})
	return done, err
}

// highest is the highest id of a group's files.
func (r *Repairer) highest(group uint32) (last uint64, err error) {
	err = r.dev.Objects().Walk(group, func(id fid.ObjectID) bool {
		last = max(last, id.ID)
		return true
	})
	return last, err
}

// load reads an object's record; one without is as a new one.
func (r *Repairer) load(id fid.ObjectID) (*object, error) {
	ob := &object{id: id}
	err := (&OST{o: Options{Device: r.dev}}).loadRecordLocked(r.e, ob)
	return ob, err
}

// SetObject makes the record of an object say what o says, the size and blocks of its file included, and moves what is charged.
func (r *Repairer) SetObject(ctx context.Context, o Object) error {
	return r.publish(ctx, func(tx *store.Tx) error {
		ob, err := r.load(o.ID)
		if err != nil {
			return err
		}
		ob.rec.owner, ob.rec.stripe = o.Owner, o.Stripe
		ob.rec.owned, ob.rec.uid, ob.rec.gid, ob.rec.project = o.Owned, o.UID, o.GID, o.Project
		ob.rec.blocks = o.Blocks
		ob.size.Store(int64(o.Size))
		ob.saveLocked(tx, r.e)
		return nil
	})
}

// Create makes an empty object. It is durable with the device's next flush.
func (r *Repairer) Create(id fid.ObjectID) error {
	if err := r.dev.Objects().Create([]fid.ObjectID{id}); err != nil {
		return fmt.Errorf("ost: repair: object %v: %w", id, err)
	}
	return nil
}

// Destroy removes an object: its file, its record, its mark, and what it is charged.
func (r *Repairer) Destroy(ctx context.Context, id fid.ObjectID) error {
	if err := r.dev.Objects().Remove(id); err != nil && !errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("ost: repair: object %v: %w", id, err)
	}
	return r.publish(ctx, func(tx *store.Tx) error {
		ob, err := r.load(id)
		if err != nil {
			return err
		}
		if ob.recorded {
			addUsage(tx, r.e, &ob.saved, -int64(ob.saved.blocks), -1)
			tx.Delete(tableObjects, objectKey(r.e, id))
		}
		tx.Delete(tableHot, objectKey(r.e, id))
		return nil
	})
}

// SetLast moves the last id of a group up to last.
func (r *Repairer) SetLast(ctx context.Context, group uint32, last uint64) error {
	return r.publish(ctx, func(tx *store.Tx) error {
		key := binary.BigEndian.AppendUint32(nil, group)
		fresh := uint64(0)
		v, err := r.dev.Get(r.e, tableGroups, key)
		if err == nil && len(v) == groupSize {
			fresh = number(v, 9)
			last = max(last, number(v, 1))
		} else if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		tx.Put(tableGroups, key, putGroup(make([]byte, groupSize), last, fresh))
		return nil
	})
}
