package rpc

import "github.com/strakefs/strake/fs/wire"

// Message is the protobuf body of a frame, with the methods that vtprotobuf generates. Every type of package wirepb is one.
type Message interface {
	// SizeVT is the encoded size in bytes.
	SizeVT() int
	// MarshalToSizedBufferVT encodes into the end of b and returns how many bytes it took.
	MarshalToSizedBufferVT(b []byte) (int, error)
	// UnmarshalVT adds the fields in b to the message. It copies what it keeps.
	UnmarshalVT(b []byte) error
}

// Request is one call, as the caller hands it to Import.Do or Conn.Callback. It belongs to the caller, except while Do
// runs, and may be used again after Do returned; nothing of package rpc touches it, its messages or its memory then.
type Request struct {
	// Op is what is asked.
	Op wire.Op
	// Reserve takes a slot of the reserve, as operations with wire.Op.Prior do: for an operation that changes nothing and
	// that others in flight wait for, such as the enqueue that hands a lock back. It does not change the server's order.
	Reserve bool
	// Body is the request's body; nil is an empty one. It is encoded before Do waits.
	Body Message
	// Reply gets the reply's body when the status is 0; nil ignores it. It must be in its reset state.
	Reply Message
	// Bulk is sent behind the body: at most wire.BulkMax bytes in all, unchanged until Do returns.
	Bulk [][]byte
	// Into is the room for the reply's bulk. A peer that sends more is cut off.
	Into []byte

	// Answered, if set, runs when Reply is filled, before Do returns and before a recovery of this import can begin: who keeps
	// for a recovery what the answer has brought, an open or a copy of bulk, keeps it here. It must not wait.
	Answered func(r *Request)

	// N is how many bytes of reply bulk were put into Into.
	N int
	// Transno is the number of the modification, 0 for none.
	Transno wire.Transno
	// LastCommitted is the target's newest transno on disk when it answered.
	LastCommitted wire.Transno
	// Instance is the start of the target that answered. The import may be connected to a later one when Do returns.
	Instance uint64
}
