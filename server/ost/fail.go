package ost

import "github.com/strakefs/strake/fs/failpoint"

// readObject reads an object's file, or does what the fail points say.
// Precondition: ob.io is held.
func (o *OST) readObject(ob *object, b []byte, off int64) (int, error) {
	if o.o.FailPoints.Armed() {
		if fake, err := o.failIO("read"); err != nil {
			return 0, err
		} else if fake {
			clear(b)
			return len(b), nil
		}
	}
	return ob.h.ReadAt(b, off)
}

// writeObject writes an object's file, or does what the fail points say.
// Precondition: ob.io is held.
func (o *OST) writeObject(ob *object, b []byte, off int64) error {
	if o.o.FailPoints.Armed() {
		if fake, err := o.failIO("write"); err != nil || fake {
			return err
		}
	}
	return ob.h.WriteAt(b, off)
}

// failIO waits and fails as told, and reports whether the disk is to be left alone.
func (o *OST) failIO(op string) (fake bool, err error) {
	fp := o.o.FailPoints
	if h, ok := fp.Reach(failpoint.DelayIO, op, o.o.Name); ok {
		h.Wait(o.ctx.Done())
	}
	if h, ok := fp.Reach(failpoint.FailIO, op, o.o.Name); ok {
		return false, h.Err()
	}
	_, fake = fp.Reach(failpoint.FakeIO, op, o.o.Name)
	return fake, nil
}
