package boltdev

import (
	"time"

	"github.com/strakefs/strake/fs/stats"
	bolt "go.etcd.io/bbolt"
)

// deviceStats are the figures of a device. Without a registry they count for nobody.
type deviceStats struct {
	commits, ops, bytes, throttled, flushes, syncfs *stats.Counter
	txgOps, txgBytes                                *stats.Gauge // of the last txg
	commit, flush                                   *stats.Histogram
}

// tableStats are the figures of one table.
type tableStats struct {
	// published counts steps, merged those of them that found their key in the open txg; puts and deletes count what
	// commits did.
	published, merged, puts, deletes *stats.Counter
}

// prefix is the path of the device's figures, with the last dot.
func (o Options) prefix() string { return o.StatsClass + "." + o.StatsName + "." }

// register enters the figures.
func (d *Device) register() {
	r := d.o.Stats
	if r == nil {
		r = stats.NewRegistry()
	}
	p := d.o.prefix()
	if d.o.Stats == nil {
		p = "osd.none."
	}
	target := stats.Label{Name: "target", Value: d.o.StatsName}
	counter := func(name, help string) *stats.Counter {
		return r.Counter(p+name, help, stats.Metric("strake_osd_"+name+"_total"), target)
	}
	gauge := func(name, help string) *stats.Gauge {
		return r.Gauge(p+name, help, stats.Metric("strake_osd_"+name), target)
	}
	measured := func(name, help string, f func() int64) {
		r.Func(p+name, help, f, stats.Metric("strake_osd_"+name), target)
	}
	histogram := func(name, help string) *stats.Histogram {
		return r.Histogram(p+name, help, stats.Metric("strake_osd_"+name+"_seconds"), target)
	}
	d.stats = deviceStats{
		commits:   counter("txg_commits", "Transaction groups committed."),
		ops:       counter("txg_transactions", "Transactions in committed transaction groups."),
		bytes:     counter("txg_bytes", "Overlay bytes of committed transaction groups."),
		throttled: counter("throttled", "Waits of operations for the disk to catch up."),
		flushes:   counter("flushes", "Flushes of object files."),
		syncfs:    counter("flushes_whole", "Flushes of object files that took the whole file system below (syncfs)."),
		txgOps:    gauge("txg_last_transactions", "Transactions in the last committed transaction group."),
		txgBytes:  gauge("txg_last_bytes", "Overlay bytes of the last committed transaction group."),
		commit:    histogram("commit", "Time of one commit."),
		flush:     histogram("flush", "Time of one flush of object files."),
	}
	measured("overlay_bytes", "Memory of transactions that are not on disk.", d.pendingBytes)
	measured("txgs_alive", "Transaction groups alive: open, closed, syncing.", func() int64 {
		return int64(len(d.view.Load().layers))
	})
	measured("database_bytes", "Size of the database in pages that are or were used.", d.figure(func(tx *bolt.Tx) int64 {
		return tx.Size()
	}))
	measured("free_pages", "Pages of the database that are free to use.", func() int64 {
		return int64(d.db.Stats().FreePageN)
	})
	measured("pending_pages", "Pages of the database that wait for readers or the next commit.", func() int64 {
		return int64(d.db.Stats().PendingPageN)
	})
	measured("freelist_bytes", "Size of the database's list of free pages.", func() int64 {
		return int64(d.db.Stats().FreelistInuse)
	})
	measured("readers", "Read transactions of the database at work.", func() int64 {
		_, n := d.readers.oldest()
		return int64(n)
	})
	measured("oldest_reader_ns", "Nanoseconds that the oldest read transaction has kept pages from being used again.", func() int64 {
		age, _ := d.readers.oldest()
		return int64(age)
	})
	measured("open_files", "Object files that are open.", d.objects.open)
	d.registerTables(r, p, target)
}

// registerTables enters the figures of each table.
func (d *Device) registerTables(r *stats.Registry, p string, target stats.Label) {
	d.tableStats = make([]tableStats, len(d.o.Specs))
	for i, s := range d.o.Specs {
		name := stats.Element(s.Name)
		counter := func(what, help string) *stats.Counter {
			return r.Counter(p+"table_"+name+"."+what, help, stats.Metric("strake_osd_"+what+"_total"), target,
				stats.Label{Name: "table", Value: s.Name})
		}
		d.tableStats[i] = tableStats{
			published: counter("published", "Steps of published transactions, by table."),
			merged:    counter("merged", "Published steps that merged with an earlier one of their transaction group."),
			puts:      counter("puts", "Records that commits have written, by table."),
			deletes:   counter("deletes", "Records that commits have removed, by table."),
		}
	}
}

// figure returns a function that asks the database, 0 once it is closed.
func (d *Device) figure(f func(*bolt.Tx) int64) func() int64 {
	return func() (n int64) {
		_ = d.db.View(func(tx *bolt.Tx) error { // fails only when it is closed
			n = f(tx)
			return nil
		})
		return n
	}
}

// SetStatsName gives the device's figures another name: a device is opened before it knows which target it is.
// Precondition: no other device of the registry has the name.
func (d *Device) SetStatsName(name string) {
	if d.o.Stats == nil {
		return
	}
	old := d.o.prefix()
	d.o.StatsName = name
	d.o.Stats.Rename(old, d.o.prefix())
}

// unregister takes the figures out of the registry.
func (d *Device) unregister() {
	if d.o.Stats != nil {
		d.o.Stats.Unregister(d.o.prefix())
	}
}

// committed counts a commit.
func (s *deviceStats) committed(l *layer, took time.Duration) {
	s.commits.Inc()
	s.ops.Add(int64(l.ops))
	s.bytes.Add(l.arena.used)
	s.txgOps.Set(int64(l.ops))
	s.txgBytes.Set(l.arena.used)
	s.commit.Observe(took)
}
