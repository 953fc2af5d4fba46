package forgetfs_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/strakefs/strake/server/forgetfs"
	"golang.org/x/sys/unix"
)

// The oracle runs the same calls on the disk and on a plain folder, which must look alike at every cut; and it keeps, for
// each name and each file, what a cut may show: the states since the last flush. It knows nothing of how changes depend
// on each other.

// idBytes at the start of each file tell which file it is.
const idBytes = 8

// modelFile is a file: now is in the plain folder, kept is what its last flush kept, nil if none did.
type modelFile struct {
	id      uint64
	kept    []byte
	flushed bool // and nothing has changed since
	moved   bool // it was renamed or linked
}

// model is what may be on the disk.
type model struct {
	t    *testing.T
	rnd  *rand.Rand
	disk *forgetfs.Disk
	ref  string
	// names has, for each name, the files (nil: none) it led to since the last flush of its folder, the newest last.
	names map[string][]*modelFile
	files map[uint64]*modelFile
	next  uint64
}

var oracleFolders = []string{"a", "b"}

func (m *model) name() string {
	return oracleFolders[m.rnd.IntN(2)] + "/" + strconv.Itoa(m.rnd.IntN(5))
}

func (m *model) now(name string) *modelFile {
	if list := m.names[name]; len(list) > 0 {
		return list[len(list)-1]
	}
	return nil
}

func (m *model) set(name string, f *modelFile) {
	if len(m.names[name]) == 0 {
		m.names[name] = []*modelFile{nil}
	}
	m.names[name] = append(m.names[name], f)
}

// both runs a call on the disk and on the plain folder.
func (m *model) both(f func(root string) error) bool {
	m.t.Helper()
	err, want := f(m.disk.Dir), f(m.ref)
	if (err == nil) != (want == nil) || errno(err) != errno(want) {
		m.t.Fatalf("the disk says %v, a plain folder %v", err, want)
	}
	return err == nil
}

func errno(err error) (n unix.Errno) {
	errors.As(err, &n)
	return n
}

// withFile runs f on an open file.
func withFile(path string, flags int, f func(*os.File) error) error {
	file, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f(file), file.Close())
}

func (m *model) change(name string, f func(*os.File) error) {
	file := m.now(name)
	if m.both(func(root string) error { return withFile(filepath.Join(root, name), os.O_RDWR, f) }) {
		file.flushed = false
	}
}

// step runs one random call.
func (m *model) step() {
	name, other := m.name(), m.name()
	at, size := m.rnd.Int64N(40_000)+idBytes, m.rnd.IntN(9000)+1
	switch k := m.rnd.IntN(100); {
	case k < 18:
		m.create(name)
	case k < 40:
		b := bytes.Repeat([]byte{byte(1 + m.rnd.IntN(255))}, size)
		m.change(name, func(f *os.File) error { _, err := f.WriteAt(b, at); return err })
	case k < 46:
		m.change(name, func(f *os.File) error { return f.Truncate(at) })
	case k < 52:
		modes := []uint32{unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_ZERO_RANGE, 0}
		mode := modes[m.rnd.IntN(3)]
		m.change(name, func(f *os.File) error { return unix.Fallocate(int(f.Fd()), mode, at, int64(size)) })
	case k < 62:
		if m.both(func(root string) error { return os.Remove(filepath.Join(root, name)) }) {
			m.set(name, nil)
		}
	case k < 68:
		if m.both(func(root string) error { return os.Link(filepath.Join(root, name), filepath.Join(root, other)) }) {
			m.now(name).moved = true
			m.set(other, m.now(name))
		}
	case k < 78:
		f := m.now(name)
		if m.both(func(root string) error { return os.Rename(filepath.Join(root, name), filepath.Join(root, other)) }) && f != m.now(other) {
			f.moved = true
			m.set(name, nil)
			m.set(other, f)
		}
	case k < 92:
		m.flush(name)
	default:
		m.flushFolder(oracleFolders[m.rnd.IntN(2)])
	}
}

func (m *model) create(name string) {
	m.next++
	id := binary.BigEndian.AppendUint64(nil, m.next)
	if m.both(func(root string) error {
		return withFile(filepath.Join(root, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, func(f *os.File) error {
			_, err := f.Write(id)
			return err
		})
	}) {
		m.files[m.next] = &modelFile{id: m.next}
		m.set(name, m.files[m.next])
	}
}

func (m *model) flush(name string) {
	if !m.both(func(root string) error { return withFile(filepath.Join(root, name), os.O_RDWR, (*os.File).Sync) }) {
		return
	}
	f := m.now(name)
	b, err := os.ReadFile(filepath.Join(m.ref, name))
	must(m.t, err)
	f.kept, f.flushed = b, true
	if list := m.names[name]; len(list) == 2 && list[0] == nil && !f.moved {
		m.names[name] = list[1:] // a new file: the name comes with it
	}
}

func (m *model) flushFolder(dir string) {
	must(m.t, fsyncErr(filepath.Join(m.disk.Dir, dir)))
	for name, list := range m.names {
		if filepath.Dir(name) == dir && len(list) > 1 {
			m.names[name] = list[len(list)-1:]
		}
	}
}

// compare checks that the disk shows what the plain folder does.
func (m *model) compare() {
	m.t.Helper()
	for _, root := range oracleFolders {
		got, want := tree(m.t, filepath.Join(m.disk.Dir, root)), tree(m.t, filepath.Join(m.ref, root))
		if brief(got) != brief(want) {
			m.t.Fatalf("%s: the disk has %s, a plain folder %s", root, brief(got), brief(want))
		}
		for name := range want {
			if got[name] != want[name] {
				m.t.Fatalf("%s/%s differs at %d", root, name, differs([]byte(got[name]), []byte(want[name])))
			}
		}
	}
}

func differs(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// cut takes the power away and checks what is left. grain 0 forgets, else tears with that grain.
func (m *model) cut(grain int) {
	m.t.Helper()
	last := map[uint64][]byte{} // what each file held at the end
	for name := range m.names {
		if f := m.now(name); f != nil {
			b, err := os.ReadFile(filepath.Join(m.ref, name))
			must(m.t, err)
			last[f.id] = b
		}
	}
	if grain == 0 {
		must(m.t, m.disk.Forget())
	} else {
		must(m.t, m.disk.Tear(m.rnd.Int64(), grain))
	}
	found := tree(m.t, m.disk.Dir)
	inodes := map[uint64]uint64{} // of each file that tells which it is
	for name, list := range m.names {
		content, there := found[name]
		f := m.check(name, list, []byte(content), there)
		if f == nil {
			continue
		}
		m.checkBytes(name, f, []byte(content), last[f.id], grain)
		var st unix.Stat_t
		must(m.t, unix.Stat(filepath.Join(m.disk.Dir, name), &st))
		if old := inodes[f.id]; old != 0 && old != st.Ino {
			m.t.Fatalf("%s: the names of one file lead to two", name)
		}
		inodes[f.id] = st.Ino
	}
}

// check checks which file a name leads to, and returns it if its bytes tell.
func (m *model) check(name string, list []*modelFile, content []byte, there bool) *modelFile {
	m.t.Helper()
	if !there {
		if len(list) > 0 && !slices.Contains(list, nil) {
			m.t.Fatalf("%s is gone: %d states since its folder's flush", name, len(list))
		}
		return nil
	}
	if len(content) < idBytes || binary.BigEndian.Uint64(content) == 0 {
		if slices.ContainsFunc(list, func(f *modelFile) bool { return f != nil && !(f.flushed && len(list) == 1) }) {
			return nil // its bytes were not flushed
		}
		m.t.Fatalf("%s is there with %d bytes", name, len(content))
	}
	id := binary.BigEndian.Uint64(content)
	for _, f := range list {
		if f != nil && f.id == id {
			return f
		}
	}
	m.t.Fatalf("%s leads to file %d, which it never did since its folder's flush", name, id)
	return nil
}

// checkBytes checks the bytes of a file: those of the last flush after a forget; after a tear each grain is that or the
// last version.
func (m *model) checkBytes(name string, f *modelFile, got, last []byte, grain int) {
	m.t.Helper()
	if grain == 0 || f.flushed {
		if !bytes.Equal(got, f.kept) {
			m.t.Fatalf("%s has %d bytes, its flush had %d; they differ at %d", name, len(got), len(f.kept), differs(got, f.kept))
		}
		return
	}
	if last == nil {
		return // it has no name at the end, and was written without one
	}
	if lo, hi := min(len(f.kept), len(last)), max(len(f.kept), len(last)); len(got) < lo || len(got) > hi {
		m.t.Fatalf("%s has %d bytes, flushed were %d, at the end %d", name, len(got), len(f.kept), len(last))
	}
	piece := func(b []byte, at int) []byte {
		p := make([]byte, grain)
		if at < len(b) {
			copy(p, b[at:])
		}
		return p[:min(grain, len(got)-at)]
	}
	for at := 0; at < len(got); at += grain {
		g := piece(got, at)
		// A size that a truncate made smaller, or a hole, may be zeros before and behind what came after it.
		if !bytes.Equal(g, piece(f.kept, at)) && !bytes.Equal(g, piece(last, at)) && !zeroTail(g, piece(f.kept, at), piece(last, at)) {
			m.t.Fatalf("%s: bytes %d to %d are neither flushed nor written", name, at, at+len(g))
		}
	}
}

// zeroTail says whether each byte of a piece is the old one, the new one, or zero.
func zeroTail(got, old, last []byte) bool {
	for i, b := range got {
		if b != 0 && b != old[i] && b != last[i] {
			return false
		}
	}
	return true
}

// restart makes the disk's state the plain folder's and the model's.
func (m *model) restart() {
	m.t.Helper()
	m.names, m.files = map[string][]*modelFile{}, map[uint64]*modelFile{}
	must(m.t, os.RemoveAll(m.ref))
	for _, dir := range oracleFolders {
		must(m.t, os.MkdirAll(filepath.Join(m.disk.Dir, dir), 0o700))
		must(m.t, os.MkdirAll(filepath.Join(m.ref, dir), 0o700))
		for name := range tree(m.t, filepath.Join(m.disk.Dir, dir)) {
			must(m.t, os.Remove(filepath.Join(m.disk.Dir, dir, name)))
		}
		fsync(m.t, filepath.Join(m.disk.Dir, dir))
	}
	fsync(m.t, m.disk.Dir)
}

// TestRandomCallsAndCuts runs random calls and cuts the power in between.
func TestRandomCallsAndCuts(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("STRAKE_SUITE_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("STRAKE_SUITE_SEED=%d", seed)
	m := &model{t: t, rnd: rand.New(rand.NewPCG(seed, 0)), disk: newDisk(t), ref: t.TempDir()}
	rounds := 30
	if os.Getenv("STRAKE_SOAK") == "1" {
		rounds = 5000
	}
	for round := range rounds {
		m.restart()
		for range 10 + m.rnd.IntN(150) {
			m.step()
		}
		m.compare()
		m.cut([]int{0, 512, 4096}[round%3])
		if t.Failed() {
			fmt.Println("round", round)
			return
		}
	}
}
