package process

import "github.com/strakefs/strake/fs/stats"

// Registry is the process's tree.
func (p *Process) Registry() *stats.Registry { return p.stats }
