package wire_test

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"sort"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/strakefs/strake/fs/wire/wirepb"
)

var update = flag.Bool("update", false, "rewrite testdata/golden.txt")

// message is what package rpc needs of a body.
type message interface {
	proto.Message
	SizeVT() int
	MarshalToSizedBufferVT([]byte) (int, error)
	UnmarshalVT([]byte) error
}

// messages returns one empty message of each type, nested ones included, in order of name.
func messages(t testing.TB) []message {
	var all []message
	var add func(ms protoreflect.MessageDescriptors)
	add = func(ms protoreflect.MessageDescriptors) {
		for n := range ms.Len() {
			mt, err := protoTypes(ms.Get(n))
			if err != nil {
				t.Fatal(err)
			}
			m, ok := mt.New().Interface().(message)
			if !ok {
				t.Fatalf("%s has no vtproto methods", ms.Get(n).FullName())
			}
			all = append(all, m)
			add(ms.Get(n).Messages())
		}
	}
	add(wirepb.File_wire_proto.Messages())
	sort.Slice(all, func(i, j int) bool { return nameOf(all[i]) < nameOf(all[j]) })
	return all
}

func nameOf(m proto.Message) string { return string(m.ProtoReflect().Descriptor().FullName()) }

// fill sets every field to a value that depends on its number, two elements in lists, nested messages to a depth of two.
func fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for n := range fields.Len() {
		f := fields.Get(n)
		if f.IsList() {
			list := m.Mutable(f).List()
			for k := range 2 {
				if f.Kind() == protoreflect.MessageKind {
					if depth > 0 {
						fill(list.AppendMutable().Message(), depth-1)
					}
					continue
				}
				list.Append(valueOf(f, k))
			}
			continue
		}
		if f.Kind() == protoreflect.MessageKind {
			if depth > 0 {
				fill(m.Mutable(f).Message(), depth-1)
			}
			continue
		}
		m.Set(f, valueOf(f, 0))
	}
}

func valueOf(f protoreflect.FieldDescriptor, k int) protoreflect.Value {
	n := 100*uint64(f.Number()) + uint64(k)
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(fmt.Sprintf("%s%d", f.Name(), k)))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(n << 30)
	case protoreflect.Sint32Kind, protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(-int32(n))
	case protoreflect.Sint64Kind, protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(-int64(n) << 30)
	}
	panic(fmt.Sprintf("the protocol uses a kind of field that it did not: %v", f.Kind()))
}

func encode(t testing.TB, m message) []byte {
	b := make([]byte, m.SizeVT())
	if n, err := m.MarshalToSizedBufferVT(b); err != nil || n != len(b) {
		t.Fatalf("%s: %d of %d bytes, %v", nameOf(m), n, len(b), err)
	}
	return b
}

// TestGoldenBytes holds the encoding of every message with every field set: a change of it is a change of the protocol.
func TestGoldenBytes(t *testing.T) {
	const path = "testdata/golden.txt"
	var out strings.Builder
	for _, m := range messages(t) {
		fill(m.ProtoReflect(), 2)
		b := encode(t, m)
		fmt.Fprintf(&out, "%s %s\n", nameOf(m), hex.EncodeToString(b))

		std, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil || !bytes.Equal(std, b) {
			t.Errorf("%s: vtproto and the reference encoder differ: %v", nameOf(m), err)
		}
		back := m.ProtoReflect().New().Interface().(message)
		if err := back.UnmarshalVT(b); err != nil || !proto.Equal(back, m) {
			t.Errorf("%s does not come back: %v", nameOf(m), err)
		}
	}
	if *update {
		if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	wanted := strings.Split(string(want), "\n")
	for n, line := range strings.Split(out.String(), "\n") {
		if n >= len(wanted) || line != wanted[n] {
			t.Fatalf("the protocol has changed (rewrite with -update, and see that old peers can live with it):\n got %s\nwant %s",
				line, wanted[min(n, len(wanted)-1)])
		}
	}
}

// Peers one version apart work together: fields that this one does not know are no error.
func TestUnknownFieldsAreNoError(t *testing.T) {
	for _, m := range messages(t) {
		b := append(encode(t, m), 0xfa, 0x3f, 3, 'n', 'e', 'w') // field 1023, three bytes
		if err := m.UnmarshalVT(b); err != nil {
			t.Errorf("%s: %v", nameOf(m), err)
		}
	}
}

// FuzzBody decodes any bytes as any message: no panic, no memory out of proportion, and what decodes can be encoded.
func FuzzBody(f *testing.F) {
	for n, m := range messages(f) {
		fill(m.ProtoReflect(), 2)
		f.Add(uint8(n), encode(f, m))
	}
	all := messages(f)
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		m := all[int(which)%len(all)].ProtoReflect().New().Interface().(message)
		if m.UnmarshalVT(b) != nil {
			return
		}
		again := m.ProtoReflect().New().Interface().(message)
		if err := again.UnmarshalVT(encode(t, m)); err != nil {
			t.Fatalf("%s: %v", nameOf(m), err)
		}
		if !bytes.Equal(encode(t, m), encode(t, again)) {
			t.Fatalf("%s changes when it is encoded again", nameOf(m))
		}
	})
}

func protoTypes(d protoreflect.MessageDescriptor) (protoreflect.MessageType, error) {
	return protoregistry.GlobalTypes.FindMessageByName(d.FullName())
}
