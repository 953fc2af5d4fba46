package mdt

import (
	"unsafe"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/stats"
)

// tableStats gives the registry the figures of the table of open inodes. Its shards are Go's maps, which do not tell their
// chains. What is in it is in use: it has no limit of its own and evicts nothing.
func (t *openTable) tableStats(to *stats.TableStats) {
	const each = int64(unsafe.Sizeof(openFile{}) + unsafe.Sizeof(fid.FID{}) + unsafe.Sizeof((*openFile)(nil)))
	to.Name, to.Entries, to.Bytes, to.Rule = "OPEN", 0, 0, "grows with the files that clients have open"
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		to.Entries += int64(len(s.files))
		to.Bytes += int64(len(s.files))*each + int64(len(s.free))*int64(unsafe.Sizeof(openFile{}))
		for _, f := range s.files {
			to.Bytes += int64(cap(f.writers)) * int64(unsafe.Sizeof(writer{}))
		}
		s.mu.Unlock()
	}
	to.Busy = to.Entries
}
