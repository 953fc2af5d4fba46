package boltdev

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"github.com/strakefs/strake/store"
)

// A backup file, version 1; numbers are big-endian, lengths of records unsigned varints:
//
//	   0  8  "strakebk"
//	   8  4  version
//	  12  4  n, length of the description, at most 3,072
//	  16  8  length of the body
//	  24 32  SHA-256 of the body
//	  56 32  SHA-256 of bytes 0 to 56 and of the description
//	  88  n  description: Backup as JSON
//	   …     zeros
//	4096  …  body: records
//
// Records:
//
//	1  table   index, length, name: what the index means from here on
//	2  put     index, length of the key, length of the value, key, value
//	3  delete  index, length, key
//	4  tail    changes of the commits made meanwhile follow, in their order; puts before it ascend in each table
//	5  end     8 bytes: the transno of the state that the records before it make
const (
	backupMagic   = "strakebk"
	backupVersion = 1
	headerBytes   = 4096
	headerFixed   = 88
	headerSummed  = 56
	describeMax   = 3072

	recTable  = 1
	recPut    = 2
	recDelete = 3
	recTail   = 4
	recEnd    = 5
)

// ErrBackup: the file is no backup, or a damaged one.
var ErrBackup = errors.New("not a whole backup")

// Backup describes a backup file.
type Backup struct {
	// Label is the device's: file system, kind, index, identities, key.
	Label store.Label `json:"label"`
	// Target is the target's name, Instance the instance that it had when the backup was made.
	Target   string `json:"target"`
	Instance uint64 `json:"instance"`
	// Transno is the last one whose changes are in the backup; all before it are.
	Transno store.Transno `json:"transno"`
	// Starts is the device's start count then, Keys how many keys the tables had, about.
	Starts  uint64    `json:"starts"`
	Keys    uint64    `json:"keys"`
	Version string    `json:"version"`
	Made    time.Time `json:"made"`
	// Bytes is the length of the body; it is not in the description.
	Bytes int64 `json:"-"`
}

type hasher = hash.Hash

func newHasher() hasher { return sha256.New() }

func encodeHeader(b *Backup, length int64, sum []byte) ([]byte, error) {
	text, err := json.Marshal(b)
	if err != nil {
		return nil, err
	}
	if len(text) > describeMax {
		return nil, fmt.Errorf("a description of %d bytes", len(text))
	}
	h := make([]byte, headerBytes)
	copy(h, backupMagic)
	binary.BigEndian.PutUint32(h[8:], backupVersion)
	binary.BigEndian.PutUint32(h[12:], uint32(len(text)))
	binary.BigEndian.PutUint64(h[16:], uint64(length))
	copy(h[24:], sum)
	copy(h[headerFixed:], text)
	copy(h[headerSummed:], headerSum(h, text))
	return h, nil
}

func headerSum(h, text []byte) []byte {
	s := sha256.New()
	s.Write(h[:headerSummed])
	s.Write(text)
	return s.Sum(nil)
}

// header is a header that was read.
type header struct {
	Backup
	sum []byte // of the body
}

// readHeader reads and checks the header. Its errors wrap ErrBackup.
func readHeader(r io.Reader) (header, error) {
	h := make([]byte, headerBytes)
	if _, err := io.ReadFull(r, h); err != nil || string(h[:8]) != backupMagic {
		return header{}, fmt.Errorf("%w: it does not begin like one", ErrBackup)
	}
	if v := binary.BigEndian.Uint32(h[8:]); v != backupVersion {
		return header{}, fmt.Errorf("%w: version %d, this program knows %d", ErrBackup, v, backupVersion)
	}
	n := binary.BigEndian.Uint32(h[12:])
	if n > describeMax {
		return header{}, fmt.Errorf("%w: a description of %d bytes", ErrBackup, n)
	}
	text := h[headerFixed : headerFixed+n]
	if !bytes.Equal(headerSum(h, text), h[headerSummed:headerFixed]) {
		return header{}, fmt.Errorf("%w: the header's checksum does not match", ErrBackup)
	}
	got := header{sum: h[24:headerSummed]}
	if err := json.Unmarshal(text, &got.Backup); err != nil {
		return header{}, fmt.Errorf("%w: description: %w", ErrBackup, err)
	}
	got.Bytes = int64(binary.BigEndian.Uint64(h[16:]))
	return got, nil
}

func appendTable(b []byte, t store.Table, name string) []byte {
	b = append(b, recTable, byte(t))
	b = binary.AppendUvarint(b, uint64(len(name)))
	return append(b, name...)
}

func appendPut(b []byte, t store.Table, key, value []byte) []byte {
	b = append(b, recPut, byte(t))
	b = binary.AppendUvarint(b, uint64(len(key)))
	b = binary.AppendUvarint(b, uint64(len(value)))
	b = append(b, key...)
	return append(b, value...)
}

func appendDelete(b []byte, t store.Table, key []byte) []byte {
	b = append(b, recDelete, byte(t))
	b = binary.AppendUvarint(b, uint64(len(key)))
	return append(b, key...)
}

// record is one record of a body. key and value are valid until the next one.
type record struct {
	kind       byte
	table      store.Table
	key, value []byte // of a table record, key is its name
	transno    store.Transno
}

// nameMax bounds a table's name.
const nameMax = 64

// recordReader reads a body.
type recordReader struct {
	in  *bufio.Reader
	buf []byte
	rec record
}

// next reads a record; io.ErrUnexpectedEOF where the body ends without an end. Sizes are checked before memory is taken.
func (r *recordReader) next() (*record, error) {
	kind, err := r.in.ReadByte()
	if err != nil {
		return nil, cutShort(err)
	}
	r.rec = record{kind: kind}
	switch kind {
	case recTail:
		return &r.rec, nil
	case recEnd:
		var n [8]byte
		if _, err := io.ReadFull(r.in, n[:]); err != nil {
			return nil, cutShort(err)
		}
		r.rec.transno = store.Transno(binary.BigEndian.Uint64(n[:]))
		return &r.rec, nil
	case recTable, recPut, recDelete:
	default:
		return nil, fmt.Errorf("%w: a record of kind %d", ErrBackup, kind)
	}
	table, err := r.in.ReadByte()
	if err != nil {
		return nil, cutShort(err)
	}
	r.rec.table = store.Table(table)
	limit := uint64(maxKeyBytes)
	if kind == recTable {
		limit = nameMax
	}
	klen, err := r.length(1, limit)
	if err != nil {
		return nil, err
	}
	vlen := 0
	if kind == recPut {
		if vlen, err = r.length(0, maxValueBytes); err != nil {
			return nil, err
		}
	}
	if cap(r.buf) < klen+vlen {
		r.buf = make([]byte, klen+vlen)
	}
	b := r.buf[:klen+vlen]
	if _, err := io.ReadFull(r.in, b); err != nil {
		return nil, cutShort(err)
	}
	r.rec.key, r.rec.value = b[:klen:klen], b[klen:]
	return &r.rec, nil
}

func (r *recordReader) length(least, most uint64) (int, error) {
	n, err := binary.ReadUvarint(r.in)
	if err != nil {
		return 0, cutShort(err)
	}
	if n < least || n > most {
		return 0, fmt.Errorf("%w: a length of %d", ErrBackup, n)
	}
	return int(n), nil
}

func cutShort(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: it ends too early", ErrBackup)
	}
	return err
}
