package failpoint

import "github.com/strakefs/strake/fs/stats"

// Register puts fail_loc, fail_val, fail_when and fail_hits into a process's tree. With a nil Set they show the defaults and
// refuse everything else.
func Register(r *stats.Registry, s *Set) {
	param := func(which int, name, help string) {
		r.Param(name, help, func() string { return s.text(which) }, func(text string) error { return s.set(which, text) })
	}
	param(textLoc, "fail_loc", "Points that are to fail, separated by commas; 0: none. Only in a process started with --fault-injection.")
	param(textVal, "fail_val", "A number or an error for each point of fail_loc.")
	param(textWhen, "fail_when", "Which hits of each point of fail_loc count: always, once, or op:, target:, skip:, every:, times: joined by +.")
	r.Text("fail_hits", "How often each point of fail_loc was reached, and failed, since they were set.", s.hits)
}
