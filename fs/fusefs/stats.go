package fusefs

import (
	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/stats"
)

// operation is what a request is counted as in the mount's stats file.
type operation uint8

// The rows, under Lustre's names where it has them; see operationNames.
const (
	opLookup operation = iota
	opGetattr
	opSetattr
	opTruncate
	opOpen
	opCreate
	opMknod
	opMkdir
	opSymlink
	opLink
	opUnlink
	opRmdir
	opRename
	opReadlink
	opReaddir
	opRead
	opWrite
	opFlush
	opFsync
	opSeek
	opFallocate
	opCopy
	opFlock
	opIoctl
	opStatfs
	opGetxattr
	opSetxattr
	opListxattr
	opRemovexattr
	opTimed // those above have a time

	// opClose counts releases: they wait for nothing, and reading the clock would be most of their cost.
	opClose = iota - 1
	opReadBytes
	opWriteBytes
	operations
)

var operationNames = [operations]string{
	opLookup: "lookup", opGetattr: "getattr", opSetattr: "setattr", opTruncate: "truncate", opOpen: "open", opCreate: "create",
	opMknod: "mknod", opMkdir: "mkdir", opSymlink: "symlink", opLink: "link", opUnlink: "unlink", opRmdir: "rmdir",
	opRename: "rename", opReadlink: "readlink", opReaddir: "readdir", opRead: "read", opWrite: "write", opFlush: "flush",
	opFsync: "fsync", opSeek: "seek", opFallocate: "fallocate", opCopy: "copy_file_range", opFlock: "flock", opIoctl: "ioctl",
	opStatfs: "statfs", opGetxattr: "getxattr", opSetxattr: "setxattr", opListxattr: "listxattr", opRemovexattr: "removexattr",
	opClose: "close", opReadBytes: "read_bytes", opWriteBytes: "write_bytes",
}

// counts are the rows of a mount's stats file.
type counts [operations]*stats.Tally

// register makes the rows; without a registry they count unseen.
func (c *counts) register(reg *stats.Registry, path string) {
	rows := new(stats.Rows)
	if reg != nil {
		rows = reg.Rows(path, "Requests of the kernel, with the time until they were answered; bytes of reads and writes.")
	}
	for op, name := range operationNames {
		unit := stats.Microseconds
		switch {
		case op == opClose:
			unit = stats.Requests
		case op >= int(opTimed):
			unit = stats.Bytes
		}
		c[op] = rows.Row(name, unit)
	}
}

// begin makes the context of a request that is counted as op when it is freed.
func (f *FS) begin(cancel <-chan struct{}, pid uint32, op operation) *requestContext {
	c := f.requests.begin(cancel, pid)
	c.tally = f.counts[op]
	return c
}

// making gives the row of a request that makes an inode without opening it.
func (m *making) op() operation {
	switch m.what.Mode & attr.TypeMask {
	case attr.TypeDir:
		return opMkdir
	case attr.TypeLink:
		return opSymlink
	}
	return opMknod
}

// pick is a if it is, b otherwise.
func pick(is bool, a, b operation) operation {
	if is {
		return a
	}
	return b
}
