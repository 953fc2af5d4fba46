package boltdev

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/strakefs/strake/store"
)

// sealed makes a backup file of any body, with checksums that match: what is behind them must hold by itself.
func sealed(t testing.TB, body []byte, last store.Transno) string {
	sum := newHasher()
	sum.Write(body)
	head, err := encodeHeader(&Backup{Label: store.Label{FSName: "x", Kind: store.KindMDT}, Transno: last, Made: time.Unix(1, 0)}, int64(len(body)), sum.Sum(nil))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "b")
	if err := os.WriteFile(path, append(head, body...), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// FuzzRestore: whatever the body holds, a restore makes a device that opens, or refuses and leaves nothing.
func FuzzRestore(f *testing.F) {
	end := append([]byte{recEnd}, 0, 0, 0, 0, 0, 0, 0, 7)
	whole := appendTable(nil, 0, "plain")
	whole = appendPut(whole, 0, []byte("a"), []byte("1"))
	whole = append(whole, recTail)
	whole = appendDelete(whole, 0, []byte("a"))
	f.Add(append(bytes.Clone(whole), end...))
	f.Add(append(appendPut(nil, 3, []byte("a"), nil), end...))            // of a table without a name
	f.Add([]byte{recPut, 0, 0xff, 0xff, 0xff, 0xff, 0x0f, 1})             // a length past all bounds
	f.Add(append([]byte{recTable, 0, 0}, end...))                         // a name of nothing
	f.Add(append(appendTable(nil, 1, "../../etc"), end...))               // a name is a name
	f.Add(append(bytes.Clone(whole), recEnd, 0, 0, 0, 0, 0, 0, 0))        // cut short
	f.Add(append(append(bytes.Clone(whole), end...), 'm', 'o', 'r', 'e')) // behind the end
	f.Fuzz(func(t *testing.T, body []byte) {
		dir := filepath.Join(t.TempDir(), "d")
		if _, err := Restore(sealed(t, body, 7), dir); err != nil {
			if _, there := os.Lstat(dir); there == nil {
				t.Fatalf("%v, and the folder was made", err)
			}
			return
		}
		d, err := Open(Options{Dir: dir, Reserve: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := d.RestoredFrom(); !ok || d.Committed() != 7 {
			t.Errorf("%v, committed %d", ok, d.Committed())
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestBackupOfADeviceThatStops: a commit that fails ends the backup, and no file is left.
func TestBackupOfADeviceThatStops(t *testing.T) {
	errDisk := errors.New("disk")
	broken := false
	d, err := Open(Options{Dir: filepath.Join(t.TempDir(), "d"), Specs: []store.Spec{{Name: "plain"}}, Reserve: 1 << 20, CommitInterval: time.Millisecond,
		Fault: func(string) error {
			if broken {
				return errDisk
			}
			return nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	put := func(key string) store.Transno {
		tx := &store.Tx{}
		tx.Put(0, []byte(key), []byte("v"))
		n, err := d.Publish(tx)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if err := d.WaitCommitted(t.Context(), put("a")); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	began := false
	_, err = d.Backup(t.Context(), BackupOptions{Path: filepath.Join(dir, "b"), Progress: func(int64) {
		if !began {
			began = true
			d.mu.Lock() // the fault script is read by the committer alone, which is idle while mu is held
			broken = true
			d.mu.Unlock()
			if err := d.WaitCommitted(t.Context(), put("b")); err == nil {
				t.Error("the commit did not fail")
			}
		}
	}})
	if !errors.Is(err, store.ErrStopped) || !errors.Is(err, errDisk) {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Error(left, err)
	}
	if err := d.Close(); !errors.Is(err, errDisk) {
		t.Error(err)
	}
}
