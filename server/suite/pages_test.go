package suite

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pagesRun is how long each of these tests goes on.
const pagesRun = 1500 * time.Millisecond

// TestWritesOfTwoMountsShareAPage: each mount writes its own bytes of one page, one of them with a write that waits for another
// stripe's lock while the page's own is taken back. What a completed write has put there is seen by the other mount.
func TestWritesOfTwoMountsShareAPage(t *testing.T) {
	coherent(t, func(t *testing.T, m *mounts) {
		roots := m.folders(t)
		m.setstripe(t, filepath.Join(roots[0], "f"), 2, "64K")
		places := [2]int64{stripeBytes - 304, stripeBytes + 2704} // the first write begins on the other stripe
		watch := [2]int64{stripeBytes, stripeBytes + 2704}
		var done [2]atomic.Uint64
		var g sync.WaitGroup
		end := time.Now().Add(pagesRun)
		for i := range 2 {
			fd, err := unix.Open(filepath.Join(roots[i], "f"), unix.O_RDWR|unix.O_CLOEXEC, 0)
			must(t, err)
			defer unix.Close(fd)
			g.Go(func() {
				b, got := make([]byte, 1000), make([]byte, 8)
				for v := uint64(1); time.Now().Before(end); v++ {
					for at := 0; at < len(b); at += 8 {
						binary.LittleEndian.PutUint64(b[at:], v)
					}
					if _, err := unix.Pwrite(fd, b, places[i]); err != nil {
						t.Error(err)
						return
					}
					done[i].Store(v)
					for range 2 {
						least := done[1-i].Load()
						if n, err := unix.Pread(fd, got, watch[1-i]); err != nil || n < len(got) && least > 0 {
							t.Errorf("read on M%d: %d bytes, %v", i, n, err)
							return
						} else if have := binary.LittleEndian.Uint64(got); n == len(got) && have < least {
							t.Errorf("M%d reads %d, the other mount had written %d", i, have, least)
							return
						}
					}
				}
			})
		}
		g.Wait()
	})
}

// TestReadBesideATruncateSeesNoZeros: one mount truncates a file and writes it again from its start; another one, that reads
// meanwhile, sees what was written or the end, and never the zeros that its kernel fills pages with.
func TestReadBesideATruncateSeesNoZeros(t *testing.T) {
	coherent(t, func(t *testing.T, m *mounts) {
		roots := m.folders(t)
		m.setstripe(t, filepath.Join(roots[0], "f"), 2, "64K")
		full := bytes.Repeat([]byte{'x'}, stripeBytes+9000)
		writer, err := unix.Open(filepath.Join(roots[0], "f"), unix.O_RDWR|unix.O_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(writer)
		reader, err := unix.Open(filepath.Join(roots[1], "f"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		must(t, err)
		defer unix.Close(reader)
		var over atomic.Bool
		var g sync.WaitGroup
		g.Go(func() {
			defer over.Store(true)
			rng := rand.New(rand.NewPCG(1, 1))
			for end := time.Now().Add(pagesRun); time.Now().Before(end); {
				_, err := unix.Pwrite(writer, full, 0)
				if err := errors.Join(err, unix.Ftruncate(writer, rng.Int64N(stripeBytes+9000))); err != nil {
					t.Error(err)
					return
				}
			}
		})
		rng := rand.New(rand.NewPCG(2, 2))
		buf := make([]byte, 6000)
		for !over.Load() {
			at := int64(stripeBytes - 9000 + rng.IntN(15000))
			n, err := unix.Pread(reader, buf, at)
			must(t, err)
			if i := bytes.IndexByte(buf[:n], 0); i >= 0 {
				t.Errorf("a read of %d bytes at %d has zeros from %d on", n, at, i)
				break
			}
		}
		g.Wait()
	})
}
