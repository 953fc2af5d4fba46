package mdt

import (
	"encoding/binary"
	"testing"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/store"
)

// TestContentStampKeepsSharing: a folder's content stamp names a client only if no other one's change before it can be lost.
func TestContentStampKeepsSharing(t *testing.T) {
	type change struct{ transno, client, onDisk uint64 }
	for _, c := range []struct {
		name    string
		changes []change
		want    uint64
	}{
		{"one client", []change{{10, 1, 9}, {11, 1, 9}}, 1},
		{"another one's is on disk", []change{{10, 1, 9}, {11, 2, 10}}, 2},
		{"another one's is not", []change{{10, 1, 9}, {11, 2, 9}}, severalClients},
		{"several, then one", []change{{10, 1, 9}, {11, 2, 9}, {12, 2, 9}}, severalClients},
		{"several, all on disk, then one", []change{{10, 1, 9}, {11, 2, 9}, {12, 2, 11}}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := inode{}
			n.Mode, n.content = attr.TypeDir, stamp{9, 3}
			one := n.appendTo(nil)
			var all []byte
			for _, ch := range c.changes {
				d := make([]byte, deltaSize)
				putDelta(d, 0, 1, attr.Time{}, stamp{store.Transno(ch.onDisk), ch.client})
				binary.BigEndian.PutUint64(d[deltaAtContent:], ch.transno)
				one = inodeMerger{}.Apply(nil, one, d)
				if all == nil {
					all = d
				} else {
					all = inodeMerger{}.Combine(nil, all, d)
				}
			}
			want := stamp{store.Transno(c.changes[len(c.changes)-1].transno), c.want}
			if got := getStamp(one[atContentNo:]); got != want {
				t.Errorf("one by one %v, want %v", got, want)
			}
			if got := getStamp(inodeMerger{}.Apply(nil, n.appendTo(nil), all)[atContentNo:]); got != want {
				t.Errorf("at once %v, want %v", got, want)
			}
		})
	}
}
