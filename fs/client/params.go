package client

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"

	"github.com/strakefs/strake/fs/lov"
	"github.com/strakefs/strake/fs/osc"
	"github.com/strakefs/strake/fs/stats"
)

const mib = 1 << 20

// Read-ahead begins with the part of the dirty cache that Lustre's defaults take of theirs: a quarter for all files, and of that
// a quarter for each.
const aheadPart = 4

// params are the mount's parameters under Lustre's names.
type params struct {
	cache *osc.Cache // nil: the mount has none to tell of
	data  *lov.Set

	mu    sync.Mutex
	ahead lov.ReadAhead // as data was told; guarded by mu
}

// begin sets what the parameters begin with.
func (p *params) begin(cache *osc.Cache, data *lov.Set) {
	p.cache, p.data = cache, data
	if cache == nil || data == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ahead = lov.ReadAhead{Max: cache.Limit() / aheadPart, PerFile: cache.Limit() / (aheadPart * aheadPart)}
	data.SetReadAhead(p.ahead)
}

// register enters the parameters below at.
func (p *params) register(reg *stats.Registry, at string) {
	if p.cache == nil || p.data == nil {
		return
	}
	reg.Param(at+"max_cached_mb", "Memory of dirty data and of what was read ahead, in MiB, shared by the mounts of the process; set its limit by number.",
		p.cacheText, p.setCache)
	reg.Param(at+"max_unstable_mb", "Memory of data that is answered and not on the OSTs' disks, in MiB, shared by the mounts of the process.",
		func() string { return megabytes(p.cache.KeptLimit()) }, p.setKept)
	reg.Text(at+"unstable_stats", "Data that is answered and not on the OSTs' disks, in pages of 4 KiB.", func() string {
		n := p.cache.Kept()
		return fmt.Sprintf("unstable_pages: %20d\nunstable_mb: %14d", n/memoryPage, n/mib)
	})
	for _, x := range []struct {
		name, help string
		get        func(l *lov.ReadAhead) int64
		most       func(l *lov.ReadAhead) int64
		set        func(l *lov.ReadAhead, n int64)
	}{
		{"max_read_ahead_mb", "Data in MiB that is read ahead and not read yet, in all files; 0 reads nothing ahead.",
			func(l *lov.ReadAhead) int64 { return l.Max },
			func(*lov.ReadAhead) int64 { return p.cache.Limit() },
			func(l *lov.ReadAhead, n int64) { l.Max, l.PerFile = n, min(l.PerFile, n) }},
		{"max_read_ahead_per_file_mb", "The same of one open file, at most max_read_ahead_mb.",
			func(l *lov.ReadAhead) int64 { return l.PerFile },
			func(l *lov.ReadAhead) int64 { return l.Max },
			func(l *lov.ReadAhead, n int64) { l.PerFile = n }},
	} {
		reg.Param(at+x.name, x.help, func() string {
			l := p.limits()
			return megabytes(x.get(&l))
		}, func(text string) error { return p.setAhead(x.name, text, x.most, x.set) })
	}
	reg.Text(at+"read_ahead_stats", "What was read ahead, in pages of 4 KiB.", func() string {
		return strings.TrimSuffix(p.data.ReadAheadStats(), "\n")
	})
}

func (p *params) limits() lov.ReadAhead {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ahead
}

// setAhead changes a limit of read-ahead, to most at most.
func (p *params) setAhead(name, text string, most func(l *lov.ReadAhead) int64, set func(l *lov.ReadAhead, n int64)) error {
	n, err := parseMegabytes(text)
	p.mu.Lock()
	defer p.mu.Unlock()
	if top := most(&p.ahead); err != nil || n > top {
		return fmt.Errorf("client: %s is a number from 0 to %s, not %q", name, megabytes(top), text)
	}
	set(&p.ahead, n)
	p.data.SetReadAhead(p.ahead)
	return nil
}

// cacheText tells of the cache as Lustre does.
func (p *params) cacheText() string {
	limit, used := p.cache.Limit(), p.cache.Used()
	return fmt.Sprintf("users: %d\nmax_cached_mb: %d\nused_mb: %d\nunused_mb: %d\nmax_read_ahead_mb: %d\nused_read_ahead_mb: %d",
		len(p.data.All()), limit/mib, used/mib, max(0, limit-used)/mib, p.limits().Max/mib, p.cache.ReadAhead()/mib)
}

// setCache sets the cache's limit; Lustre's scripts may write the line "max_cached_mb: N".
func (p *params) setCache(text string) error {
	n, err := parseMegabytes(strings.TrimPrefix(strings.TrimSpace(text), "max_cached_mb:"))
	if err != nil || n < osc.LeastLimit || n > cacheMost {
		return fmt.Errorf("client: max_cached_mb is a number from %s to %s, not %q", megabytes(osc.LeastLimit), megabytes(cacheMost), text)
	}
	p.cache.SetLimit(n)
	return nil
}

// setKept sets the limit of what is kept until it is on disk.
func (p *params) setKept(text string) error {
	n, err := parseMegabytes(text)
	if err != nil || n < keptLeast || n > cacheMost {
		return fmt.Errorf("client: max_unstable_mb is a number from %s to %s, not %q", megabytes(keptLeast), megabytes(cacheMost), text)
	}
	p.cache.SetKeptLimit(n)
	return nil
}

// keptLeast is the least that may be kept: below it every few writes would be a commit of the OST.
const keptLeast = 8 << 20

// memoryPage is what unstable_stats counts in.
const memoryPage = 4096

// cacheMost is the most that the dirty cache may be given: past it a mistyped number would take a machine's memory.
const cacheMost = 64 << 30

func megabytes(bytes int64) string { return strconv.FormatInt(bytes/mib, 10) }

// parseMegabytes reads a number of MiB and returns bytes.
func parseMegabytes(text string) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return 0, err
	}
	if n < 0 || n > math.MaxInt64/mib {
		return 0, strconv.ErrRange
	}
	return n * mib, nil
}
