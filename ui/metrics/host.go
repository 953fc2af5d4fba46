package metrics

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/disk"
	"github.com/shirou/gopsutil/v4/host"
	"github.com/shirou/gopsutil/v4/load"
	"github.com/shirou/gopsutil/v4/mem"
	"github.com/shirou/gopsutil/v4/net"

	"github.com/strakefs/strake/fs/stats"
)

// registerNames registers what names the host; what the host does not tell is left out.
func registerNames(ctx context.Context, r *stats.Registry) {
	info, err := host.InfoWithContext(ctx)
	if err != nil {
		return
	}
	for _, t := range []struct{ path, help, text string }{
		{"host.name", "Name of the host.", info.Hostname},
		{"host.system", "Operating system of the host.", strings.TrimSpace(info.Platform + " " + info.PlatformVersion)},
		{"host.kernel", "Kernel of the host.", info.KernelVersion},
		{"host.machine", "Processor architecture of the host.", info.KernelArch},
	} {
		if t.text != "" {
			r.Text(t.path, t.help, func() string { return t.text })
		}
	}
}

// cpuTimes are seconds of all CPUs together since boot.
type cpuTimes struct{ busy, iowait, all float64 }

func (s *Sampler) sampleCPU(ctx context.Context) error {
	times, err := cpu.TimesWithContext(ctx, false)
	if err != nil {
		return fmt.Errorf("metrics: cpu times: %w", err)
	}
	if len(times) != 1 {
		return fmt.Errorf("metrics: cpu times: %d rows, want 1", len(times))
	}
	t := times[0]
	var now cpuTimes
	for _, m := range []struct {
		mode string
		sec  float64
	}{
		{"user", t.User}, {"nice", t.Nice}, {"system", t.System}, {"irq", t.Irq}, {"softirq", t.Softirq},
		{"steal", t.Steal}, {"idle", t.Idle}, {"iowait", t.Iowait},
	} {
		now.all += m.sec
		s.counter(figure{
			path: "host.cpu." + m.mode + ".milliseconds", help: "CPU time of all processors by mode, in milliseconds.",
			value: uint64(math.Round(m.sec * 1000)), labels: []stats.Label{{Name: "mode", Value: m.mode}},
		})
	}
	now.iowait, now.busy = t.Iowait, now.all-t.Idle-t.Iowait
	s.gauge(figure{path: "host.cpu_count", help: "Processors the process may use.", value: uint64(runtime.NumCPU())})
	last := s.cpu
	s.cpu = now
	if all := now.all - last.all; last.all > 0 && all > 0 {
		s.gauge(figure{path: "host.cpu_busy_permille", help: "Share of all processors busy since the sample before, in permille.",
			value: permille(now.busy-last.busy, all)})
		s.gauge(figure{path: "host.cpu_iowait_permille", help: "Share of all processors idle with I/O pending since the sample before, in permille.",
			value: permille(now.iowait-last.iowait, all)})
	}
	return nil
}

func permille(part, all float64) uint64 {
	return uint64(math.Round(1000 * min(max(part/all, 0), 1)))
}

func (s *Sampler) sampleMemory(ctx context.Context) error {
	m, err := mem.VirtualMemoryWithContext(ctx)
	if err != nil {
		return fmt.Errorf("metrics: memory: %w", err)
	}
	s.gauge(figure{path: "host.memory_total_bytes", help: "Memory of the host in bytes.", value: m.Total})
	s.gauge(figure{path: "host.memory_available_bytes", help: "Memory that can be given to programs without swapping, in bytes.", value: m.Available})
	s.gauge(figure{path: "host.memory_cached_bytes", help: "Memory that holds file pages and reclaimable slabs, in bytes.", value: m.Cached})
	s.gauge(figure{path: "host.memory_dirty_bytes", help: "File pages that wait to be written to disk, in bytes.", value: m.Dirty})
	if m.SwapTotal > 0 {
		s.gauge(figure{path: "host.swap_total_bytes", help: "Swap space in bytes.", value: m.SwapTotal})
		s.gauge(figure{path: "host.swap_free_bytes", help: "Swap space not used, in bytes.", value: m.SwapFree})
	}
	return nil
}

func (s *Sampler) sampleLoad(ctx context.Context) error {
	l, err := load.AvgWithContext(ctx)
	if err != nil {
		return fmt.Errorf("metrics: load: %w", err)
	}
	for _, a := range []struct {
		minutes string
		load    float64
	}{{"1", l.Load1}, {"5", l.Load5}, {"15", l.Load15}} {
		s.gauge(figure{path: "host.load" + a.minutes + "_milli",
			help: "Load average times 1000.", value: uint64(math.Round(a.load * 1000))})
	}
	return nil
}

// sampleDisks measures whole disks, not their partitions nor what is stacked on them: the
// sum over all counts each byte once.
func (s *Sampler) sampleDisks(ctx context.Context) error {
	names, err := wholeDisks()
	if err != nil || len(names) == 0 {
		return err
	}
	counters, err := disk.IOCountersWithContext(ctx, names...)
	if err != nil {
		return fmt.Errorf("metrics: disks: %w", err)
	}
	for _, name := range names {
		c, ok := counters[name]
		if !ok {
			continue
		}
		path, labels := "host.disk."+stats.Element(name)+".", []stats.Label{{Name: "device", Value: name}}
		s.counter(figure{path + "read_bytes", "Bytes read from a disk.", c.ReadBytes, labels})
		s.counter(figure{path + "write_bytes", "Bytes written to a disk.", c.WriteBytes, labels})
		s.counter(figure{path + "reads", "Read requests a disk completed.", c.ReadCount, labels})
		s.counter(figure{path + "writes", "Write requests a disk completed.", c.WriteCount, labels})
		s.counter(figure{path + "io_milliseconds", "Milliseconds a disk had requests to serve.", c.IoTime, labels})
	}
	return nil
}

// wholeDisks returns the names of the block devices that stand for hardware.
func wholeDisks() ([]string, error) {
	found, err := os.ReadDir("/sys/block")
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // not Linux, or no devices to see
	}
	if err != nil {
		return nil, fmt.Errorf("metrics: disks: %w", err)
	}
	var names []string
	for _, f := range found {
		stacked := slices.ContainsFunc([]string{"loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd"},
			func(prefix string) bool { return strings.HasPrefix(f.Name(), prefix) })
		if !stacked && len(names) < maxDevices {
			names = append(names, f.Name())
		}
	}
	return names, nil
}

func (s *Sampler) sampleDataDirs(ctx context.Context) error {
	var errs []error
	for _, dir := range s.opts.DataDirs {
		u, err := disk.UsageWithContext(ctx, dir)
		if err != nil {
			errs = append(errs, fmt.Errorf("metrics: data folder %s: %w", dir, err))
			continue
		}
		if abs, err := filepath.Abs(dir); err == nil {
			dir = abs
		}
		path, labels := "host.data."+stats.Element(dir)+".", []stats.Label{{Name: "path", Value: dir}}
		s.gauge(figure{path + "total_bytes", "Size of the file system under a data folder, in bytes.", u.Total, labels})
		s.gauge(figure{path + "available_bytes", "Bytes free for use under a data folder.", u.Free, labels})
		if u.InodesTotal > 0 {
			s.gauge(figure{path + "inodes", "Inodes of the file system under a data folder.", u.InodesTotal, labels})
			s.gauge(figure{path + "inodes_free", "Inodes free under a data folder.", u.InodesFree, labels})
		}
	}
	return errors.Join(errs...)
}

func (s *Sampler) sampleNetwork(ctx context.Context) error {
	interfaces, err := net.IOCountersWithContext(ctx, true)
	if err != nil {
		return fmt.Errorf("metrics: network: %w", err)
	}
	for _, n := range interfaces[:min(len(interfaces), maxDevices)] {
		path, labels := "host.net."+stats.Element(n.Name)+".", []stats.Label{{Name: "device", Value: n.Name}}
		s.counter(figure{path + "receive_bytes", "Bytes received by a network interface.", n.BytesRecv, labels})
		s.counter(figure{path + "transmit_bytes", "Bytes sent by a network interface.", n.BytesSent, labels})
		s.counter(figure{path + "receive_errors", "Packets a network interface received wrong.", n.Errin, labels})
		s.counter(figure{path + "receive_dropped", "Packets a network interface received and dropped.", n.Dropin, labels})
	}
	return nil
}

func (s *Sampler) sampleUptime(ctx context.Context) error {
	sec, err := host.UptimeWithContext(ctx)
	if err != nil {
		return fmt.Errorf("metrics: uptime: %w", err)
	}
	s.gauge(figure{path: "host.uptime_seconds", help: "Seconds since the host booted.", value: sec})
	return nil
}
