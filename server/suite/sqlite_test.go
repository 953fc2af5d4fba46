package suite

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// TestSqliteWithWriteAheadLog: WAL mode needs shared mappings of the -shm file and fcntl locks.
func TestSqliteWithWriteAheadLog(t *testing.T) { sqlite(t, "wal") }

// TestSqliteWithRollbackJournal: four writers at once, each with its own process.
func TestSqliteWithRollbackJournal(t *testing.T) { sqlite(t, "delete") }

func sqlite(t *testing.T, journal string) {
	need(t, "sqlite3")
	judged(t, func(t *testing.T, c *cluster) {
		db := filepath.Join(c.folder(t), "test.db")
		sql := func(text string) (string, error) {
			out, err := output("", "sqlite3", "-bail", "-cmd", ".timeout 60000", db, text)
			if err != nil {
				return "", fmt.Errorf("sqlite3: %w: %s", err, out)
			}
			return strings.TrimSpace(out), nil
		}
		if out, err := sql("PRAGMA journal_mode=" + journal + "; CREATE TABLE log(id INTEGER PRIMARY KEY, writer INT, text TEXT);"); err != nil || out != journal {
			t.Fatalf("journal mode %q, error %v", out, err)
		}
		const writers = 4
		transactions := size(20, 250)
		var group sync.WaitGroup
		failed := make(chan error, writers)
		for w := range writers {
			group.Go(func() {
				var b strings.Builder
				for i := range transactions {
					fmt.Fprintf(&b, "BEGIN IMMEDIATE; INSERT INTO log(writer,text) VALUES(%d,hex(randomblob(500))); "+
						"UPDATE log SET text=text||'x' WHERE id%%7=%d; COMMIT;\n", w, i%7)
				}
				if _, err := sql(b.String()); err != nil {
					failed <- err
				}
			})
		}
		group.Wait()
		close(failed)
		for err := range failed {
			t.Error(err)
		}
		for query, want := range map[string]string{
			"SELECT count(*) FROM log;":                 fmt.Sprint(writers * transactions),
			"PRAGMA integrity_check;":                   "ok",
			"SELECT count(DISTINCT writer) FROM log;":   fmt.Sprint(writers),
			"PRAGMA wal_checkpoint(TRUNCATE); SELECT 1": "",
		} {
			out, err := sql(query)
			if err != nil || (want != "" && out != want) {
				t.Errorf("%s gives %q, want %q (%v)", query, out, want, err)
			}
		}
	})
}
