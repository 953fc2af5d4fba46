package suite

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestTarOfManyFilesUnpacksComparesAndIsRemoved makes an archive, unpacks it on the mount, compares what it holds and
// removes it in one run of rm -rf.
func TestTarOfManyFilesUnpacksComparesAndIsRemoved(t *testing.T) {
	need(t, "tar")
	archive := filepath.Join(t.TempDir(), "files.tar")
	want := makeTar(t, archive, 5_000)
	judged(t, func(t *testing.T, c *cluster) {
		dir := c.folder(t)
		run(t, dir, "tar", "xpf", archive)
		compareTar(t, dir, want)
		run(t, dir, "tar", "df", archive) // tar's own comparison: sizes, modes, owners, times, content
		run(t, dir, "rm", "-rf", "tree")
		if _, err := os.Lstat(filepath.Join(dir, "tree")); !os.IsNotExist(err) {
			t.Fatalf("after rm -rf: %v", err)
		}
	})
}

// makeTar writes an archive of count files in nested folders below tree/, with symbolic and hard links among them.
func makeTar(t testing.TB, path string, count int) map[string][]byte {
	t.Helper()
	f, err := os.Create(path)
	must(t, err)
	defer f.Close()
	w := tar.NewWriter(f)
	rng := rand.New(rand.NewPCG(5, 5))
	want := map[string][]byte{}
	at := time.Unix(1_600_000_000, 0)
	put := func(h tar.Header, data []byte) {
		h.Size, h.ModTime = int64(len(data)), at.Add(time.Duration(rng.IntN(1e6))*time.Second)
		must(t, w.WriteHeader(&h))
		_, err := w.Write(data)
		must(t, err)
	}
	put(tar.Header{Name: "tree/", Mode: 0o755, Typeflag: tar.TypeDir}, nil)
	for i := range count {
		folder := fmt.Sprintf("tree/%02d/", i%50)
		if i < 50 {
			put(tar.Header{Name: folder, Mode: 0o755, Typeflag: tar.TypeDir}, nil)
		}
		name := fmt.Sprintf("%sfile %05d", folder, i)
		switch {
		case i > 50 && i%40 == 0:
			put(tar.Header{Name: name, Linkname: "../00/file 00000", Typeflag: tar.TypeSymlink, Mode: 0o777}, nil)
		case i > 50 && i%40 == 1:
			put(tar.Header{Name: name, Linkname: "tree/01/file 00001", Typeflag: tar.TypeLink}, nil)
			want[name] = want["tree/01/file 00001"]
		default:
			data := make([]byte, rng.IntN(1<<(6+rng.IntN(11))))
			for j := range data {
				data[j] = byte(rng.Uint32())
			}
			put(tar.Header{Name: name, Mode: int64(0o600 + rng.IntN(0o100)), Typeflag: tar.TypeReg}, data)
			want[name] = data
		}
	}
	must(t, w.Close())
	return want
}

func compareTar(t testing.TB, dir string, want map[string][]byte) {
	t.Helper()
	seen := 0
	must(t, filepath.WalkDir(filepath.Join(dir, "tree"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		got, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		seen++
		if !bytes.Equal(got, want[name]) {
			return fmt.Errorf("%s: %w", name, differ(got, want[name], 0))
		}
		return nil
	}))
	if seen != len(want) {
		t.Fatalf("%d files unpacked, want %d", seen, len(want))
	}
}

// TestStripedFileReadsBackAsWritten writes a file over four OSTs, drops the kernel's pages and compares.
func TestStripedFileReadsBackAsWritten(t *testing.T) {
	judged(t, func(t *testing.T, c *cluster) {
		path := filepath.Join(c.folder(t), "striped")
		c.setstripe(t, path, 4, "1M")
		length := size[int64](64<<20, 1<<30)
		pattern := seed(t)
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		defer f.Close()
		rng := rand.New(rand.NewPCG(pattern, 0))
		chunk := make([]byte, 1<<20+13) // no multiple of the stripe
		for off := int64(0); off < length; {
			fillRandom(rng, chunk)
			n, err := f.Write(chunk[:min(int64(len(chunk)), length-off)])
			must(t, err)
			off += int64(n)
		}
		must(t, f.Sync())
		must(t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
		if st, err := f.Stat(); err != nil || st.Size() != length {
			t.Fatalf("size %v, error %v, want %d", st.Size(), err, length)
		}
		rng = rand.New(rand.NewPCG(pattern, 0))
		got := make([]byte, len(chunk))
		for off := int64(0); off < length; {
			fillRandom(rng, chunk)
			n := min(int64(len(chunk)), length-off)
			_, err := io.ReadFull(io.NewSectionReader(f, off, n), got[:n])
			must(t, err)
			if !bytes.Equal(got[:n], chunk[:n]) {
				t.Fatal(differ(got[:n], chunk[:n], int(off)))
			}
			off += n
		}
	})
}

// fillRandom fills b quickly.
func fillRandom(rng *rand.Rand, b []byte) {
	for i := 0; i+8 <= len(b); i += 8 {
		v := rng.Uint64()
		for k := range 8 {
			b[i+k] = byte(v >> (8 * k))
		}
	}
}
