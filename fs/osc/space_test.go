package osc

import "testing"

func TestBlocksAreGuessedBetweenAnswers(t *testing.T) {
	for _, c := range []struct {
		name  string
		do    func(s *space)
		dirty uint64
		end   uint64
		want  uint64
		vague bool
	}{
		{"dirty only", func(*space) {}, 100, 100, 8, false},
		{"written small", func(s *space) { s.wrote(0, 1, 0) }, 0, 1, 8, false},
		{"appended in the same unit", func(s *space) { s.wrote(0, 100, 0); s.wrote(100, 200, 0) }, 0, 200, 8, false},
		{"stream", func(s *space) { s.wrote(0, 1<<20, 0); s.wrote(1<<20, 2<<20, 0) }, 0, 2 << 20, 4096, false},
		{"out of order", func(s *space) { s.wrote(1<<20, 2<<20, 0); s.wrote(0, 1<<20, 0) }, 0, 2 << 20, 4096, true},
		{"sparse", func(s *space) { s.wrote(0, 4096, 0); s.wrote(1<<30, 1<<30+4096, 0) }, 0, 1<<30 + 4096, 16, false},
		{"overwrite", func(s *space) { s.told(8, 4096); s.wrote(0, 4096, 8) }, 0, 4096, 8, false},
		{"dirty overwrite", func(s *space) { s.told(8, 4096) }, 4096, 4096, 8, false},
		{"dirty growth", func(s *space) { s.told(8, 4096) }, 4096, 8192, 16, false},
		{"the OST knows more", func(s *space) { s.wrote(0, 4096, 64) }, 0, 4096, 64, false},
		{"a page in the middle of a hole", func(s *space) { s.told(0, 1<<24); s.wrote(1<<20, 1<<20+100, 0) }, 0, 1 << 24, 8, true},
		{"dirty in the middle of a hole", func(s *space) { s.told(0, 1<<24) }, 100, 1 << 24, 8, false},
		{"never more than the size", func(s *space) { s.told(0, 8192); s.wrote(0, 4096, 0); s.wrote(0, 4096, 0); s.wrote(0, 4096, 0) }, 0, 8192, 16, true},
		{"cut", func(s *space) { s.told(2048, 1<<20); s.told(guessCut(s.blocks, 2048, 5000), 5000) }, 0, 5000, 16, false},
		{"cut and written again", func(s *space) { s.told(8, 4096); s.cut(0); s.told(guessCut(8, 8, 0), 0); s.wrote(0, 4096, 0) }, 0, 4096, 8, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s space
			c.do(&s)
			if n := s.guess(c.dirty, c.end); n != c.want || s.vague != c.vague {
				t.Fatalf("%d blocks, vague %v; want %d, %v", n, s.vague, c.want, c.vague)
			}
		})
	}
}
