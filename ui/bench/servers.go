package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/strakefs/strake/ui/param"
)

// errNoSocket is a process without a parameter socket.
var errNoSocket = errors.New("it has no parameter socket")

// paramsOf connects to the parameter socket of a process. Close it.
func paramsOf(ctx context.Context, pid int) (*param.Process, error) {
	for _, path := range param.Sockets(param.Folders()) {
		p, err := param.Dial(ctx, path)
		if err != nil {
			continue // Another process's, which ends or hangs.
		}
		if p.PID == pid {
			return p, nil
		}
		_ = p.Close()
	}
	return nil, fmt.Errorf("bench: process %d: %w", pid, errNoSocket)
}

// setLevel sets commit_on_sharing of an MDS's targets.
func setLevel(p *param.Process, level string) error {
	const pattern = "mdt.*.commit_on_sharing"
	nodes, err := p.Set(pattern, level)
	for _, n := range nodes {
		err = errors.Join(err, n.Err)
	}
	if err == nil && len(nodes) == 0 {
		err = errNoParam
	}
	if err != nil {
		return fmt.Errorf("bench: set %s: %w", pattern, err)
	}
	return nil
}

// errNoParam is a parameter that the process does not have.
var errNoParam = errors.New("the process has no such parameter")

// countOf is the sum of a counter of an MDS's targets.
func countOf(p *param.Process, counter string) (int64, error) {
	nodes, err := p.Get("mdt.*."+counter, false)
	if err == nil && len(nodes) == 0 {
		err = errNoParam
	}
	sum := int64(0)
	for _, n := range nodes {
		v, bad := strconv.ParseInt(strings.TrimSpace(n.Text), 10, 64)
		err = errors.Join(err, bad)
		sum += v
	}
	if err != nil {
		return 0, fmt.Errorf("bench: %s: %w", counter, err)
	}
	return sum, nil
}

// clockTick is the unit of times in /proc/PID/stat: USER_HZ, which Linux shows as 100 on every machine.
const clockTick = time.Second / 100

// cpuOf is the CPU time of processes, user and system, since each began.
func cpuOf(list []*process) (time.Duration, error) {
	sum := time.Duration(0)
	for _, p := range list {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil {
			return 0, fmt.Errorf("bench: CPU time of %s: %w", p.name, err)
		}
		d, err := parseCPU(string(text))
		if err != nil {
			return 0, fmt.Errorf("bench: CPU time of %s: %w", p.name, err)
		}
		sum += d
	}
	return sum, nil
}

// errStat is a /proc/PID/stat that is none.
var errStat = errors.New("not a line of /proc/PID/stat")

// parseCPU reads utime and stime, fields 14 and 15 of /proc/PID/stat (proc_pid_stat(5)). The second field is the command in
// parentheses, which may hold anything.
func parseCPU(line string) (time.Duration, error) {
	_, rest, ok := strings.Cut(line[strings.LastIndexByte(line, ')')+1:], " ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 13 {
		return 0, errStat
	}
	ticks := int64(0)
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil || n < 0 {
			return 0, errStat
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}
