package dash

import (
	"math"
	"strings"
	"time"

	"github.com/strakefs/strake/fs/stats"
)

// lockCounters are the counters of a namespace that are watched all the time, by the last element of their path.
var lockCounters = [...]string{
	"blocking_asts", "cancelled", "converted", "enqueued", "evictions", "glimpse_asts", "granted", "lock_lru_hits",
	"lock_lru_misses", "lock_timeouts", "lock_unused_count", "waited",
}

const (
	lockCounterPattern = "ldlm.namespaces.*.{blocking_asts,cancelled,converted,enqueued,evictions,glimpse_asts,granted," +
		"lock_lru_hits,lock_lru_misses,lock_timeouts,lock_unused_count,waited}"
	isUnused    = "lock_unused_count" // only clients have it, and it is no counter
	isEvictions = "evictions"
)

// readLocks adds the counters of all namespaces to a reading.
func (s *sums) readLocks(r *stats.Registry) {
	s.locks = map[string]map[string]float64{}
	// The visitor returns no error and the pattern is valid.
	_ = r.Walk(lockCounterPattern, func(e stats.Entry) error {
		elements := strings.Split(e.Path, ".")
		v, ok := numberOf(&e)
		if !ok {
			return nil
		}
		ns := s.locks[elements[2]]
		if ns == nil {
			ns = make(map[string]float64, len(lockCounters))
			s.locks[elements[2]] = ns
		}
		ns[elements[3]] = v
		return nil
	})
	for _, ns := range s.locks {
		_, mirror := ns[isUnused]
		for name, v := range ns {
			if series := lockSeries(name, mirror); series >= 0 {
				if math.IsNaN(s.values[series]) {
					s.values[series] = 0
				}
				s.values[series] += v
			}
		}
	}
}

// lockSeries is the series that a namespace's counter counts for, -1 for none.
func lockSeries(name string, mirror bool) int {
	if mirror {
		switch name {
		case "granted":
			return serMirrorGrant
		case "cancelled":
			return serMirrorCancel
		case "lock_lru_hits":
			return serMirrorHit
		}
		return -1
	}
	switch name {
	case "granted":
		return serLockGrant
	case "cancelled":
		return serLockCancel
	case "waited":
		return serLockWait
	case "blocking_asts":
		return serLockCallBack
	}
	return -1
}

// lockRatesBetween gives each namespace's growth per second, and when each last lost a client.
func lockRatesBetween(last, now *sums, evicted map[string]time.Time) (map[string]map[string]float64, map[string]time.Time) {
	rates, passed := map[string]map[string]float64{}, now.at.Sub(last.at)
	at := map[string]time.Time{}
	for name, ns := range now.locks {
		if t, ok := evicted[name]; ok {
			at[name] = t
		}
		before := last.locks[name]
		if before == nil {
			continue
		}
		if ns[isEvictions] > before[isEvictions] {
			at[name] = now.at
		}
		r := make(map[string]float64, len(ns))
		for counter, v := range ns {
			if counter == isUnused {
				continue
			}
			if was, ok := before[counter]; ok {
				if rate := perSec(was, v, passed); !math.IsNaN(rate) {
					r[counter] = math.Round(rate*1000) / 1000
				}
			}
		}
		rates[name] = r
	}
	return rates, at
}
