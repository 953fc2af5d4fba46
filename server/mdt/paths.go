package mdt

import (
	"fmt"

	"github.com/strakefs/strake/fs/attr"
	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/fid"
)

// Paths returns the paths of an inode from the file system's root, without a leading slash but for the root itself, as far
// as its names are known: for who shows a FID in this process. It is not bound by permissions, and may wait for the disk.
func (h *Handler) Paths(f fid.FID) ([]string, error) {
	if f == rootFID {
		return []string{"/"}, nil
	}
	o := h.begin(env.New(), nil, nil)
	defer o.end()
	o.cred = attr.Cred{}
	if err := o.get(f, &o.child); err != nil {
		return nil, fmt.Errorf("mdt: paths of %v: %w", f, err)
	}
	var paths []string
	total := 0
	for rest := o.child.sec[secLinks]; total <= pathsMax; {
		l, next, ok, err := nextLink(rest)
		if err != nil || !ok {
			return paths, err
		}
		rest = next
		p, err := o.pathOf(l)
		if err != nil {
			return paths, fmt.Errorf("mdt: paths of %v: %w", f, err)
		}
		total += len(p)
		paths = append(paths, string(p))
	}
	return paths, nil
}
