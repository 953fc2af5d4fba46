// Package attr holds inode attributes, the mask that says which of them are meant, caller credentials and the
// names of extended attributes.
//
// The words are those of stat(2), statx(2), chattr(1), xattr(7) and acl(5). Mode holds the type bits of S_IFMT and
// the twelve permission bits, as in struct stat.
package attr
