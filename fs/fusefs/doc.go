// Package fusefs serves a client as a FUSE mount: one method for each request of the kernel, on go-fuse's raw API. It is
// the only place where errors become errno.
//
// Words: those of fuse(4). A node number is the file's inode number; it is made from the FID and needs no table, so
// FORGET means nothing here. A file handle (fh) is the number of an open file or folder in this mount.
//
// Permission: the mount has default_permissions, so the kernel checks with the attributes it has; the servers check again
// with the caller's ids, which is what counts.
//
// Interrupts: a signal alone does not end a request, because calls on files do not fail with EINTR on a local file
// system either. A request ends early only when its caller is being killed, or when the kernel has ended the connection.
//
// Lock order: none of this package's locks is held across a call of the client.
package fusefs
