package check

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/server/mdt"
	"github.com/strakefs/strake/server/mgs"
	"github.com/strakefs/strake/server/osp"
	"github.com/strakefs/strake/server/ost"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
	"github.com/strakefs/strake/store/boltdev"
)

// Device is a device with its label.
type Device interface {
	store.Device
	store.Labeled
}

// mdtTables are the tables of an MDT's device by their places in mdtSpecs.
type mdtTables struct {
	mdt                 mdt.Tables
	osp                 osp.Tables
	clients, slots, mgs store.Table
}

// mdtSpecs are the tables of an MDT's device. Places count in this process only; on disk tables have names.
func mdtSpecs() ([]store.Spec, mdtTables) {
	specs := mdt.Specs()
	t := mdtTables{mdt: mdt.TablesAt(0), clients: store.Table(len(specs)), slots: store.Table(len(specs) + 1)}
	specs = append(specs, target.Specs()...)
	t.osp = osp.TablesAt(store.Table(len(specs)))
	specs = append(specs, osp.Specs()...)
	t.mgs = store.Table(len(specs))
	return append(specs, mgs.Spec()), t
}

// MDTSpecs are the tables that the device of an MDT is opened with for a Set.
func MDTSpecs() []store.Spec {
	s, _ := mdtSpecs()
	return s
}

// ostClients and ostSlots are the places of package target's tables in ost.Specs.
const (
	ostClients store.Table = 0
	ostSlots   store.Table = 1
)

// mdtSide is the metadata target.
type mdtSide struct {
	name    string
	index   uint32
	records target.Records
	dev     Device // nil on a running one
	tables  mdtTables
	key     []byte
}

// ostSide is an OST.
type ostSide struct {
	name    string
	index   layout.OSTIndex
	records target.Records
	dev     Device
	stat    func(ctx context.Context, group uint32, ids []uint64, fn func(i int, there bool, size, blocks int64)) error
}

// Set is the targets of a file system, or some of them.
type Set struct {
	FSName string
	online bool
	mdt    *mdtSide
	osts   []*ostSide
	close  []func() error
}

// NewSet makes a set of devices that are open: of one MDT, opened with MDTSpecs, and OSTs, opened with ost.Specs. The
// caller closes them.
func NewSet(devices ...Device) (*Set, error) {
	s := &Set{}
	for _, d := range devices {
		if err := s.add(d); err != nil {
			return nil, err
		}
	}
	sort.Slice(s.osts, func(i, j int) bool { return s.osts[i].index < s.osts[j].index })
	return s, nil
}

func (s *Set) add(d Device) error {
	l := d.Label()
	if s.FSName == "" {
		s.FSName = l.FSName
	}
	if l.FSName != s.FSName {
		return fmt.Errorf("folders of two file systems, %q and %q", s.FSName, l.FSName)
	}
	if l.Index < 0 {
		return fmt.Errorf("an %s that was never registered: there is nothing on it", l.Kind)
	}
	switch l.Kind {
	case store.KindMDT:
		if s.mdt != nil {
			return errors.New("two MDTs, a file system has one")
		}
		_, tables := mdtSpecs()
		s.mdt = &mdtSide{name: mgs.TargetName(l.FSName, mgs.KindMDT, uint32(l.Index)), index: uint32(l.Index),
			records: target.DeviceRecords{KV: d}, dev: d, tables: tables, key: l.FSKey}
	case store.KindOST:
		i := layout.OSTIndex(l.Index)
		if slices.ContainsFunc(s.osts, func(o *ostSide) bool { return o.index == i }) {
			return fmt.Errorf("two folders of OST%04x", uint32(i))
		}
		s.osts = append(s.osts, &ostSide{name: mgs.TargetName(l.FSName, mgs.KindOST, uint32(i)), index: i,
			records: target.DeviceRecords{KV: d}, dev: d,
			stat: func(_ context.Context, group uint32, ids []uint64, fn func(int, bool, int64, int64)) error {
				return ost.Stat(d.Objects(), group, ids, fn)
			}})
	default:
		return fmt.Errorf("a folder of kind %q", l.Kind)
	}
	return nil
}

// Open opens data folders of targets that do not run, each by its own folder or all below one base folder. Without write they
// are only read. A folder in use is refused (boltdev.ErrInUse). Close gives them back.
func Open(dirs []string, write bool) (_ *Set, err error) {
	var devices []Device
	s := &Set{}
	defer func() {
		if err != nil {
			for _, d := range devices {
				err = errors.Join(err, d.Close())
			}
		}
	}()
	for _, dir := range dirs {
		all, err := expand(dir)
		if err != nil {
			return nil, err
		}
		for _, dir := range all {
			d, err := openDevice(dir, write)
			if err != nil {
				return nil, err
			}
			devices = append(devices, d)
			s.close = append(s.close, d.Close)
		}
	}
	made, err := NewSet(devices...)
	if err != nil {
		return nil, err
	}
	made.close = s.close
	return made, nil
}

// metaName is the database in a data folder.
const metaName = "meta.db"

// expand gives the data folders that a folder stands for: itself, or those in it.
func expand(dir string) ([]string, error) {
	if _, err := os.Stat(filepath.Join(dir, metaName)); err == nil {
		return []string{dir}, nil
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("data folder %s: %w", dir, err)
	}
	var all []string
	for _, n := range names {
		below := filepath.Join(dir, n.Name())
		if strings.HasPrefix(n.Name(), "mdt") || strings.HasPrefix(n.Name(), "ost") {
			if _, err := os.Stat(filepath.Join(below, metaName)); err == nil {
				all = append(all, below)
			}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("data folder %s: %w: there is no %s, nor a target's folder with one", dir, boltdev.ErrForeign, metaName)
	}
	return all, nil
}

// openDevice opens a folder as what its label says.
func openDevice(dir string, write bool) (Device, error) {
	d, err := boltdev.Open(boltdev.Options{Dir: dir, ReadOnly: true})
	if err != nil {
		return nil, err
	}
	kind := d.Label().Kind
	if err := d.Close(); err != nil {
		return nil, err
	}
	specs := ost.Specs()
	if kind == store.KindMDT {
		specs = MDTSpecs()
	}
	return boltdev.Open(boltdev.Options{Dir: dir, Specs: specs, ReadOnly: !write})
}

// Close gives back what Open has opened. With write it commits.
func (s *Set) Close() error {
	var errs []error
	for i := len(s.close) - 1; i >= 0; i-- {
		errs = append(errs, s.close[i]())
	}
	s.close = nil
	return errors.Join(errs...)
}
