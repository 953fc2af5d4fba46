// Package mdc is one MDT as a client sees it: typed calls over an import, the identifiers that the client names its new
// files with, and the queue of closes and size reports that travel many to a request.
//
// Words:
//
//   - caller: who asks, as the kernel told it: file system ids, groups, umask.
//   - entry: what the MDT answers with about one inode: attributes, layout, handle, symlink target.
//   - report: what a writer knows of a file's size and times; done says that it is no writer any more.
//
// Lock order: MDC.seqMu and closer.mu stand alone; neither is held across a request.
package mdc
