package store

// TargetKind says what a device belongs to.
type TargetKind string

// Kinds of targets that own a device.
const (
	KindMDT TargetKind = "MDT"
	KindOST TargetKind = "OST"
)

// Label is the identity record of a device: which target of which file system its data is.
type Label struct {
	// FSName is the file system's name.
	FSName string
	Kind   TargetKind
	// Index is the target's number, -1 while the MGS has given none.
	Index int32
	// FSUUID names the file system, empty until the MGS has told it; UUID names this device.
	FSUUID, UUID string
	// FSKey is the file system's secret: the key of the hash of names.
	FSKey []byte
}

// Labeled is a device that keeps a Label.
type Labeled interface {
	// Label returns the record as it is on disk.
	Label() Label
	// SetLabel replaces it. It is durable when SetLabel returns.
	SetLabel(Label) error
}
