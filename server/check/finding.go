package check

import (
	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/server/mdt"
)

// Kinds of findings between an MDT and its OSTs; those of one target alone are of packages mdt and ost. The texts never change.
const (
	// KindMissingObject: a file lists an object that is not there. An empty one is made.
	KindMissingObject = "missing-object"
	// KindOrphanObject: no file lists an object. With bytes it becomes a file in lost+found, else it is destroyed.
	KindOrphanObject = "orphan-object"
	// KindObjectRecord: a record of an object that is not there, and that no file lists. It goes.
	KindObjectRecord = "object-record"
	// KindObjectOwner: an object says that it belongs to another file, or is another stripe. It is set.
	KindObjectOwner = "object-owner"
	// KindObjectIDs: an object is charged to other ids than its file's. They are set.
	KindObjectIDs = "object-ids"
	// KindObjectSize: an object's record says another size than its file, after a clean stop. It is set.
	KindObjectSize = "object-size"
	// KindSize: the size on the MDT counts as the whole truth and is not what the objects say. It no longer counts.
	KindSize = "size-on-mdt"
	// KindShared: two files list one object. It is left alone.
	KindShared = "shared-object"
	// KindNoOST: a file, or a log record, names an OST that the file system does not have. A log record goes.
	KindNoOST = "unknown-ost"
	// KindLog: a log record that does not decode, or that would destroy an object that a file lists. It goes.
	KindLog = "log-record"
	// KindLastUsed: the MDT's last used id of an OST is below one that a file lists. It is set.
	KindLastUsed = "last-used-id"
	// KindLastObject: an OST's last id is below one that a file lists. It is set.
	KindLastObject = "last-object-id"
)

// Finding is one line of the report.
type Finding struct {
	Kind   string `json:"kind"`
	Target string `json:"target"`
	// FID is the inode concerned; Object is group:id.
	FID    string `json:"fid,omitempty"`
	Object string `json:"object,omitempty"`
	// Path is where it is, as far as it is known.
	Path   string `json:"path,omitempty"`
	Detail string `json:"detail"`
	// Done is what a repair did; empty when nothing was, or the repair failed, as Problem says then.
	Done    string `json:"done,omitempty"`
	Problem string `json:"problem,omitempty"`
	// Repaired is true when the last round no longer found it.
	Repaired bool `json:"repaired"`
}

// Summary is the end of a report.
type Summary struct {
	FSName   string   `json:"fsname"`
	Targets  []string `json:"targets"`
	Inodes   uint64   `json:"inodes"`
	Files    uint64   `json:"files"`
	Objects  uint64   `json:"objects"`
	Findings int      `json:"findings"`
	Left     int      `json:"left"`
	// Waiting counts what recovery may put right; Spare unused objects; Kept objects of no file that wait for the administrator's word
	// after the MDT was restored; Busy what never stood still on a running file system.
	Waiting int `json:"waiting"`
	Spare   int `json:"spare"`
	Kept    int `json:"kept"`
	Busy    int `json:"busy"`
	// Missing names OSTs that were not there to be looked at.
	Missing []string `json:"missing,omitempty"`
	Rounds  int      `json:"rounds"`
	Online  bool     `json:"online"`
	Repair  bool     `json:"repair"`
}

// issue is a finding while it is being judged.
type issue struct {
	key     string
	settled bool
	// figure says that it is mended only when nothing else is left to mend.
	figure  bool
	finding Finding
	f       fid.FID
	problem *mdt.Problem // of the MDT's own
	fix     func(r *repairer) (string, error)
}

// ostKey names the objects of one OST.
type ostKey = layout.OSTIndex
