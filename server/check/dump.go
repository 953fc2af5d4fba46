package check

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/server/mdt"
	"github.com/strakefs/strake/server/ost"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
)

// Field is one thing that a record says.
type Field struct {
	Name  string
	Value any
}

// Fields are what a record says, in the order in which people read it. As JSON they are one object.
type Fields []Field

// MarshalJSON implements json.Marshaler.
func (f Fields) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, x := range f {
		if i > 0 {
			b = append(b, ',')
		}
		name, err := json.Marshal(x.Name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(x.Value)
		if err != nil {
			return nil, err
		}
		b = append(append(append(b, name...), ':'), value...)
	}
	return append(b, '}'), nil
}

func (f *Fields) add(name string, value any) { *f = append(*f, Field{name, value}) }

// Dump shows the records of one target's device.
type Dump struct {
	name    string
	label   store.Label
	mdt     bool
	dev     Device
	specs   []store.Spec
	records target.Records
	tables  mdtTables
}

// Dumps are the targets of a set that was opened from folders.
func (s *Set) Dumps() []*Dump {
	var all []*Dump
	if m := s.mdt; m != nil && m.dev != nil {
		all = append(all, &Dump{name: m.name, label: m.dev.Label(), mdt: true, dev: m.dev, specs: MDTSpecs(), records: m.records, tables: m.tables})
	}
	for _, o := range s.osts {
		if o.dev != nil {
			all = append(all, &Dump{name: o.name, label: o.dev.Label(), dev: o.dev, specs: ost.Specs(), records: o.records})
		}
	}
	return all
}

// Name is the target's.
func (d *Dump) Name() string { return d.name }

// MDT reports whether it is a metadata target.
func (d *Dump) MDT() bool { return d.mdt }

// Tables are the names of the target's tables.
func (d *Dump) Tables() []string {
	names := make([]string, len(d.specs))
	for i, s := range d.specs {
		names[i] = s.Name
	}
	return names
}

// Head is what the target is, with the number of records in each table. Secrets are not shown.
func (d *Dump) Head(ctx context.Context) (Fields, error) {
	l := d.label
	f := Fields{{"target", d.name}, {"fsname", l.FSName}, {"kind", string(l.Kind)}, {"index", l.Index}, {"uuid", l.UUID}, {"fs_uuid", l.FSUUID},
		{"last_committed", hexOf(uint64(d.dev.Committed()))}}
	if d.mdt {
		f.add("name_key_bytes", len(l.FSKey))
	}
	counts := Fields{}
	for i, s := range d.specs {
		n := 0
		if err := d.records.Scan(ctx, store.Table(i), nil, func(_, _ []byte) bool { n++; return true }); err != nil {
			return nil, fmt.Errorf("%s: table %s: %w", d.name, s.Name, err)
		}
		counts.add(s.Name, n)
	}
	f.add("records", counts)
	return f, nil
}

func hexOf(n uint64) string { return fmt.Sprintf("%#x", n) }

// errNoTable is a table that the target does not have.
var errNoTable = errors.New("no such table")

// Table gives every record of a table to fn until it returns false.
func (d *Dump) Table(ctx context.Context, table string, fn func(Fields) bool) error {
	for i, s := range d.specs {
		if s.Name == table {
			return d.records.Scan(ctx, store.Table(i), nil, func(k, v []byte) bool { return fn(d.decode(table, k, v)) })
		}
	}
	return fmt.Errorf("%s: %w: %q", d.name, errNoTable, table)
}

// decode reads a record of a table. What does not decode is shown as it is, with the reason.
func (d *Dump) decode(table string, k, v []byte) Fields {
	var f Fields
	err := errors.New("nothing here knows these records")
	if fn := decoders(d.mdt)[table]; fn != nil {
		f, err = fn(k, v)
	}
	if err != nil {
		f = Fields{{"key", hex.EncodeToString(k)}, {"value", hex.EncodeToString(v[:min(len(v), 256)])}, {"bytes", len(v)}, {"error", err.Error()}}
	}
	return f
}

// Find looks a path up. Only an MDT has paths.
func (d *Dump) Find(ctx context.Context, path string) (fid.FID, error) {
	if !d.mdt {
		return fid.FID{}, fmt.Errorf("%s has no names: give the MDT's folder", d.name)
	}
	return mdt.Find(ctx, d.records, d.tables.mdt, d.label.FSKey, path)
}

// Inode shows an inode with its path, and the entries of a folder, at most limit of them.
func (d *Dump) Inode(ctx context.Context, x fid.FID, limit int) (Fields, error) {
	if !d.mdt {
		return nil, fmt.Errorf("%s has no inodes: give the MDT's folder", d.name)
	}
	key := x.AppendKey(nil)
	v, err := d.records.Get(ctx, d.tables.mdt.Inode, key)
	if errors.Is(err, store.ErrNotFound) {
		return nil, fmt.Errorf("%s: no inode %v", d.name, x)
	}
	if err != nil {
		return nil, err
	}
	f := d.decode("inode", key, v)
	if path, ok := mdt.PathOf(ctx, d.records, d.tables.mdt, x); ok {
		f = append(Fields{{"path", path}}, f...)
	}
	var entries []Fields
	err = d.records.Scan(ctx, d.tables.mdt.Dirent, mdt.EntryKey(x), func(k, v []byte) bool {
		if !bytes.HasPrefix(k, key) || len(entries) == limit {
			return false
		}
		entries = append(entries, d.decode("dirent", k, v))
		return true
	})
	if len(entries) > 0 {
		f.add("entries", entries)
	}
	return f, err
}

// Object shows an object: its record, and its file as it is.
func (d *Dump) Object(ctx context.Context, id fid.ObjectID) (Fields, error) {
	if d.mdt {
		return nil, fmt.Errorf("%s has no objects: give an OST's folder", d.name)
	}
	f := Fields{{"target", d.name}, {"object", objectText(id)}}
	key := id.AppendKey(nil)
	v, err := d.records.Get(ctx, ost.TableObjects, key)
	switch {
	case err == nil:
		f = append(Fields{{"target", d.name}}, d.decode("objects", key, v)...)
	case !errors.Is(err, store.ErrNotFound):
		return nil, err
	default:
		f.add("record", "none")
	}
	err = ost.Stat(d.dev.Objects(), id.Group, []uint64{id.ID}, func(_ int, there bool, size, blocks int64) {
		f.add("file", there)
		if there {
			f.add("file_size", size)
			f.add("file_blocks", blocks)
		}
	})
	return f, err
}
