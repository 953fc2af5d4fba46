package fs

import (
	"context"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/mdc"
)

// Paths returns the names of a file from the file system's root, without a leading slash but for the root itself. It asks
// the MDT as root does, not the kernel: a process may ask about its own mount. It blocks until the MDT answers or ctx ends.
func (m *Mount) Paths(ctx context.Context, f fid.FID) ([]string, error) {
	return m.mdc.Paths(ctx, &mdc.Caller{}, f, -1)
}
