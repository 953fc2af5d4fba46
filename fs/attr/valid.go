package attr

// Valid says which attributes of a request are meant.
type Valid uint32

// Attributes that a setattr can name. The Now variants take the server's clock; Touch marks utimes(2) with
// explicit times, which needs ownership rather than write permission.
const (
	ValidMode Valid = 1 << iota
	ValidUID
	ValidGID
	ValidSize
	ValidAtime
	ValidMtime
	ValidCtime
	ValidAtimeNow
	ValidMtimeNow
	ValidProjID
	ValidFlags
	// ValidKillSuid asks the server to clear set-uid, set-gid and file capabilities as write(2) by this caller does.
	ValidKillSuid
	// ValidOpenHandle says that the change goes through a handle open for writing, so that write permission was
	// checked at open (ftruncate).
	ValidOpenHandle
)

// Has reports whether all bits of w are set.
func (v Valid) Has(w Valid) bool { return v&w == w }

// Any reports whether one bit of w is set.
func (v Valid) Any(w Valid) bool { return v&w != 0 }
