package mdt

import (
	"fmt"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/store"
)

// ProblemKind is what a record says that cannot be. The texts are what people and scripts read; they never change.
type ProblemKind string

// Kinds of problems of an MDT's records. Beside each: what Repairer.Fix does.
const (
	// ProblemRecord: a record does not decode. What can be read of an inode is kept, everything else goes. One of a later
	// version is left alone.
	ProblemRecord ProblemKind = "bad-record"
	// ProblemDangling: an entry leads to an inode that is not there. It goes.
	ProblemDangling ProblemKind = "dangling-entry"
	// ProblemEntry: an entry has a name that cannot be, leads to the root, or comes twice. It goes.
	ProblemEntry ProblemKind = "bad-entry"
	// ProblemPlace: an entry stands where no lookup finds it. It moves.
	ProblemPlace ProblemKind = "entry-place"
	// ProblemEntryType: an entry's type is not its inode's. It takes that.
	ProblemEntryType ProblemKind = "entry-type"
	// ProblemNoFolder: entries of a folder that is not there. It is made anew, with them.
	ProblemNoFolder ProblemKind = "missing-folder"
	// ProblemNotFolder: entries of what is no folder, or of a removed one. They go.
	ProblemNotFolder ProblemKind = "not-a-folder"
	// ProblemLost: an inode has no name. It goes into lost+found.
	ProblemLost ProblemKind = "lost-inode"
	// ProblemCircle: folders are inside each other. One of them goes into lost+found.
	ProblemCircle ProblemKind = "folder-circle"
	// ProblemNames: a folder has several names. One stays.
	ProblemNames ProblemKind = "folder-names"
	// ProblemNlink: a link count is not the number of names. It is set.
	ProblemNlink ProblemKind = "link-count"
	// ProblemEntries: a folder's count is not the number of its entries. It is set.
	ProblemEntries ProblemKind = "entry-count"
	// ProblemLinks: parent links are not the names. They are made anew.
	ProblemLinks ProblemKind = "parent-links"
	// ProblemStamp: an entry is stamped later than its folder's content. The folder is stamped.
	ProblemStamp ProblemKind = "content-stamp"
	// ProblemOrphan: an unlinked inode has no orphan record, or a record of what has a name or is not there. It is put, or goes.
	ProblemOrphan ProblemKind = "orphan-record"
	// ProblemXattr: a value in the xattr table and the inode's own list do not agree. What is on one side only goes.
	ProblemXattr ProblemKind = "xattr"
	// ProblemSequence: an inode's FID is not counted as used. It is.
	ProblemSequence ProblemKind = "sequence"
	// ProblemRoot: there is no root folder. It is made.
	ProblemRoot ProblemKind = "missing-root"
)

// Problem is one thing that is wrong. Two of the same Key are the same.
type Problem struct {
	Kind ProblemKind
	// FID is the inode concerned, zero for a record that tells none.
	FID fid.FID
	// Folder, Name and Cookie are of an entry.
	Folder fid.FID
	Name   string
	Cookie uint64
	// Table and RecordKey are of a record that is bad or too many.
	Table     store.Table
	RecordKey string
	Detail    string
	// Settled is false for what may have changed while it was looked at.
	Settled bool
	// want is the right figure, also that of subfolders in subdirs.
	want, subdirs uint64
}

// Key names the problem.
func (p *Problem) Key() string {
	return fmt.Sprintf("%s %v %v %d %d %q %q", p.Kind, p.FID, p.Folder, p.Cookie, p.Table, p.RecordKey, p.Name)
}

// Structural reports whether mending the problem moves figures of others: it comes before those are set.
func (p *Problem) Structural() bool {
	switch p.Kind {
	case ProblemNlink, ProblemEntries, ProblemLinks, ProblemStamp:
		return false
	}
	return true
}
