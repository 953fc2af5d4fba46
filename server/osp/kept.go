package osp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/store"
)

// A metadata target that was restored from a backup does not know the files made since, and their objects look like
// orphans. It keeps them until somebody who knows says what shall be (Settle). The table of what is kept:
//
//	key ff ff ff ff             the mode: version (1), 7 zero bytes, when the backup was made, Unix seconds (8)
//	key OST index 4, first id 8   objects first to last, of which no file is known: version (1), 7 zero bytes, last id (8)
const keptSize = 16

var keptMode = []byte{0xff, 0xff, 0xff, 0xff}

// MarkRestored puts into tx that the metadata target was restored from a backup made then: no OST destroys orphans until
// Settle. Call it before New.
func MarkRestored(tx *store.Tx, t Tables, made time.Time) {
	v := make([]byte, keptSize)
	v[0] = recordVersion
	binary.BigEndian.PutUint64(v[8:], uint64(made.Unix()))
	tx.Put(t.Kept, keptMode, v)
}

// Kept is a range of objects of one OST that no file is known for.
type Kept struct {
	OST         layout.OSTIndex
	First, Last uint64
}

// Restored is what a set keeps after a restore.
type Restored struct {
	// Made is when the backup was made.
	Made time.Time
	Kept []Kept
	// Unseen are the names of OSTs that have not told yet which objects they have.
	Unseen []string
	// Settling says that Settle is at work; Err is why the last one could not end.
	Settling bool
	Err      error
}

// keeper is the set's part of the mode.
type keeper struct {
	made     time.Time // zero: the mode is over, or never was
	settling bool
	err      error
	kept     []Kept
	bad      error // what reading it met: no OST is used then
}

// loadKept reads the mode.
func (s *Set) loadKept() error {
	var bad error
	err := s.o.Device.Scan(env.New(), s.o.Tables.Kept, nil, nil, func(k, v []byte) bool {
		switch {
		case len(v) != keptSize || v[0] != recordVersion || len(k) != 4 && len(k) != 12:
			bad = fmt.Errorf("osp: a record of kept objects of %d and %d bytes, or of a version that is not known", len(k), len(v))
		case len(k) == 4:
			s.keep.made = time.Unix(int64(number(v[8:])), 0)
		default:
			s.keep.kept = append(s.keep.kept, Kept{layout.OSTIndex(binary.BigEndian.Uint32(k)), number(k[4:]), number(v[8:])})
		}
		return bad == nil
	})
	return errors.Join(err, bad)
}

// keeps reports whether orphans are kept.
func (s *Set) keeps() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.keep.made.IsZero()
}

// Restored tells what is kept; false when the metadata target was not restored, or that is settled.
func (s *Set) Restored() (Restored, bool) {
	s.mu.Lock()
	r := Restored{Made: s.keep.made, Kept: slices.Clone(s.keep.kept), Settling: s.keep.settling, Err: s.keep.err}
	s.mu.Unlock()
	for _, o := range s.list() {
		if !o.cleaned.Load() {
			r.Unseen = append(r.Unseen, o.name)
		}
	}
	return r, !r.Made.IsZero()
}

// survey takes the place of cleanOrphans: the OST destroys nothing, what it has above the last used id is kept, on disk,
// and new files take objects behind it.
func (o *OSP) survey(ctx context.Context) error {
	o.mu.Lock()
	used := o.top
	o.mu.Unlock()
	s := o.set
	last, err := o.precreate(ctx, &wirepb.PrecreateRequest{Group: s.o.Group})
	if err != nil {
		return fmt.Errorf("which objects there are above %d: %w", used, err)
	}
	if last > used {
		r := Kept{o.index, used + 1, last}
		tx := s.o.Device.Begin(env.New())
		v := make([]byte, keptSize)
		v[0] = recordVersion
		binary.BigEndian.PutUint64(v[8:], last)
		tx.Put(s.o.Tables.Kept, keptKey(r), v)
		n, err := s.o.Device.Publish(tx)
		if err == nil {
			err = s.o.Device.WaitCommitted(ctx, n)
		}
		if err != nil {
			return fmt.Errorf("objects that are kept: %w", err)
		}
		s.mu.Lock()
		s.keep.kept = slices.DeleteFunc(s.keep.kept, func(k Kept) bool { return k.OST == r.OST && k.First == r.First })
		s.keep.kept = append(s.keep.kept, r)
		s.mu.Unlock()
		s.o.Log.Warn("objects that no file is known for are kept: the metadata target was restored from a backup",
			"ost", o.name, "first", r.First, "last", r.Last)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = max(last, used)
	o.cursor = o.last + 1
	return nil
}

func keptKey(r Kept) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, uint32(r.OST)), r.First)
}

// Settle ends the mode: with destroy the OSTs destroy what is kept, else it stays where it is and only a check of the
// whole file system will find it. It works in the background; Restored tells how it goes, and why it could not: an OST has to be
// connected, and what has been done is not done again. It returns an error when there is nothing to settle, when it is at
// work already, or when an OST has not been seen.
func (s *Set) Settle(destroy bool) error {
	var unseen []string
	for _, o := range s.list() {
		if !o.cleaned.Load() && !(destroy && o.switchedOff()) {
			unseen = append(unseen, o.name)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return store.ErrStopped
	case s.keep.made.IsZero():
		return status.Errorf(status.Invalid, "%s was not restored, or that is settled", s.o.Name)
	case s.keep.settling:
		return status.Errorf(status.Busy, "%s is being settled", s.o.Name)
	case len(unseen) > 0:
		return status.Errorf(status.Again, "%s: nobody knows yet what %s: start it", s.o.Name, strings.Join(unseen, ", "))
	}
	s.keep.settling, s.keep.err = true, nil
	s.done.Go(func() {
		err := s.settle(destroy)
		s.mu.Lock()
		s.keep.settling, s.keep.err = false, err
		if err == nil {
			s.keep.made = time.Time{}
		}
		s.mu.Unlock()
		if err != nil && s.ctx.Err() == nil {
			s.o.Log.Warn("objects that no file is known for are still kept", "target", s.o.Name, "err", err)
		}
	})
	return nil
}

func (s *Set) settle(destroy bool) error {
	for {
		s.mu.Lock()
		var r Kept
		left := len(s.keep.kept)
		if left > 0 {
			r = s.keep.kept[0]
		}
		s.mu.Unlock()
		if left == 0 {
			break
		}
		if err := s.settleOne(r, destroy); err != nil {
			return err
		}
		s.mu.Lock()
		s.keep.kept = slices.DeleteFunc(s.keep.kept, func(k Kept) bool { return k == r })
		s.mu.Unlock()
	}
	tx := s.o.Device.Begin(env.New())
	tx.Delete(s.o.Tables.Kept, keptMode)
	n, err := s.o.Device.Publish(tx)
	if err != nil {
		return err
	}
	return s.o.Device.WaitCommitted(s.ctx, n)
}

// settleLimit bounds how long one OST may take for one range.
const settleLimit = 10 * time.Minute

// settleOne settles one range and forgets it.
func (s *Set) settleOne(r Kept, destroy bool) error {
	if destroy {
		o := s.find(r.OST)
		if o == nil || !o.up.Load() {
			return status.Errorf(status.NotConnected, "%s is not connected: objects %d to %d are still kept", TargetName(s.o.FSName, r.OST), r.First, r.Last)
		}
		ctx, cancel := context.WithTimeout(s.ctx, settleLimit)
		defer cancel()
		if _, err := o.precreate(ctx, &wirepb.PrecreateRequest{Group: s.o.Group, Orphans: true, Used: r.First - 1, Upto: r.Last}); err != nil {
			return fmt.Errorf("%s: destroying objects %d to %d: %w", o.name, r.First, r.Last, err)
		}
		s.o.Log.Info("objects that no file is known for are destroyed", "ost", o.name, "first", r.First, "last", r.Last)
	}
	tx := s.o.Device.Begin(env.New())
	tx.Delete(s.o.Tables.Kept, keptKey(r))
	_, err := s.o.Device.Publish(tx)
	return err
}
