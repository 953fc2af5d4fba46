// Package mdc is one MDT as a client sees it: typed calls over an import, the identifiers that the client names its new
// files with, and the queue of closes and size reports that travel many to a request.
//
// Words:
//
//   - caller: who asks, as the kernel told it: file system ids, groups, umask.
//
//   - entry: what the MDT answers with about one inode: attributes, layout, handle, symlink target.
//
//   - report: what a writer knows of a file's size and times; done says that it is no writer any more.
//
//   - mark: a file that this client may have written and whose size the MDT does not know yet.
//
// An MDT that was started again gets back (Restore): every open whose close it has not answered, closes on their way included, and
// every mark. A close that was on its way meanwhile is sent once more under a new number: an answer from the MDT's disk does
// not close what was handed back.
//
// Lock order: MDC.seqMu, closer.mu and opens.mu stand alone; none is held across a request.
package mdc
