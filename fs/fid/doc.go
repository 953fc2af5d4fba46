// Package fid holds file identifiers and the sequences they are drawn from.
//
// Words (Lustre Operations Manual, "Lustre File System Storage and I/O"):
//
//   - FID: a 128-bit identifier of a file system object: sequence (64 bit), object id (32), version (32). Never reused.
//   - sequence: a range of Width object ids that one client may name new files from.
//   - object id (OID): the number inside the sequence, 1 to Width-1.
//
// Invariant: Ino is one to one with the FID for every FID that a metadata target hands out, so a client needs no
// table from inode numbers to FIDs.
package fid
