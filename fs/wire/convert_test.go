package wire_test

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

func TestFID(t *testing.T) {
	good := fid.FID{Seq: fid.Root.Seq, OID: fid.Root.OID}
	if f, err := wire.FID(uint64(good.Seq), good.OID); err != nil || f != good {
		t.Errorf("%v, %v", f, err)
	}
	for _, bad := range []struct {
		seq uint64
		oid uint32
	}{{0, 0}, {0, 1}, {uint64(good.Seq), 0}} {
		if _, err := wire.FID(bad.seq, bad.oid); !errors.Is(err, status.Stale) {
			t.Errorf("%#x:%#x: %v", bad.seq, bad.oid, err)
		}
	}
}

func TestName(t *testing.T) {
	for _, tt := range []struct {
		name string
		kind status.Kind
	}{
		{"a", 0}, {"...", 0}, {".x", 0}, {"\xff\xfe new\nline", 0}, {strings.Repeat("n", 255), 0},
		{"", status.NotExist}, {".", status.Invalid}, {"..", status.Invalid}, {"a/b", status.Invalid}, {"a\x00", status.Invalid},
		{strings.Repeat("n", 256), status.NameTooLong}, {strings.Repeat("/", 256), status.NameTooLong},
	} {
		if err := wire.Name([]byte(tt.name)); status.Of(err) != tt.kind {
			t.Errorf("%q: %v, want %v", tt.name, err, tt.kind)
		}
	}
}

// Every attribute survives the wire, for any value it can have.
func TestAttrRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var a attr.Attr
		v := reflect.ValueOf(&a).Elem()
		set(t, v)
		a.FID.Ver, a.Volatile, a.Under = 0, false, 0 // neither travels
		var m wirepb.Attr
		wire.PutAttr(&m, &a)
		b := encodeAttr(t, &m)
		var m2 wirepb.Attr
		if err := m2.UnmarshalVT(b); err != nil {
			t.Fatal(err)
		}
		var back attr.Attr
		if err := wire.Attr(&m2, &back); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(a, back) {
			t.Fatalf("\n%+v\n%+v", a, back)
		}
	})
}

func encodeAttr(t *rapid.T, m *wirepb.Attr) []byte {
	b, err := m.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// set gives every field a value; nanoseconds stay below 1e9.
func set(t *rapid.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for n := range v.NumField() {
			if v.Type().Field(n).Name == "Nsec" {
				v.Field(n).SetUint(rapid.Uint64Max(999_999_999).Draw(t, "nsec"))
				continue
			}
			set(t, v.Field(n))
		}
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(rapid.Uint64Max(math.MaxUint64>>(64-v.Type().Bits())).Draw(t, "uint"))
	case reflect.Int64:
		v.SetInt(rapid.Int64().Draw(t, "int"))
	default:
		t.Fatalf("package attr has a field of kind %v, which this test does not set", v.Kind())
	}
}

func TestAttrRefusals(t *testing.T) {
	a := attr.Attr{Mode: 7}
	if err := wire.Attr(nil, &a); err != nil || a != (attr.Attr{}) {
		t.Errorf("nil: %+v, %v", a, err)
	}
	for _, m := range []*wirepb.Attr{{AtimeNsec: 1e9}, {MtimeNsec: 1e9}, {CtimeNsec: math.MaxUint32}, {BtimeNsec: 1e9}} {
		if err := wire.Attr(m, &a); !errors.Is(err, status.Invalid) {
			t.Errorf("%v: %v", m, err)
		}
	}
}

func TestCaller(t *testing.T) {
	in := attr.Cred{UID: 1, GID: 2, Groups: []uint32{3, 4}, Umask: 0o27}
	m := wirepb.Caller{Groups: make([]uint32, 1, 8)}
	wire.PutCaller(&m, &in)
	var out attr.Cred
	if err := wire.Caller(&m, &out); err != nil || !reflect.DeepEqual(in, out) {
		t.Errorf("%+v, %v", out, err)
	}
	m.Umask = math.MaxUint32
	if err := wire.Caller(&m, &out); err != nil || out.Umask != 0o777 {
		t.Errorf("umask %o, %v", out.Umask, err)
	}
	m.Groups = make([]uint32, attr.GroupsMax+1)
	if err := wire.Caller(&m, &out); !errors.Is(err, status.Protocol) {
		t.Errorf("too many groups: %v", err)
	}
	if err := wire.Caller(nil, &out); !errors.Is(err, status.Protocol) {
		t.Errorf("no caller: %v", err)
	}
}
