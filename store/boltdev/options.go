package boltdev

import (
	"errors"
	"log/slog"
	"time"

	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/store"
	bolt "go.etcd.io/bbolt"
)

// Label is the identity record of a device.
type Label = store.Label

// Why a device is not opened. Every error of Open says which folder, and what to do.
var (
	// ErrForeign: the folder holds something, and no database of ours.
	ErrForeign = errors.New("not a strake data folder")
	// ErrMismatch: the folder belongs to another file system or another kind of target.
	ErrMismatch = errors.New("data folder of another target")
	// ErrCorrupt: the database is truncated or damaged.
	ErrCorrupt = errors.New("damaged database")
	// ErrNotEmpty: a restore needs an empty folder.
	ErrNotEmpty = errors.New("the folder is not empty")
	// ErrInUse: another process has the folder open.
	ErrInUse = errors.New("data folder in use by another process")
	// ErrReadOnly: the device was opened to be looked at.
	ErrReadOnly = errors.New("data folder opened to be read only")
)

// Options of a device. Zero values mean the defaults given.
type Options struct {
	// Dir is the data folder.
	Dir string
	// Specs are the tables, at most 256. A table that is not on disk yet is added.
	Specs []store.Spec
	// Label is written at format. Later FSName and Kind, where not empty, must be those on disk.
	Label Label
	Log   *slog.Logger
	// Stats gets the device's figures under "<StatsClass>.<StatsName>.", such as osd-strake.strake-MDT0000; nil: none.
	Stats                 *stats.Registry
	StatsClass, StatsName string
	// CommitInterval is the time from the first publish of a txg to its commit; 500 ms.
	CommitInterval time.Duration
	// TxgMaxBytes and TxgMaxOps close a txg; 32 MiB and 20,000. Three txgs bound the memory. Commits of 50,000 creates
	// were measured to take seconds, ones of 10,000 130 ms, at the same rate and more.
	TxgMaxBytes int64
	TxgMaxOps   int
	// Reserve is the space that only deletes and replays may use; 256 MiB.
	Reserve int64
	// MaxOpen bounds the object files that are open without a handle; 1,024.
	MaxOpen int
	// ReadOnly opens a device to look at it: the folder is locked as ever, nothing in it is changed, the start does not count,
	// and Publish and the making and removing of objects are refused. Tables that are not there are empty.
	ReadOnly bool
	// LockTimeout is how long Open waits for another process to let go of the folder; 1 s.
	LockTimeout time.Duration
	// Fault, if set, is called at the points "commit", "flush", "sync" and "label" before they reach the disk, and may wait; an error
	// fails them. For tests and fail points.
	Fault func(point string) error
	// Full, if set, reports whether Throttle is to find no room but the reserve, whatever the disk has. For fail points.
	Full func() bool
	// Hold, if set, reports whether a txg is to stay open until it is full, whoever waits for it; it is called with the device's lock
	// held. For fail points.
	Hold func() bool
}

func (o Options) withDefaults() Options {
	def := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.TxgMaxBytes, 32<<20)
	def(&o.Reserve, 256<<20)
	if o.TxgMaxOps == 0 {
		o.TxgMaxOps = 20_000
	}
	if o.CommitInterval == 0 {
		o.CommitInterval = 500 * time.Millisecond
	}
	if o.MaxOpen == 0 {
		o.MaxOpen = 1024
	}
	if o.LockTimeout == 0 {
		o.LockTimeout = time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// mapBytes is the address space of the database's map, far above need: a map that has to grow waits for every reader,
// and every reader that comes then waits for it. It costs address space only. At mapReserve below it the device is full:
// room for the txgs alive and for deletes.
const (
	mapBytes   = 256 << 30
	mapReserve = 768 << 20
)

// pageBytes is the size of the database's pages.
const pageBytes = 4096

// growBytes is how much the file grows at once: each growth costs a flush of its own beside the commit's two.
const growBytes = 64 << 20

// boltOptions are the options of bbolt.
func boltOptions() *bolt.Options {
	return &bolt.Options{
		// The folder is locked already; a lock on the file alone is somebody's tool.
		Timeout: time.Second,
		// Finding a run of free pages in the array is linear in their number: commits of a large, old database crawl.
		FreelistType: bolt.FreelistMapType,
		// The list of free pages goes to disk with each commit, 8 bytes a page. Without it each start would walk the whole
		// database, and a target that restarts has a recovery window to meet.
		NoFreelistSync:  false,
		InitialMmapSize: mapBytes,
		MaxSize:         mapBytes,
		// The flush after a growth must stay: ext4 could keep a size below the pages that the meta page names.
		NoGrowSync: false,
		// 4 KiB, the page of the processor. With 8 KiB a mass of creates took a tenth less processor time (400,000 in
		// commits of 20,000: 3.6 s against 4.1 s) and a commit of one create a third longer (0.9 ms against 0.67 ms): keys of
		// folder entries are random, each of them rewrites a page.
		PageSize: pageBytes,
	}
}

// Names in the database.
var (
	bucketDevice = []byte("device")
	bucketLabel  = []byte("label")
	keyFormat    = []byte("format")
	keyStarts    = []byte("starts")
	keyCommitted = []byte("committed")
	keyRecord    = []byte("record")
)

// bucketOf is the bucket of a table.
func bucketOf(name string) []byte { return append([]byte("t/"), name...) }

// Names in the data folder.
const (
	dbName      = "meta.db"
	newName     = "meta.db.new" // while it is formatted
	objectsName = "O"
)

// formatVersion is the version of what doc.go draws.
const formatVersion = 1
