package metrics

import (
	"runtime"
	rm "runtime/metrics"
	"time"

	"github.com/strakefs/strake/fs/stats"
)

// RegisterProcess puts the process's own figures below "process.". started is when the
// process began.
func RegisterProcess(r *stats.Registry, started time.Time) {
	r.Func("process.goroutines", "Goroutines alive.", func() int64 { return int64(runtime.NumGoroutine()) })
	r.Func("process.max_procs", "Processors that may run Go code at once (GOMAXPROCS).",
		func() int64 { return int64(runtime.GOMAXPROCS(0)) })
	r.Func("process.uptime_seconds", "Seconds since the process began.",
		func() int64 { return int64(time.Since(started) / time.Second) })
	r.Func("process.heap_bytes", "Bytes of live and not yet swept heap objects.", runtimeFigure("/memory/classes/heap/objects:bytes"))
	r.Func("process.memory_bytes", "Bytes that the Go runtime has mapped, stacks and free heap included.", runtimeFigure("/memory/classes/total:bytes"))
	r.Func("process.gc_cycles", "Garbage collections completed.", runtimeFigure("/gc/cycles/total:gc-cycles"))
}

// runtimeFigure reads one whole-number figure of the runtime.
func runtimeFigure(name string) func() int64 {
	return func() int64 {
		s := []rm.Sample{{Name: name}}
		rm.Read(s)
		if s[0].Value.Kind() != rm.KindUint64 {
			return 0
		}
		return int64(s[0].Value.Uint64())
	}
}
