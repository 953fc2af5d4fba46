// Package wire is the protocol's language: opcodes, the frame header, conversion between messages and the types of the
// rest of the program.
//
// The bodies are protobuf messages of package wirepb, generated from wire.proto. Their types stop at the handlers and
// at the client's per-target packages; file data follows as raw bulk, outside protobuf.
//
// Messages come from pools (XFromVTPool, ReturnToVTPool), because nothing on a steady path allocates. A pooled message
// keeps the memory of its bytes fields. So a bytes field is always filled with append(m.F[:0], v...), never assigned:
// an assigned slice would be written into by the message's next user.
package wire
