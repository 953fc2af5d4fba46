package faultdev

import (
	"context"
	"errors"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/store"
)

// Device is a store.Device that asks a script before each call.
type Device struct {
	below  store.Device
	script *Script
}

// New wraps a device.
func New(below store.Device, script *Script) *Device { return &Device{below, script} }

// Below returns the wrapped device.
func (d *Device) Below() store.Device { return d.below }

func (d *Device) hit(op Op) error {
	_, err := d.script.hit(context.Background(), op)
	return err
}

// Get implements store.KV.
func (d *Device) Get(e *env.Env, t store.Table, key []byte) ([]byte, error) {
	if err := d.hit(Get); err != nil {
		return nil, err
	}
	return d.below.Get(e, t, key)
}

// Scan implements store.KV.
func (d *Device) Scan(e *env.Env, t store.Table, from, to []byte, fn func(key, value []byte) bool) error {
	if err := d.hit(Scan); err != nil {
		return err
	}
	return d.below.Scan(e, t, from, to, fn)
}

// Throttle implements store.KV.
func (d *Device) Throttle(ctx context.Context, reserve bool) error {
	if _, err := d.script.hit(ctx, Throttle); err != nil {
		return err
	}
	return d.below.Throttle(ctx, reserve)
}

// Begin implements store.KV.
func (d *Device) Begin(e *env.Env) *store.Tx { return d.below.Begin(e) }

// Publish implements store.KV.
func (d *Device) Publish(tx *store.Tx) (store.Transno, error) {
	if err := d.hit(Publish); err != nil {
		return 0, err
	}
	return d.below.Publish(tx)
}

// Last implements store.KV.
func (d *Device) Last() store.Transno { return d.below.Last() }

// Committed implements store.KV.
func (d *Device) Committed() store.Transno { return d.below.Committed() }

// Hasten implements store.KV.
func (d *Device) Hasten(n store.Transno) { d.below.Hasten(n) }

// WaitCommitted implements store.KV.
func (d *Device) WaitCommitted(ctx context.Context, n store.Transno) error {
	if _, err := d.script.hit(ctx, Wait); err != nil {
		return err
	}
	return d.below.WaitCommitted(ctx, n)
}

// OnCommitted implements store.KV.
func (d *Device) OnCommitted(fn func(store.Transno)) { d.below.OnCommitted(fn) }

// Statfs implements store.Device.
func (d *Device) Statfs() (store.Statfs, error) {
	if err := d.hit(Statfs); err != nil {
		return store.Statfs{}, err
	}
	return d.below.Statfs()
}

// Err implements store.Device.
func (d *Device) Err() error {
	if err := d.below.Err(); err != nil {
		return err
	}
	return d.script.Err()
}

// Close implements store.Device. A device that a rule has stopped is closed below, which may commit.
func (d *Device) Close() error { return d.below.Close() }

// errNoLabel is returned for a device below that keeps no label.
var errNoLabel = errors.New("faultdev: the device keeps no label")

// Label implements store.Labeled; the zero Label if the device below keeps none.
func (d *Device) Label() store.Label {
	if l, ok := d.below.(store.Labeled); ok {
		return l.Label()
	}
	return store.Label{}
}

// SetLabel implements store.Labeled.
func (d *Device) SetLabel(l store.Label) error {
	if err := d.hit(Label); err != nil {
		return err
	}
	if b, ok := d.below.(store.Labeled); ok {
		return b.SetLabel(l)
	}
	return errNoLabel
}

// Objects implements store.Device.
func (d *Device) Objects() store.Objects { return objects{d, d.below.Objects()} }

// objects implements store.Objects.
type objects struct {
	d     *Device
	below store.Objects
}

// Create implements store.Objects.
func (o objects) Create(ids []fid.ObjectID) error {
	if err := o.d.hit(Create); err != nil {
		return err
	}
	return o.below.Create(ids)
}

// Open implements store.Objects.
func (o objects) Open(id fid.ObjectID) (store.Object, error) {
	if err := o.d.hit(Open); err != nil {
		return nil, err
	}
	b, err := o.below.Open(id)
	if err != nil {
		return nil, err
	}
	return object{o.d, b}, nil
}

// Remove implements store.Objects.
func (o objects) Remove(id fid.ObjectID) error {
	if err := o.d.hit(Remove); err != nil {
		return err
	}
	return o.below.Remove(id)
}

// Walk implements store.Objects.
func (o objects) Walk(group uint32, fn func(fid.ObjectID) bool) error {
	if err := o.d.hit(Scan); err != nil {
		return err
	}
	return o.below.Walk(group, fn)
}

// Flush implements store.Objects.
func (o objects) Flush(ctx context.Context) error {
	if _, err := o.d.script.hit(ctx, Flush); err != nil {
		return err
	}
	return o.below.Flush(ctx)
}

// object implements store.Object.
type object struct {
	d *Device
	store.Object
}

// ReadAt implements store.Object.
func (o object) ReadAt(b []byte, off int64) (int, error) {
	if err := o.d.hit(Read); err != nil {
		return 0, err
	}
	return o.Object.ReadAt(b, off)
}

// WriteAt implements store.Object.
func (o object) WriteAt(b []byte, off int64) error {
	torn, err := o.d.script.hit(context.Background(), Write)
	if torn {
		return errors.Join(err, o.Object.WriteAt(b[:len(b)/2], off))
	}
	if err != nil {
		return err
	}
	return o.Object.WriteAt(b, off)
}

// Truncate implements store.Object.
func (o object) Truncate(size int64) error {
	if err := o.d.hit(Truncate); err != nil {
		return err
	}
	return o.Object.Truncate(size)
}

// Fallocate implements store.Object.
func (o object) Fallocate(mode uint32, off, n int64) error {
	if err := o.d.hit(Fallocate); err != nil {
		return err
	}
	return o.Object.Fallocate(mode, off, n)
}

// Sync implements store.Object.
func (o object) Sync() error {
	if err := o.d.hit(Sync); err != nil {
		return err
	}
	return o.Object.Sync()
}
