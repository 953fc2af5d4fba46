package failpoint

import (
	"math"
	"strconv"

	"github.com/strakefs/strake/fs/status"
)

// Point is a place that can be told to fail.
type Point uint8

// The points. What fail_val means for each stands in its comment; 0 is its default.
const (
	// DropRequest loses a request before it is run. 0: its connection is cut, as TCP loses nothing while a connection lives.
	// 1: from then on the connection says nothing any more, as a network that swallows packets.
	DropRequest Point = iota
	// DropReply loses the reply of a request that was run; fail_val as for DropRequest.
	DropReply
	// DelayRequest waits before a request is run: milliseconds, 1000 by default.
	DelayRequest
	// ErrorReply answers a request with an error and does not run it: an error, EIO by default.
	ErrorReply
	// PauseCommit waits before a txg is written: milliseconds; 0 until the parameters are set again.
	PauseCommit
	// HoldTxg keeps a txg open until it is full, whoever wants it committed. No fail_val.
	HoldTxg
	// FailCommit fails the commit of a txg: an error, EIO by default. The target stops.
	FailCommit
	// NoSpace tells who wants to add something that the disk is full. It has no fail_val.
	NoSpace
	// FakeIO answers reads of objects with zeros and forgets writes, without touching the disk (DESIGN §5). No fail_val.
	FakeIO
	// DelayIO waits before an object is read or written: milliseconds, 1000 by default.
	DelayIO
	// FailIO fails the read or write of an object: an error, EIO by default.
	FailIO

	pointCount
)

// use is what a point does with fail_val.
type use uint8

const (
	useNone use = iota
	useMode
	useMillis
	useForever // milliseconds, 0 without an end
	useError
)

// points is the constant table of names and uses.
var points = [pointCount]struct {
	name string
	use  use
}{
	DropRequest: {"drop_request", useMode}, DropReply: {"drop_reply", useMode}, DelayRequest: {"delay_request", useMillis},
	ErrorReply: {"error_reply", useError}, PauseCommit: {"pause_commit", useForever},
	HoldTxg: {"hold_txg", useNone}, FailCommit: {"fail_commit", useError},
	NoSpace: {"no_space", useNone}, FakeIO: {"fake_io", useNone}, DelayIO: {"delay_io", useMillis}, FailIO: {"fail_io", useError},
}

// String gives the point's name in fail_loc.
func (p Point) String() string {
	if p < pointCount {
		return points[p].name
	}
	return "point_" + strconv.Itoa(int(p))
}

// kinds is the constant table of errors that have a name in fail_val; others are given by number.
var kinds = []struct {
	name string
	kind status.Kind
}{
	{"EIO", status.IO}, {"ENOSPC", status.NoSpace}, {"EROFS", status.ReadOnly}, {"EDQUOT", status.Quota}, {"EAGAIN", status.Again},
	{"ENOMEM", status.NoMemory}, {"ESTALE", status.Stale}, {"EBUSY", status.Busy}, {"EEXIST", status.Exist},
	{"ENOENT", status.NotExist}, {"EACCES", status.Access}, {"EPERM", status.Perm}, {"ETIMEDOUT", status.TimedOut},
	{"stopping", status.Stopping}, {"evicted", status.Evicted}, {"not_connected", status.NotConnected},
}

// maxMillis bounds waits: an hour.
const maxMillis = 3_600_000

// parseVal reads an item of fail_val for a point.
func (p Point) parseVal(text string) (uint64, error) {
	if text == "" {
		text = "0"
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		n = math.MaxUint64
	}
	u := points[p].use
	switch {
	case n == 0:
		return p.defaultVal(), nil
	case u == useMode && n == 1, (u == useMillis || u == useForever) && n <= maxMillis, u == useError && err == nil:
		return n, nil
	}
	for _, k := range kinds {
		if u == useError && k.name == text {
			return uint64(k.kind), nil
		}
	}
	want := "no value"
	switch u {
	case useMode:
		want = "0 (cut the connection) or 1 (silence it)"
	case useMillis, useForever:
		want = "milliseconds, at most 3600000"
	case useError:
		want = "an error by number or name, such as EIO or ENOSPC"
	}
	return 0, status.Errorf(status.Invalid, "fail_val %q: %v takes %s", text, p, want)
}

// defaultVal is what a fail_val of 0 stands for.
func (p Point) defaultVal() uint64 {
	switch points[p].use {
	case useMillis:
		return 1000
	case useError:
		return uint64(status.IO)
	}
	return 0
}
