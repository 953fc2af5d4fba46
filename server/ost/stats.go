package ost

import "github.com/strakefs/strake/fs/stats"

// ostStats is the figures of an OST, under obdfilter.<name>.
type ostStats struct {
	readBytes, writeBytes *stats.Counter
	readTime, writeTime   *stats.Histogram
	commits               *stats.Histogram
	created, destroyed    *stats.Counter
	syncs                 *stats.Counter
	heated, rescanned     *stats.Counter
}

// newStats enters the counters; without a registry they count unseen.
func newStats(r *stats.Registry, name string) ostStats {
	if r == nil {
		r = stats.NewRegistry()
	}
	base := "obdfilter." + name + "."
	return ostStats{
		readBytes:  r.Counter(base+"read_bytes", "Bytes read."),
		writeBytes: r.Counter(base+"write_bytes", "Bytes written."),
		readTime:   r.Histogram(base+"brw_stats.read", "Time of reads in the object layer."),
		writeTime:  r.Histogram(base+"brw_stats.write", "Time of writes in the object layer."),
		commits:    r.Histogram(base+"commit_time", "Time of commits, the host's flush included."),
		created:    r.Counter(base+"objects_created", "Objects made ahead."),
		destroyed:  r.Counter(base+"objects_destroyed", "Objects destroyed."),
		syncs:      r.Counter(base+"sync_count", "Syncs that clients asked for."),
		heated:     r.Counter(base+"hot_marks", "Objects marked hot before a write."),
		rescanned:  r.Counter(base+"rescanned", "Records put right after a crash."),
	}
}

// register enters what is measured when it is read.
func (o *OST) register() {
	r := o.o.Stats
	if r == nil {
		return
	}
	base := "obdfilter." + o.o.Name + "."
	r.Func(base+"tot_granted", "Bytes promised to clients.", func() int64 { n, _ := o.space.sums(); return n })
	r.Func(base+"tot_dirty", "Bytes that clients hold dirty, as they told.", func() int64 { _, n := o.space.sums(); return n })
	r.Func(base+"uncommitted_bytes", "Bytes written since the last commit began.", o.dirty.Load)
	r.Func(base+"last_committed", "Newest change on disk with all before it.", func() int64 { return int64(o.committed.Load()) })
	r.Func(base+"kbytestotal", "Size in KiB.", func() int64 { return int64(o.space.now().Total >> 10) })
	r.Func(base+"kbytesfree", "Free space in KiB.", func() int64 { return int64(o.space.now().Free >> 10) })
	r.Func(base+"kbytesavail", "Space for users in KiB.", func() int64 { return int64(o.space.now().Avail >> 10) })
	r.Func(base+"filestotal", "Inodes.", func() int64 { return int64(o.space.now().Inodes) })
	r.Func(base+"filesfree", "Free inodes.", func() int64 { return int64(o.space.now().FreeInodes) })
	r.Table("obdfilter."+o.o.Name, "The object cache.", o.cache.tableStats)
	r.Func(base+"idle_handles", "Objects that nobody uses with a file kept open.", o.cache.handles)
	r.Text(base+"state", "serving, full or stopped.", o.State)
}
