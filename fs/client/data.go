package client

import (
	"context"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/lov"
)

// writing is one write to a file's data.
type writing struct {
	// off is where; for an append it is set to where the bytes went.
	off    uint64
	append bool
	how    lov.How
	mtime  attr.Time
}

func (h *Handle) put(ctx context.Context, data [][]byte, w *writing) (n int, err error) {
	if w.append {
		w.off, n, err = h.in.file.Append(ctx, data, w.mtime, w.how.Direct)
		return n, err
	}
	return h.in.file.Write(ctx, data, w.off, w.mtime, &w.how)
}
