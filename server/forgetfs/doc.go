// Package forgetfs is a disk for tests: a FUSE file system over a plain folder that keeps in memory whatever was not
// flushed, and on command forgets it, as a disk does that loses power. No program links it; test binaries serve it from a
// process of their own (Helper, Start), so that the processes under test can be killed and the disk stays.
//
// Words:
//
//   - backing folder: what is on the disk, in plain files under their names.
//   - image: what the mount shows: the backing folder with all that is pending on top. A cut makes a new one.
//   - pending: a change that the mount shows and the backing folder does not have.
//   - cut: loss of power. Forget drops all that is pending; tear keeps a random part of it.
//
// # What a flush keeps
//
// The promises are those of ext4, and no more than they are, so that a missing fsync shows:
//
//	fsync, fdatasync of a file    its bytes, size and attributes; and its names, if it is not on the disk yet
//	fsync of a folder             every change of names in it: create, link, unlink, rename from or to it, mkdir, rmdir;
//	                              and its own name, if it is not on the disk yet
//	syncfs                        nothing: the kernel tells no FUSE server of it (only virtiofs and fuseblk)
//	close                         nothing
//
// A change of names takes along the earlier ones that it stands on: those of the same name or the same file, and the
// making of the folders above. Others in the same folder may stay behind, in any order.
//
// # What a cut may keep
//
// A tear applies each pending change of names with even chance, with what it stands on; of each file's pending bytes
// none, all, or each piece of Grain bytes with even chance; and for its size the old one, the new one, or one between. A
// piece is the old or the last version of its bytes. What lies between is zeros.
//
// # Faults
//
// Fail makes fsync or write of files by name fail with EIO. Bytes whose fsync failed stay readable while the file is open and are clean: no
// later fsync writes them, as with the kernel's own page cache. Room bounds the space that is left; a page that has no
// place on the disk yet takes 4 KiB of it.
//
// Invariant: the backing folder changes only in sync, in a cut, and for a file without a name.
//
// Invariant: pending changes are applied in the order they were made; the set applied holds all that its members stand on.
//
// Lock order: server.mu, image.mu.
package forgetfs
