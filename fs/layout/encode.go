package layout

import (
	"encoding/binary"
	"fmt"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/status"
)

// Version is the first byte of an encoded layout.
const Version = 1

// Append encodes l behind b. The format, numbers little-endian, uvarint where marked v:
//
//	1   version
//	v   generation
//	v   component count, then for each:
//	    v id, v flags, v start, 8 end, v pattern, v stripe size, 4 stripe count, 4 stripe offset,
//	    v length of pool name, pool name,
//	    v number of wanted OSTs, each v,
//	    v number of stripes, each: v OST index, v group, v object id
func (l *Layout) Append(b []byte) []byte {
	b = append(b, Version)
	b = binary.AppendUvarint(b, uint64(l.Gen))
	b = binary.AppendUvarint(b, uint64(len(l.Components)))
	for i := range l.Components {
		c := &l.Components[i]
		b = binary.AppendUvarint(b, uint64(c.ID))
		b = binary.AppendUvarint(b, uint64(c.Flags))
		b = binary.AppendUvarint(b, c.Extent.Start)
		b = binary.LittleEndian.AppendUint64(b, c.Extent.End)
		b = binary.AppendUvarint(b, uint64(c.Pattern))
		b = binary.AppendUvarint(b, c.StripeSize)
		b = binary.LittleEndian.AppendUint32(b, c.StripeCount)
		b = binary.LittleEndian.AppendUint32(b, uint32(c.StripeOffset))
		b = binary.AppendUvarint(b, uint64(len(c.Pool)))
		b = append(b, c.Pool...)
		b = binary.AppendUvarint(b, uint64(len(c.Wanted)))
		for _, o := range c.Wanted {
			b = binary.AppendUvarint(b, uint64(o))
		}
		b = binary.AppendUvarint(b, uint64(len(c.Stripes)))
		for _, s := range c.Stripes {
			b = binary.AppendUvarint(b, uint64(s.OST))
			b = binary.AppendUvarint(b, uint64(s.Object.Group))
			b = binary.AppendUvarint(b, s.Object.ID)
		}
	}
	return b
}

// Decode reads what Append wrote, into l, reusing its slices; no byte may be left over. An empty b is the zero Layout.
// The result has passed Check. Errors are of kind Invalid; nothing is allocated beyond what len(b) can hold.
func (l *Layout) Decode(b []byte) error {
	if len(b) == 0 {
		*l = Layout{Components: l.Components[:0]}
		return nil
	}
	d := decoder{b: b}
	if v := d.byte(); v != Version {
		return status.Errorf(status.Invalid, "layout: version %d is not known", v)
	}
	l.Gen = uint32(d.uvarint(1<<32 - 1))
	n := int(d.uvarint(MaxComponents))
	comps := l.Components[:cap(l.Components)]
	for len(comps) < n {
		comps = append(comps, Component{})
	}
	l.Components = comps[:n]
	for i := range l.Components {
		d.component(&l.Components[i])
	}
	if d.err == nil && len(d.b) != 0 {
		d.err = fmt.Errorf("%d bytes left over", len(d.b))
	}
	if d.err != nil {
		l.Components = l.Components[:0]
		return status.Errorf(status.Invalid, "layout: %v", d.err)
	}
	return l.Check()
}

type decoder struct {
	b   []byte
	err error
}

func (d *decoder) take(n int) []byte {
	if d.err != nil || len(d.b) < n {
		if d.err == nil {
			d.err = fmt.Errorf("cut short, %d more bytes expected", n-len(d.b))
		}
		return make([]byte, min(n, 8))
	}
	out := d.b[:n]
	d.b = d.b[n:]
	return out
}

func (d *decoder) byte() byte { return d.take(1)[0] }

func (d *decoder) uvarint(limit uint64) uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || v > limit {
		if d.err == nil {
			d.err = fmt.Errorf("a number is cut short or over %d", limit)
		}
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) component(c *Component) {
	wanted, stripes := c.Wanted[:0], c.Stripes[:0]
	*c = Component{ID: uint32(d.uvarint(1<<32 - 1)), Flags: Flags(d.uvarint(1<<32 - 1))}
	c.Extent.Start = d.uvarint(extent.EOF)
	c.Extent.End = binary.LittleEndian.Uint64(d.take(8))
	c.Pattern = Pattern(d.uvarint(1<<32 - 1))
	c.StripeSize = d.uvarint(MaxStripeSize)
	c.StripeCount = binary.LittleEndian.Uint32(d.take(4))
	c.StripeOffset = int32(binary.LittleEndian.Uint32(d.take(4)))
	if n := int(d.uvarint(MaxPoolName)); n > 0 {
		c.Pool = string(d.take(n))
	}
	for n := d.uvarint(MaxStripes); n > 0 && d.err == nil; n-- {
		wanted = append(wanted, OSTIndex(d.uvarint(1<<32-1)))
	}
	for n := d.uvarint(MaxStripes); n > 0 && d.err == nil; n-- {
		ost := OSTIndex(d.uvarint(1<<32 - 1))
		group := uint32(d.uvarint(1<<32 - 1))
		stripes = append(stripes, Stripe{OST: ost, Object: fid.ObjectID{Group: group, ID: d.uvarint(extent.EOF)}})
	}
	c.Wanted, c.Stripes = wanted, stripes
}
