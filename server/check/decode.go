package check

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/mdt"
	"github.com/strakefs/strake/server/osp"
	"github.com/strakefs/strake/server/ost"
	"github.com/strakefs/strake/server/target"
)

type decoder func(k, v []byte) (Fields, error)

// decoders are what reads the records of a target's tables, by name.
func decoders(isMDT bool) map[string]decoder {
	all := map[string]decoder{"clients": decodeClient, "reply_slots": decodeSlot}
	if isMDT {
		for name, fn := range map[string]decoder{
			"inode": decodeInode, "dirent": decodeEntry, "xattr": decodeXattr, "orphan": decodeOrphan, "sequence": decodeSequence,
			"destroy_log": decodeLog, "object_setattr_log": decodeLog, "ost_last_used": decodeLastUsed, "kept_objects": decodeKept, "mgs": decodeRegistry,
		} {
			all[name] = fn
		}
		return all
	}
	for name, fn := range map[string]decoder{
		"objects": decodeObject, "hot": decodeHot, "groups": decodeGroup, "usage": decodeUsage, "ost_meta": decodeMeta,
	} {
		all[name] = fn
	}
	return all
}

func timeText(t attr.Time) string {
	return time.Unix(t.Sec, int64(t.Nsec)).UTC().Format("2006-01-02T15:04:05.000000000Z")
}

func stampText(s mdt.Stamp) string { return fmt.Sprintf("%#x by %x", uint64(s.Transno), s.Client) }

func decodeInode(k, v []byte) (Fields, error) {
	n, err := mdt.DecodeInode(k, v)
	if err != nil {
		return nil, err
	}
	f := Fields{{"fid", n.FID.String()}, {"ino", n.FID.Ino()}, {"type", typeName(uint8(attr.DirentType(n.Mode)))}, {"mode", fmt.Sprintf("%#o", n.Mode&^attr.TypeMask)},
		{"uid", n.UID}, {"gid", n.GID}, {"project", n.ProjID}, {"nlink", n.Nlink}}
	switch {
	case n.IsDir():
		f.add("entries", n.Entries)
		f.add("content", stampText(n.Content))
	case n.IsFile():
		f.add("size", n.Size)
		f.add("blocks", n.Blocks)
		f.add("size_valid", n.SizeValid)
		f.add("written", n.Written)
	case n.Symlink != "":
		f.add("symlink", n.Symlink)
	}
	if n.Rdev != 0 {
		f.add("rdev", n.Rdev)
	}
	for _, t := range [...]struct {
		name string
		at   attr.Time
	}{{"atime", n.Atime}, {"mtime", n.Mtime}, {"ctime", n.Ctime}, {"btime", n.Btime}} {
		f.add(t.name, timeText(t.at))
	}
	f.add("own", stampText(n.Own))
	f.add("setattr_gen", n.SetattrGen)
	f.add("flags", hexOf(uint64(n.Flags)))
	for _, b := range [...]struct {
		name string
		is   bool
	}{{"never_linkable", n.NoLink}, {"mtime_set", n.MtimeSet}, {"never_named", n.Tmpfile}} {
		if b.is {
			f.add(b.name, true)
		}
	}
	f.sections(n)
	return f, nil
}

// sections adds what an inode keeps in its sections.
func (f *Fields) sections(n *mdt.Inode) {
	var links []string
	for _, l := range n.Links {
		links = append(links, fmt.Sprintf("%v/%s", l.Folder, l.Name))
	}
	if len(links) > 0 {
		f.add("links", links)
	}
	if n.Layout != nil {
		f.add("layout", layoutFields(n.Layout))
	}
	if n.Default != nil {
		f.add("default_layout", layoutFields(n.Default))
	}
	if n.ACLBytes > 0 {
		f.add("acl_bytes", n.ACLBytes)
	}
	if n.DefaultACLBytes > 0 {
		f.add("default_acl_bytes", n.DefaultACLBytes)
	}
	var xattrs []Fields
	for _, x := range n.Xattrs {
		a := Fields{{"name", x.Name}, {"bytes", x.Size}}
		if x.Large {
			a.add("where", "xattr table")
		} else {
			a.add("value", hex.EncodeToString([]byte(x.Value)))
		}
		xattrs = append(xattrs, a)
	}
	if len(xattrs) > 0 {
		f.add("xattrs", xattrs)
	}
}

func layoutFields(l *layout.Layout) Fields {
	f := Fields{{"gen", l.Gen}}
	var all []Fields
	for i := range l.Components {
		c := &l.Components[i]
		var objects []string
		for _, s := range c.Stripes {
			objects = append(objects, fmt.Sprintf("OST%04x:%s", uint32(s.OST), objectText(s.Object)))
		}
		x := Fields{{"start", c.Extent.Start}, {"end", c.Extent.End}, {"pattern", uint32(c.Pattern)}, {"flags", uint32(c.Flags)},
			{"stripe_size", c.StripeSize}, {"stripe_count", c.StripeCount}}
		if c.Pool != "" {
			x.add("pool", c.Pool)
		}
		if len(objects) > 0 {
			x.add("objects", objects)
		}
		all = append(all, x)
	}
	f.add("components", all)
	return f
}

// typeName names a d_type.
func typeName(kind uint8) string {
	for mode, name := range map[uint32]string{attr.TypeFile: "file", attr.TypeDir: "folder", attr.TypeLink: "symlink", attr.TypeChar: "char",
		attr.TypeBlock: "block", attr.TypeFifo: "fifo", attr.TypeSocket: "socket"} {
		if attr.DirentType(mode) == uint32(kind) {
			return name
		}
	}
	return fmt.Sprintf("type %d", kind)
}

func decodeEntry(k, v []byte) (Fields, error) {
	e, err := mdt.DecodeEntry(k, v)
	if err != nil {
		return nil, err
	}
	f := Fields{{"folder", e.Folder.String()}, {"cookie", hexOf(e.Cookie)}, {"name", e.Name}, {"fid", e.Child.String()}, {"type", typeName(e.Type)}}
	if e.Run {
		f.add("run", true)
	}
	f.add("stamp", stampText(e.Stamp))
	return f, nil
}

func decodeXattr(k, v []byte) (Fields, error) {
	f, err := fid.FromKey(k)
	if err != nil {
		return nil, err
	}
	return Fields{{"fid", f.String()}, {"name", string(k[fid.KeySize:])}, {"bytes", len(v)}, {"value", hex.EncodeToString(v[:min(len(v), 128)])}}, nil
}

func decodeOrphan(k, _ []byte) (Fields, error) {
	f, err := fid.FromKey(k)
	return Fields{{"fid", f.String()}}, err
}

func decodeSequence(k, v []byte) (Fields, error) {
	seq, uuid, high, err := mdt.DecodeSequence(k, v)
	if err != nil {
		return nil, err
	}
	if len(k) == 8 && binary.BigEndian.Uint64(k) == 0 {
		return Fields{{"next", hexOf(uint64(seq))}}, nil
	}
	return Fields{{"sequence", hexOf(uint64(seq))}, {"client", hex.EncodeToString(uuid[:])}, {"highest", high}}, nil
}

func decodeLog(k, v []byte) (Fields, error) {
	l, err := osp.DecodeLog(k, v)
	if err != nil {
		return nil, err
	}
	f := Fields{{"ost", uint32(l.OST)}, {"object", objectText(l.Object)}, {"transno", hexOf(uint64(l.Transno))}}
	if l.Owner != (osp.Owner{}) {
		f = append(f, Fields{{"uid", l.Owner.UID}, {"gid", l.Owner.GID}, {"project", l.Owner.Project}}...)
	}
	return f, nil
}

func decodeLastUsed(k, v []byte) (Fields, error) {
	i, last, err := osp.DecodeLastUsed(k, v)
	return Fields{{"ost", uint32(i)}, {"last_used", last}}, err
}

func decodeKept(k, v []byte) (Fields, error) {
	kept, ok, err := osp.DecodeKept(k, v)
	if err == nil && !ok {
		return Fields{{"restored", true}}, nil
	}
	return Fields{{"ost", uint32(kept.OST)}, {"first", kept.First}, {"last", kept.Last}}, err
}

// decodeRegistry reads the MGS's records. The key of the hash of names is a secret.
func decodeRegistry(k, v []byte) (Fields, error) {
	switch {
	case string(k) == "fs" && len(v) == 32:
		return Fields{{"fs_uuid", hex.EncodeToString(v[:16])}, {"name_key", "not shown"}}, nil
	case len(k) > 0 && k[0] == 'p':
		return Fields{{"param", string(k[1:])}, {"value", string(v)}}, nil
	case len(k) > 0 && k[0] == 't':
		t := &wirepb.Target{}
		if err := t.UnmarshalVT(v); err != nil {
			return nil, fmt.Errorf("a target's record: %w", err)
		}
		var addresses []string
		for _, a := range t.Addresses {
			addresses = append(addresses, string(a))
		}
		return Fields{{"target", string(t.Name)}, {"uuid", hex.EncodeToString(t.Uuid)}, {"active", t.Active}, {"server", string(t.Server)}, {"addresses", addresses}}, nil
	}
	return nil, fmt.Errorf("a record of the MGS with a key of %d bytes", len(k))
}

func decodeClient(k, v []byte) (Fields, error) {
	c, own, err := target.DecodeClient(k, v)
	if err != nil {
		return nil, err
	}
	if own != "" {
		return Fields{{own, hexOf(binary.BigEndian.Uint64(v))}}, nil
	}
	return Fields{{"uuid", hex.EncodeToString(c.UUID[:])}, {"kind", c.KindName()}, {"read_only", c.ReadOnly}, {"since", c.Since.UTC().Format(time.RFC3339)},
		{"peer", c.Peer}}, nil
}

func decodeSlot(k, v []byte) (Fields, error) {
	s, err := target.DecodeSlot(k, v)
	if err != nil {
		return nil, err
	}
	return Fields{{"client", hex.EncodeToString(s.UUID[:])}, {"slot", s.Number}, {"op", s.Op.String()}, {"xid", uint64(s.XID)},
		{"transno", hexOf(uint64(s.Transno))}, {"status", uint32(s.Status)}, {"reply_bytes", s.Reply}}, nil
}

func decodeObject(k, v []byte) (Fields, error) {
	o, err := ost.DecodeObject(k, v)
	if err != nil {
		return nil, err
	}
	f := Fields{{"object", objectText(o.ID)}, {"size", o.Size}, {"blocks", o.Blocks}}
	if !o.Owner.IsZero() {
		f.add("fid", o.Owner.String())
		f.add("stripe", o.Stripe)
	}
	if o.Owned {
		f = append(f, Fields{{"uid", o.UID}, {"gid", o.GID}, {"project", o.Project}}...)
	}
	return f, nil
}

func decodeHot(k, _ []byte) (Fields, error) {
	id, err := fid.ObjectFromKey(k)
	return Fields{{"object", objectText(id)}}, err
}

func decodeGroup(k, v []byte) (Fields, error) {
	id, g, err := ost.DecodeGroup(k, v)
	return Fields{{"group", id}, {"last", g.Last}, {"fresh_above", g.Fresh}}, err
}

func decodeUsage(k, v []byte) (Fields, error) {
	kind, id, blocks, objects, err := ost.DecodeUsage(k, v)
	return Fields{{"kind", kind}, {"id", id}, {"blocks", blocks}, {"objects", objects}}, err
}

func decodeMeta(k, v []byte) (Fields, error) {
	clean, committed, err := ost.DecodeMeta(k, v)
	return Fields{{"clean_stop", clean}, {"last_committed", hexOf(committed)}}, err
}
