package lfs

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/strakefs/strake/fs/extent"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
)

// subject is what printer prints.
type subject struct {
	name string
	// named says that the name stands above the layout.
	named  bool
	dir    bool
	fid    fid.FID
	layout *layout.Layout // nil: there is none
}

// printer writes layouts as the field's tool does. Errors of w stay in w, which is a bufio.Writer.
type printer struct {
	w       io.Writer
	show    *show
	printed bool
}

func (p *printer) f(format string, args ...any) { fmt.Fprintf(p.w, format, args...) }

func (p *printer) print(s *subject) {
	if s.named {
		if p.show.yaml {
			p.f("--- # %s\n", safe(s.name))
		} else {
			p.f("%s\n", safe(s.name))
		}
	} else if p.show.yaml && p.printed {
		p.f("---\n")
	}
	p.printed = true
	switch {
	case s.layout == nil && p.show.yaml:
		p.f("# has no stripe info\n")
	case s.layout == nil && s.named:
		p.f("has no stripe info\n\n")
	case s.layout == nil:
		p.f("%s has no stripe info\n", safe(s.name))
	case p.show.fields() > 0:
		p.values(s)
	case len(s.layout.Components) > 1:
		p.composite(s)
	default:
		p.plain(s)
	}
}

// value is one named value of a layout.
type value struct {
	on          bool
	label, text string
}

// values prints what was asked for by flags: bare if it is one, else with names. Values of a component are of the last
// one that has objects, as in the field.
func (p *printer) values(s *subject) {
	c := lastInit(s.layout)
	w := p.show
	all := []value{
		{w.fid, "fid", s.fid.String()},
		{w.components, "component_count", strconv.Itoa(len(s.layout.Components))},
		{w.count, "stripe_count", countText(c.StripeCount)},
		{w.size, "stripe_size", strconv.FormatUint(c.StripeSize, 10)},
		{w.pattern, "pattern", patternText(c.Pattern)},
		{w.gen, "layout_gen", strconv.FormatUint(uint64(s.layout.Gen), 10)},
		{w.index, "stripe_offset", offsetText(c)},
		{w.pool, "pool", safePool(c.Pool)},
	}
	for _, v := range all {
		switch {
		case !v.on:
		case w.fields() == 1 && !w.yaml:
			p.f("%s\n", v.text)
		default:
			p.line(prefix(s.dir), v.label, v.text)
		}
	}
}

// lastInit is the last component with objects, or the first one if none has.
func lastInit(l *layout.Layout) *layout.Component {
	at := 0
	for i := range l.Components {
		if len(l.Components[i].Stripes) > 0 {
			at = i
		}
	}
	return &l.Components[at]
}

// line prints a value behind its label, in the column of the longest one of a plain layout.
func (p *printer) line(indent, label, text string) {
	p.f("%s%-15s%s\n", indent, label+":", text)
}

func prefix(dir bool) string {
	if dir {
		return ""
	}
	return "lmm_"
}

// plain prints a layout of one component: of a folder on one line, of a file with its objects.
func (p *printer) plain(s *subject) {
	c := &s.layout.Components[0]
	switch {
	case s.dir && p.show.quiet:
	case s.dir && !p.show.yaml:
		p.folderLine(s, c)
	case p.show.quiet:
	default:
		if p.show.verbose {
			p.line("lmm_", "seq", fmt.Sprintf("%#x", uint64(s.fid.Seq)))
			p.line("lmm_", "object_id", fmt.Sprintf("%#x", s.fid.OID))
		}
		p.header(prefix(s.dir), c, s.layout.Gen, s.dir)
	}
	if s.dir {
		if s.named {
			p.f("\n")
		}
		return
	}
	if p.show.yaml {
		p.yamlObjects("", c)
		return
	}
	p.table(c)
	p.f("\n")
}

// folderLine prints a folder's default.
func (p *printer) folderLine(s *subject, c *layout.Component) {
	if p.show.verbose {
		p.f("seq: %#x object_id: %#x ", uint64(s.fid.Seq), s.fid.OID)
	}
	p.f("stripe_count:  %s stripe_size:   %d pattern:       %s stripe_offset: %s",
		countText(c.StripeCount), c.StripeSize, patternText(c.Pattern), offsetText(c))
	if c.Pool != "" {
		p.f(" pool:          %s", safePool(c.Pool))
	}
	if len(c.Wanted) > 0 {
		p.f(" ost_list:      %s", wantedText(c))
	}
	p.f("\n")
}

// header prints what is said of a component before its objects.
func (p *printer) header(indent string, c *layout.Component, gen uint32, template bool) {
	p.line(indent, "stripe_count", countText(c.StripeCount))
	p.line(indent, "stripe_size", strconv.FormatUint(c.StripeSize, 10))
	p.line(indent, "pattern", patternText(c.Pattern))
	if !template {
		p.line(indent, "layout_gen", strconv.FormatUint(uint64(gen), 10))
	}
	p.line(indent, "stripe_offset", offsetText(c))
	if c.Pool != "" {
		p.line(indent, "pool", safePool(c.Pool))
	}
	if len(c.Wanted) > 0 {
		p.line(indent, "ost_list", "["+wantedText(c)+"]")
	}
}

// table prints the objects of a plain layout.
func (p *printer) table(c *layout.Component) {
	p.f("\tobdidx\t\t objid\t\t objid\t\t group\n")
	for _, s := range c.Stripes {
		p.f("\t%6d\t%14d\t%#13x\t%14d\n", s.OST, s.Object.ID, s.Object.ID, s.Object.Group)
	}
}

func (p *printer) yamlObjects(indent string, c *layout.Component) {
	if len(c.Stripes) == 0 {
		p.f("%slmm_objects:   []\n", indent)
		return
	}
	p.f("%slmm_objects:\n", indent)
	for _, s := range c.Stripes {
		p.f("%s      - l_ost_idx: %d\n%s        l_fid:     %s\n", indent, s.OST, indent, objectText(s))
	}
}

// composite prints a layout of several components.
func (p *printer) composite(s *subject) {
	if !p.show.quiet {
		if p.show.verbose {
			p.f("  lcm_fid:           \"%s\"\n", s.fid)
		}
		p.f("  lcm_layout_gen:    %d\n  lcm_mirror_count:  1\n  lcm_entry_count:   %d\n", s.layout.Gen, len(s.layout.Components))
	}
	for i := range s.layout.Components {
		p.component(s, i)
	}
}

func (p *printer) component(s *subject, i int) {
	c := &s.layout.Components[i]
	indent, inner := "    ", "      "
	if p.show.yaml {
		p.f("  component%d:\n", i)
	}
	if !p.show.quiet {
		p.f("%[1]slcme_id:             %[2]d\n%[1]slcme_mirror_id:      0\n%[1]slcme_flags:          %[3]s\n", indent, c.ID, flagsText(c.Flags))
		p.f("%[1]slcme_extent.e_start: %[2]d\n%[1]slcme_extent.e_end:   %[3]s\n", indent, c.Extent.Start, endText(c.Extent.End))
		if p.show.yaml {
			p.f("%ssub_layout:\n", indent)
		}
		p.header(inner+prefix(s.dir), c, s.layout.Gen, s.dir)
	}
	switch {
	case s.dir, len(c.Stripes) == 0 && !p.show.yaml:
	case p.show.yaml:
		p.yamlObjects(inner, c)
	default:
		p.f("%slmm_objects:\n", inner)
		for n, o := range c.Stripes {
			p.f("%s- %d: { l_ost_idx: %d, l_fid: [%s] }\n", inner, n, o.OST, objectText(o))
		}
	}
	if !p.show.yaml {
		p.f("\n")
	}
}

func countText(n uint32) string {
	if n == layout.CountAll {
		return "-1"
	}
	return strconv.FormatUint(uint64(n), 10)
}

// offsetText is the index of the first OST: of the first object, else the one wished for.
func offsetText(c *layout.Component) string {
	switch {
	case len(c.Stripes) > 0:
		return strconv.FormatUint(uint64(c.Stripes[0].OST), 10)
	case len(c.Wanted) > 0:
		return strconv.FormatUint(uint64(c.Wanted[0]), 10)
	}
	return strconv.FormatInt(int64(c.StripeOffset), 10)
}

func patternText(p layout.Pattern) string {
	switch p {
	case layout.RAID0:
		return "raid0"
	case layout.OnMDT:
		return "mdt"
	}
	return fmt.Sprintf("%#x", uint32(p))
}

func flagsText(f layout.Flags) string {
	var names []string
	for _, n := range []struct {
		bit  layout.Flags
		name string
	}{{layout.FlagInit, "init"}, {layout.FlagExtension, "extension"}} {
		if f&n.bit != 0 {
			names, f = append(names, n.name), f&^n.bit
		}
	}
	switch {
	case f != 0:
		names = append(names, fmt.Sprintf("%#x", uint32(f)))
	case len(names) == 0:
		return "0"
	}
	return strings.Join(names, ",")
}

func endText(end uint64) string {
	if end == extent.EOF {
		return "EOF"
	}
	return strconv.FormatUint(end, 10)
}

// objectText names an object in the form of a FID: its group for the sequence, its number for the object id.
func objectText(s layout.Stripe) string {
	return fmt.Sprintf("%#x:%#x:0x0", s.Object.Group, s.Object.ID)
}

func safePool(name string) string {
	if name == "" {
		return ""
	}
	return safe(name)
}

func wantedText(c *layout.Component) string {
	var b strings.Builder
	for i, o := range c.Wanted {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatUint(uint64(o), 10))
	}
	return b.String()
}
