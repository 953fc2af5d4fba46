package dash

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/strakefs/strake/fs/stats"
)

// historyPoints is how many points the ring keeps: ten minutes at one a second, 100 KiB.
const historyPoints = 600

// The series of the charts.
const (
	serCPU          = iota // busy share of all processors, permille
	serIOWait              // permille
	serMemUsed             // bytes
	serMemTotal            // bytes
	serDiskRead            // bytes per second, all disks
	serDiskWrite           // bytes per second, all disks
	serNetReceive          // bytes per second, all interfaces but loopback
	serNetSend             // bytes per second, all interfaces but loopback
	serLoad                // load average of one minute, milli
	serRead                // bytes per second read from the OSTs of this process
	serWrite               // bytes per second written to the OSTs of this process
	serOps                 // operations per second of the MDTs of this process
	serClients             // clients connected
	serLockGrant           // locks granted per second by the lock servers of this process
	serLockCancel          // locks given back to them per second
	serLockWait            // requests per second that had to wait for their lock
	serLockCallBack        // locks called back per second
	serMirrorGrant         // locks granted per second to the clients of this process
	serMirrorCancel        // locks that these gave back per second
	serMirrorHit           // times per second that these found the lock they needed in their cache
	serCount
)

// seriesKeys are the names of the series in JSON, by index.
var seriesKeys = [serCount]string{
	"cpu", "iowait", "memUsed", "memTotal", "diskRead", "diskWrite", "netReceive", "netSend", "load",
	"read", "write", "ops", "clients",
	"lockGrant", "lockCancel", "lockWait", "lockCallBack", "mirrorGrant", "mirrorCancel", "mirrorHit",
}

// point is one value of each series; NaN where it was not measured.
type point struct {
	at     time.Time
	values [serCount]float64
}

// appendValue appends v as JSON, null for NaN.
func appendValue(b []byte, v float64) []byte {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return append(b, "null"...)
	}
	return strconv.AppendFloat(b, math.Round(v*1000)/1000, 'f', -1, 64)
}

// MarshalJSON writes {"t":unixMs,"v":[…]}.
func (p point) MarshalJSON() ([]byte, error) {
	b := append(strconv.AppendInt([]byte(`{"t":`), p.at.UnixMilli(), 10), `,"v":[`...)
	for i, v := range p.values {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendValue(b, v)
	}
	return append(b, "]}"...), nil
}

// sums are the cumulative and momentary figures that a point is made of.
type sums struct {
	at      time.Time
	values  [serCount]float64
	targets map[string]traffic
	locks   map[string]map[string]float64 // namespace -> counter -> value
}

// traffic is what one target of this process moved, in bytes.
type traffic struct{ read, written float64 }

// seriesOf returns the series that an entry counts for, -1 for none.
func seriesOf(e *stats.Entry) int {
	elements := strings.Split(e.Path, ".")
	last := elements[len(elements)-1]
	switch elements[0] {
	case "host":
		return hostSeries(elements, last)
	case "obdfilter":
		switch {
		case e.Metric == "lustre_read_bytes_total" || len(elements) == 3 && last == "read_bytes":
			return serRead
		case e.Metric == "lustre_write_bytes_total" || len(elements) == 3 && last == "write_bytes":
			return serWrite
		}
	case "mdt":
		switch {
		case len(elements) == 3 && last == "num_exports":
			return serClients
		case len(elements) == 4 && elements[2] == "stats" && e.Kind == stats.KindHistogram && !isUpkeep(last):
			return serOps
		}
	}
	return -1
}

// isUpkeep says which operations of an MDT keep a connection and do nothing to a file.
func isUpkeep(op string) bool { return op == "ping" || op == "connect" || op == "disconnect" }

// numberOf is a figure's value, and a histogram's number of observations.
func numberOf(e *stats.Entry) (float64, bool) {
	if h, ok := e.Histogram(); ok {
		return float64(h.Count), true
	}
	n, ok := e.Value()
	return float64(n), ok
}

func hostSeries(elements []string, last string) int {
	if len(elements) == 4 && elements[1] == "disk" {
		switch last {
		case "read_bytes":
			return serDiskRead
		case "write_bytes":
			return serDiskWrite
		}
	}
	if len(elements) == 4 && elements[1] == "net" && elements[2] != "lo" {
		switch last {
		case "receive_bytes":
			return serNetReceive
		case "transmit_bytes":
			return serNetSend
		}
	}
	switch last {
	case "cpu_busy_permille":
		return serCPU
	case "cpu_iowait_permille":
		return serIOWait
	case "memory_total_bytes":
		return serMemTotal
	case "memory_available_bytes":
		return serMemUsed // taken from the total in readSums
	case "load1_milli":
		return serLoad
	}
	return -1
}

// isRate says which series are growth per second.
func isRate(series int) bool {
	switch series {
	case serDiskRead, serDiskWrite, serNetReceive, serNetSend, serRead, serWrite, serOps,
		serLockGrant, serLockCancel, serLockWait, serLockCallBack, serMirrorGrant, serMirrorCancel, serMirrorHit:
		return true
	}
	return false
}

// readSums reads the registry once.
func readSums(r *stats.Registry, now time.Time) sums {
	s := sums{at: now, targets: map[string]traffic{}}
	for i := range s.values {
		s.values[i] = math.NaN()
	}
	// The visitor returns no error and the pattern is valid.
	_ = r.Walk("{host,obdfilter,mdt}.**", func(e stats.Entry) error {
		series := seriesOf(&e)
		if series < 0 {
			return nil
		}
		v, ok := numberOf(&e)
		if !ok {
			return nil
		}
		switch {
		case math.IsNaN(s.values[series]):
			s.values[series] = v
		case series == serClients: // each MDT counts the same clients
			s.values[series] = max(s.values[series], v)
		default:
			s.values[series] += v
		}
		if series == serRead || series == serWrite {
			name := strings.Split(e.Path, ".")[1]
			t := s.targets[name]
			if series == serRead {
				t.read += v
			} else {
				t.written += v
			}
			s.targets[name] = t
		}
		return nil
	})
	s.readLocks(r)
	s.values[serMemUsed] = s.values[serMemTotal] - s.values[serMemUsed]
	return s
}

// pointBetween makes the point of now from two readings. A rate needs both; one whose sum
// went back (a target or a disk that left) is not measured.
func pointBetween(last, now *sums) point {
	p := point{at: now.at, values: now.values}
	for i := range p.values {
		if isRate(i) {
			p.values[i] = perSec(last.values[i], now.values[i], now.at.Sub(last.at))
		}
	}
	return p
}

func perSec(last, now float64, passed time.Duration) float64 {
	if now < last || passed <= 0 {
		return math.NaN()
	}
	return (now - last) / passed.Seconds() // NaN when either is
}
