package param

// protocolVersion is what both sides speak.
const protocolVersion = 1

// Operations.
const (
	opList      = "list"
	opGet       = "get"
	opSet       = "set"
	opPermanent = "permanent"
)

// greeting is the server's first line.
type greeting struct {
	Strake  int    `json:"strake"`
	Role    string `json:"role"`
	PID     int    `json:"pid"`
	FSName  string `json:"fsname"`
	Version string `json:"version"`
	MGS     bool   `json:"mgs"`

	// Of an answer in the greeting's place.
	End   bool   `json:"end,omitempty"`
	Error string `json:"error,omitempty"`
}

type request struct {
	V         int    `json:"v"`
	Op        string `json:"op"`
	Pattern   string `json:"pattern"`
	Value     string `json:"value,omitempty"`
	Recursive bool   `json:"recursive,omitempty"`
}

// answer is a line for a node, or the end.
type answer struct {
	Name     string  `json:"name,omitempty"`
	Text     *string `json:"text,omitempty"`
	Folder   bool    `json:"folder,omitempty"`
	Writable bool    `json:"writable,omitempty"`

	Code  uint32 `json:"code,omitempty"`
	Error string `json:"error,omitempty"`

	End   bool `json:"end,omitempty"`
	Nodes int  `json:"nodes,omitempty"`
}
