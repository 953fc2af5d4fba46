package suite

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
	"golang.org/x/sys/unix"
)

// The checker of several mounts. Workers on all mounts record what they asked and what they were told, with the times of
// call and return of one clock: one process drives all the mounts. A call is one or more steps, each on one part:
//
//	names     the entries of one folder pair, what they lead to, what is in their folders, and link counts
//	register  one value: mode, uid, gid, an ACL, one extended attribute
//	cell      one range of one file
//	length    the size of one file
//	log       a file that is only appended to
//
// A history is right when every part is linearizable. Calls that look at two things which no file system reads at once
// (the two names of a failed rename, a name and the attributes of what it leads to) are two steps of one interval.

// step is a call as one part sees it.
type step struct {
	part   string // what it was done to
	kind   partKind
	in     any // value given to the model, comparable
	out    any // what was seen, comparable
	look   bool
	mount  int
	worker int
	call   int64 // nanoseconds since the start of the run
	ret    int64
	file   string // the file whose data it touches; empty for all else
}

type partKind uint8

const (
	partNames partKind = iota
	partRegister
	partCell
	partLength
	partLog
	partACL
)

// history collects the steps of all workers.
type history struct {
	began    time.Time
	mu       sync.Mutex
	steps    []step    // guarded by mu
	listings []reading // guarded by mu
}

func newHistory() *history { return &history{began: time.Now()} }

func (h *history) now() int64 { return int64(time.Since(h.began)) }

func (h *history) add(steps ...step) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.steps = append(h.steps, steps...)
}

// models are the sequential specifications.
func models(steps []step) porcupine.Model {
	var m porcupine.Model
	switch steps[0].kind {
	case partNames:
		if slices.ContainsFunc(steps, torn) {
			return tornModel()
		}
		m = porcupine.Model{Init: func() any { return names{} }, Step: func(s, in, out any) (bool, any) {
			ok, next := s.(names).step(in.(nameIn), out.(nameOut))
			return ok, next
		}}
	case partRegister:
		m = porcupine.Model{Init: func() any { return "" }, Step: stepRegister}
	case partCell:
		m = porcupine.Model{Init: func() any { return cell{} }, Step: stepCell}
	case partLength:
		m = porcupine.Model{Init: func() any { return int64(0) }, Step: stepLength}
	case partLog:
		m = porcupine.Model{Init: func() any { return logState{} }, Step: stepLog}
	case partACL:
		m = porcupine.Model{Init: func() any { return aclState{} }, Step: stepACL}
	}
	m.Equal = func(a, b any) bool { return a == b }
	return m
}

// torn says that a step is a rename that may have done nothing: see nameIn.
func torn(s step) bool {
	in, ok := s.in.(nameIn)
	return ok && in.torn
}

// tornModel is that of names where a rename may have done nothing. A state is the list of those that there may be.
func tornModel() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{names{}} },
		Step: func(s, in, out any) (list []any) {
			if ok, next := s.(names).step(in.(nameIn), out.(nameOut)); ok {
				list = append(list, next)
			}
			if in := in.(nameIn); in.torn {
				list = append(list, s)
			}
			return list
		},
		Equal: func(a, b any) bool { return a == b },
	}
	return m.ToModel()
}

// violation is a part whose history no order explains.
type violation struct {
	part string
	text string
}

// check checks every part. A part that cannot be decided within the limit is a violation too: the run was too dense.
func (h *history) check(limit time.Duration) []violation {
	parts := map[string][]step{}
	for _, s := range h.steps {
		parts[s.part] = append(parts[s.part], s)
	}
	var found []violation
	for _, part := range slices.Sorted(maps.Keys(parts)) {
		steps := parts[part]
		slices.SortFunc(steps, func(a, b step) int { return cmp.Compare(a.call, b.call) })
		switch linearizable(steps, limit) {
		case porcupine.Illegal:
			found = append(found, violation{part, fmt.Sprintf("%s: %d calls that no order explains:\n%s", part, len(steps), explain(steps))})
		case porcupine.Unknown:
			found = append(found, violation{part, fmt.Sprintf("%s: %d calls, not decided within %v", part, len(steps), limit)})
		}
	}
	return append(found, h.checkListings()...)
}

func linearizable(steps []step, limit time.Duration) porcupine.CheckResult {
	ops := make([]porcupine.Operation, len(steps))
	for i, s := range steps {
		ops[i] = porcupine.Operation{ClientId: s.worker, Input: s.in, Call: s.call, Output: s.out, Return: s.ret}
	}
	return porcupine.CheckOperationsTimeout(models(steps), ops, limit)
}

// shortest prints the end of the shortest beginning of a history that no order explains: all calls begun before its last one, but
// for the looks that had not returned by then. A change that is not in it may be what explains it, which the reader has to see.
func shortest(steps []step) string {
	beginning := func(n int) []step {
		return slices.DeleteFunc(slices.Clone(steps[:n+1]), func(s step) bool { return s.look && s.ret > steps[n].ret })
	}
	n := sort.Search(len(steps), func(n int) bool { return linearizable(beginning(n), 10*time.Second) == porcupine.Illegal })
	from, to := max(0, n-30), min(len(steps), n+8)
	n = min(n, len(steps)-1)
	return fmt.Sprintf("    (too many calls at once to tell for certain; up to call %d of %d, %v)\n%s", n, len(steps), describeSteps(steps[n:n+1]),
		describeSteps(steps[from:to]))
}

// explain finds the first stretch between two quiet moments that no state before it allows, and prints it with the states
// that there could be, and the calls that made them.
func explain(steps []step) string {
	if slices.ContainsFunc(steps, torn) {
		return shortest(steps)
	}
	m := models(steps)
	states := map[any]bool{m.Init(): true}
	for first := 0; first < len(steps); {
		end, last := first+1, steps[first].ret
		for end < len(steps) && steps[end].call <= last {
			last = max(last, steps[end].ret)
			end++
		}
		if end-first > 30 {
			return shortest(steps)
		}
		after := map[any]bool{}
		for s := range states {
			reachable(m, steps[first:end], s, after)
		}
		if len(after) == 0 {
			var b strings.Builder
			shown := 0
			for s := range states {
				if shown++; shown <= 3 {
					fmt.Fprintf(&b, "    state %d of %d before: %v\n", shown, len(states), s)
				}
			}
			changes := slices.DeleteFunc(slices.Clone(steps[:first]), func(s step) bool { return s.look })
			looks := slices.DeleteFunc(slices.Clone(steps[:first]), func(s step) bool { return !s.look })
			fmt.Fprintf(&b, "  the last changes before:\n%s  the last looks before:\n%s  not explained:\n%s", describeSteps(changes[max(0, len(changes)-8):]),
				describeSteps(looks[max(0, len(looks)-4):]), describeSteps(steps[first:end]))
			return b.String()
		}
		states, first = after, end
	}
	return describeSteps(steps)
}

// reachable adds to after every state that an order of the steps (30 at most) leads to.
func reachable(m porcupine.Model, steps []step, from any, after map[any]bool) {
	type place struct {
		done  uint32
		state any
	}
	seen := map[place]bool{}
	var walk func(p place)
	walk = func(p place) {
		if seen[p] {
			return
		}
		seen[p] = true
		if p.done == 1<<len(steps)-1 {
			after[p.state] = true
			return
		}
		earliest := int64(math.MaxInt64) // a step may come next unless another one had returned before it was called
		for i, s := range steps {
			if p.done&(1<<i) == 0 {
				earliest = min(earliest, s.ret)
			}
		}
		for i, s := range steps {
			if p.done&(1<<i) != 0 || s.call > earliest {
				continue
			}
			if ok, next := m.Step(p.state, s.in, s.out); ok {
				walk(place{p.done | 1<<i, next})
			}
		}
	}
	walk(place{0, from})
}

func (s names) String() string {
	var b strings.Builder
	for i, e := range s {
		if e.ino != 0 {
			fmt.Fprintf(&b, "%s=%d", nameText(int8(i)), e.ino)
			if e.folder {
				b.WriteString("/")
			}
			if e.child != 0 {
				fmt.Fprintf(&b, "(c=%d)", e.child)
			}
			b.WriteString(" ")
		}
	}
	return b.String()
}

// describeSteps prints the last steps, oldest first.
func describeSteps(steps []step) string {
	const most = 40
	var b strings.Builder
	if len(steps) > most {
		fmt.Fprintf(&b, "    (%d before)\n", len(steps)-most)
		steps = steps[len(steps)-most:]
	}
	for _, s := range steps {
		fmt.Fprintf(&b, "    %12.6f–%.6f ms  M%d w%d  %v -> %v\n", float64(s.call)/1e6, float64(s.ret)/1e6, s.mount, s.worker, s.in, s.out)
	}
	return b.String()
}

// --- names of a folder pair -----------------------------------------------------------------------------------------

const nameCount = 12 // both folders together

// unbound is the inode number of a folder that mkdir made and nobody has seen yet: mkdir tells none.
const unbound = 1

// entry is what a name leads to; ino 0 for nothing.
type entry struct {
	ino    uint64
	folder bool
	child  uint64 // what the folder's one possible entry leads to
}

// names is the state of a folder pair: the entry of every name.
type names [nameCount]entry

type nameOp uint8

const (
	opCreate   nameOp = iota // the name a did not exist and leads to ino now
	opEnsure                 // open with O_CREAT: ino was there or is new
	opMkdir                  //
	opUnlink                 //
	opRmdir                  //
	opRename                 // a to b, replacing
	opExchange               // a and b
	opLink                   // ino gets the name a
	opMakeIn                 // the folder ino gets an entry
	opTakeIn                 // and loses it
	seeName                  // a leads to out.ino (0: nothing)
	seeLinks                 // ino has out.n names
	seeIn                    // the folder ino's entry leads to out.ino
	seeDead                  // the folder ino is removed (or, for a file, without a name)
	seeFile                  // a is no folder but there
	seeFolder                //
	seeAny                   // a is there
	seeFull                  // a is a folder with an entry
	seeNoPair                // a or b is not there
)

func (o nameOp) String() string {
	return [...]string{"create", "open(O_CREAT)", "mkdir", "unlink", "rmdir", "rename", "exchange", "link", "create-in",
		"unlink-in", "lookup", "nlink", "lookup-in", "is-gone", "is-a-file", "is-a-folder", "exists", "is-a-full-folder",
		"one-is-absent"}[o]
}

type nameIn struct {
	op   nameOp
	a, b int8
	ino  uint64
	// torn says that another mount changed one of the names of a rename meanwhile. When the kernel has looked up the first name before
	// that and the second after it, both may lead to one inode, and rename(2) has nothing to do.
	torn bool
}

func (i nameIn) String() string {
	switch i.op {
	case opLink:
		return fmt.Sprintf("link of inode %d to %s", i.ino, nameText(i.a))
	case seeLinks, seeIn, opMakeIn, opTakeIn, seeDead:
		return fmt.Sprintf("%v inode %d", i.op, i.ino)
	case opRename, opExchange, seeNoPair:
		return fmt.Sprintf("%v %s %s", i.op, nameText(i.a), nameText(i.b))
	}
	return fmt.Sprintf("%v %s", i.op, nameText(i.a))
}

// nameText is the path of a name in the folder pair: A/n0 to A/n3, A/l0, A/l1, then B.
func nameText(i int8) string {
	folder := "AB"[i/(nameCount/2)]
	k := i % (nameCount / 2)
	if k < 4 {
		return fmt.Sprintf("%c/n%d", folder, k)
	}
	return fmt.Sprintf("%c/l%d", folder, k-4)
}

type nameOut struct {
	ino    uint64
	folder bool
	n      int
}

func (o nameOut) String() string {
	switch {
	case o.folder:
		return fmt.Sprintf("folder %d", o.ino)
	case o.ino != 0:
		return fmt.Sprintf("inode %d", o.ino)
	}
	return fmt.Sprint(o.n)
}

// owner finds the folder with an inode number, or -1.
func (s *names) owner(ino uint64) int {
	return slices.IndexFunc(s[:], func(e entry) bool { return e.folder && e.ino == ino })
}

func (s *names) links(ino uint64) (n int) {
	for _, e := range s {
		if e.ino == ino && !e.folder {
			n++
		}
	}
	return n
}

// step says whether the state allows what was seen, and what the state is then.
func (s names) step(in nameIn, out nameOut) (bool, names) {
	a, b := &s[in.a], &s[in.b]
	switch in.op {
	case opCreate, opLink, opMkdir:
		if a.ino != 0 || in.op == opLink && s.links(in.ino) == 0 {
			return false, s
		}
		*a = entry{ino: in.ino, folder: in.op == opMkdir}
		return true, s
	case opEnsure:
		if a.ino == 0 {
			if s.links(in.ino) > 0 {
				return false, s
			}
			*a = entry{ino: in.ino}
		}
		return !a.folder && a.ino == in.ino, s
	case opUnlink, opRmdir:
		ok := a.ino != 0 && a.folder == (in.op == opRmdir) && a.child == 0
		*a = entry{}
		return ok, s
	case opRename:
		if a.ino == 0 || b.ino != 0 && (a.folder != b.folder || b.child != 0) {
			return false, s
		}
		*b, *a = *a, entry{}
		return true, s
	case opExchange:
		ok := a.ino != 0 && b.ino != 0
		*b, *a = *a, *b
		return ok, s
	case opMakeIn, opTakeIn, seeIn, seeDead:
		return s.stepIn(in, out)
	case seeName:
		if a.ino == unbound && out.folder && s.owner(out.ino) < 0 {
			a.ino = out.ino
		}
		return a.ino == out.ino && a.folder == out.folder, s
	case seeLinks:
		return s.links(in.ino) == out.n, s
	case seeFile:
		return a.ino != 0 && !a.folder, s
	case seeFolder:
		return a.folder, s
	case seeAny:
		return a.ino != 0, s
	case seeFull:
		return a.child != 0, s
	case seeNoPair:
		return a.ino == 0 || b.ino == 0, s
	}
	panic(in.op)
}

// stepIn is what is done through an open folder.
func (s names) stepIn(in nameIn, out nameOut) (bool, names) {
	i := s.owner(in.ino)
	switch in.op {
	case seeDead:
		return i < 0 && s.links(in.ino) == 0, s
	case seeIn:
		if i < 0 {
			return out.ino == 0, s
		}
		return s[i].child == out.ino, s
	case opMakeIn:
		if i < 0 || s[i].child != 0 {
			return false, s
		}
		s[i].child = out.ino
	case opTakeIn:
		if i < 0 || s[i].child == 0 {
			return false, s
		}
		s[i].child = 0
	}
	return true, s
}

// --- registers ------------------------------------------------------------------------------------------------------

// set is a change of a register; an empty value takes it away. A set with must fails unless the state is that.
type set struct {
	value  string
	create bool // only if there is none
	old    bool // only if there is one
}

func (s set) String() string {
	return fmt.Sprintf("set %q create=%v replace=%v", s.value, s.create, s.old)
}

// get looks at a register; the output is the value, empty for none.
type get struct{}

func (get) String() string { return "get" }

func stepRegister(state, in, out any) (bool, any) {
	if s, ok := in.(set); ok {
		have := state.(string) != ""
		return !(s.create && have) && !(s.old && !have), s.value
	}
	return state == out, state
}

// --- a range of a file ----------------------------------------------------------------------------------------------

// cell is a range of a file: absent past the end, else a value (0 for a hole).
type cell struct {
	there bool
	value uint64
}

func (c cell) String() string {
	if !c.there {
		return "past the end"
	}
	return fmt.Sprintf("%x", c.value)
}

type cellOp uint8

const (
	cellWrite cellOp = iota
	cellGrow         // the file reaches past it now
	cellCut          // the file ends before it now
	cellLook
)

type cellIn struct {
	op    cellOp
	value uint64
}

func (c cellIn) String() string {
	return fmt.Sprintf("%s %x", [...]string{"write", "grow", "cut", "read"}[c.op], c.value)
}

func stepCell(state, in, out any) (bool, any) {
	s, i := state.(cell), in.(cellIn)
	switch i.op {
	case cellWrite:
		return true, cell{true, i.value}
	case cellGrow:
		s.there = true
		return true, s
	case cellCut:
		return true, cell{}
	}
	return s == out.(cell), s
}

// lengthIn changes a size: to size, or to at least it.
type lengthIn struct {
	size    int64
	atLeast bool
	look    bool
}

func (l lengthIn) String() string {
	switch {
	case l.look:
		return "size"
	case l.atLeast:
		return fmt.Sprintf("write up to %d", l.size)
	}
	return fmt.Sprintf("truncate to %d", l.size)
}

func stepLength(state, in, out any) (bool, any) {
	s, i := state.(int64), in.(lengthIn)
	switch {
	case i.look:
		return s == out.(int64), s
	case i.atLeast:
		return true, max(s, i.size)
	}
	return true, i.size
}

// logState describes the records of a file: how many, and a hash of them in order.
type logState struct {
	n    int
	hash uint64
}

func (l logState) with(record uint64) logState {
	return logState{l.n + 1, (l.hash ^ record) * 0x9e3779b97f4a7c15}
}

// logIn appends a record; 0 looks at all, countOnly at the number.
type logIn struct {
	record    uint64
	countOnly bool
}

func (l logIn) String() string {
	switch {
	case l.record != 0:
		return fmt.Sprintf("append %x", l.record)
	case l.countOnly:
		return "count of records"
	}
	return "read of all records"
}

func (l logState) String() string { return fmt.Sprintf("%d records", l.n) }

func stepLog(state, in, out any) (bool, any) {
	s, i := state.(logState), in.(logIn)
	switch {
	case i.record != 0:
		return true, s.with(i.record)
	case i.countOnly:
		return out.(logState).n == s.n, s
	}
	return out.(logOut).state == s, s
}

// logOut is what a read of all records gave.
type logOut struct {
	state logState
	text  string // the last records, for the report
}

func (l logOut) String() string { return fmt.Sprintf("%d records, the last ones%s", l.state.n, l.text) }

// --- ACL ------------------------------------------------------------------------------------------------------------

// aclState is an access ACL with one named user: permission bits of owner, user, group, mask and others. The zero value
// is no ACL.
type aclState struct {
	have                             bool
	owner, user, group, mask, others uint8
}

// aclIn sets (or with the zero value takes away) the ACL, or follows a chmod.
type aclIn struct {
	acl   aclState
	chmod bool
	mode  uint32
	look  bool
}

func (a aclState) String() string {
	if !a.have {
		return "no ACL"
	}
	return fmt.Sprintf("u%d named%d g%d mask%d o%d", a.owner, a.user, a.group, a.mask, a.others)
}

func (a aclIn) String() string {
	switch {
	case a.look:
		return "get ACL"
	case a.chmod:
		return fmt.Sprintf("chmod %o", a.mode)
	}
	return fmt.Sprintf("set %v", a.acl)
}

func stepACL(state, in, out any) (bool, any) {
	s, i := state.(aclState), in.(aclIn)
	switch {
	case i.look:
		return s == out.(aclState), s
	case i.chmod:
		if s.have {
			s.owner, s.mask, s.others = uint8(i.mode>>6&7), uint8(i.mode>>3&7), uint8(i.mode&7)
		}
		return true, s
	}
	return true, i.acl
}

// --- listings -------------------------------------------------------------------------------------------------------

// reading is one whole listing of a folder of the pair.
type reading struct {
	folder       int // 0 for A, 1 for B
	mount        int
	call, ret    int64
	found        map[string]int // how often each name came
	wantAlways   []string       // names that are there from before the run to its end
	wantPossible map[string]bool
}

// checkListings: what was there throughout is listed exactly once, what was not there is not listed, and nothing that
// never was is.
func (h *history) checkListings() []violation {
	var changes []step
	for _, s := range h.steps {
		if s.kind == partNames && !s.look {
			changes = append(changes, s)
		}
	}
	var found []violation
	for _, l := range h.listings {
		bad := func(format string, args ...any) {
			found = append(found, violation{"listing", fmt.Sprintf("listing of %c on M%d, %.6f–%.6f ms: %s", "AB"[l.folder], l.mount,
				float64(l.call)/1e6, float64(l.ret)/1e6, fmt.Sprintf(format, args...))})
		}
		for _, name := range l.wantAlways {
			if n := l.found[name]; n != 1 {
				bad("%s is listed %d times, and was there throughout", name, n)
			}
		}
		for name := range l.found {
			if !l.wantPossible[name] {
				bad("%s is listed and never was", name)
			}
		}
		for i := range int8(nameCount / 2) {
			name := int8(l.folder)*(nameCount/2) + i
			text := nameText(name)[2:]
			there, known, last := presence(changes, name, l.call, l.ret)
			if n := l.found[text]; known && (there && n != 1 || !there && n != 0) {
				bad("%s is listed %d times, though the last change before made its presence %v:\n%s", text, n, there, describeSteps(last))
			}
		}
	}
	return found
}

// presence says whether a name was there during a whole interval, if that is certain.
func presence(changes []step, name int8, from, to int64) (there, known bool, last []step) {
	var newest step
	touching := changes[:0:0]
	for _, s := range changes {
		in := s.in.(nameIn)
		two := in.op == opRename || in.op == opExchange
		if in.op == opMakeIn || in.op == opTakeIn || in.a != name && !(two && in.b == name) {
			continue
		}
		if s.call <= to && s.ret >= from {
			return false, false, nil
		}
		if s.ret < from {
			touching = append(touching, s)
			if s.call > newest.call || len(touching) == 1 {
				newest = s
			}
		}
	}
	result := func(s step) bool {
		in := s.in.(nameIn)
		return in.op != opUnlink && in.op != opRmdir && !(in.op == opRename && in.a == name)
	}
	if len(touching) == 0 {
		return false, true, nil // never made
	}
	there = result(newest)
	for _, s := range touching {
		if s.ret >= newest.call && result(s) != there {
			return false, false, nil // two changes at once: which came last is not known
		}
	}
	return there, true, []step{newest}
}

// refusal turns the error of a call on names into what it says about the state; ok is false for an error that no state
// explains.
func refusal(in nameIn, err error) (list []nameIn, ok bool) {
	see := func(op nameOp, a int8) nameIn { return nameIn{op: op, a: a, b: in.b, ino: in.ino} }
	switch in.op {
	case opCreate, opMkdir:
		if err == unix.EEXIST {
			return []nameIn{see(seeAny, in.a)}, true
		}
	case opEnsure:
		if err == unix.EISDIR {
			return []nameIn{see(seeFolder, in.a)}, true
		}
	case opUnlink, opRmdir:
		switch err {
		case unix.ENOENT:
			return []nameIn{{op: seeName, a: in.a}}, true
		case unix.EISDIR:
			return []nameIn{see(seeFolder, in.a)}, in.op == opUnlink
		case unix.ENOTDIR:
			return []nameIn{see(seeFile, in.a)}, in.op == opRmdir
		case unix.ENOTEMPTY, unix.EEXIST:
			return []nameIn{see(seeFull, in.a)}, in.op == opRmdir
		}
	case opRename:
		switch err {
		case unix.ENOENT:
			return []nameIn{{op: seeName, a: in.a}}, true
		case unix.EISDIR:
			return []nameIn{see(seeFile, in.a), see(seeFolder, in.b)}, true
		case unix.ENOTDIR:
			return []nameIn{see(seeFolder, in.a), see(seeFile, in.b)}, true
		case unix.ENOTEMPTY, unix.EEXIST:
			return []nameIn{see(seeFolder, in.a), see(seeFull, in.b)}, true
		}
	case opExchange:
		if err == unix.ENOENT {
			return []nameIn{{op: seeNoPair, a: in.a, b: in.b}}, true
		}
	case opLink:
		switch err {
		case unix.EEXIST:
			return []nameIn{see(seeAny, in.a)}, true
		case unix.ENOENT, unix.ESTALE: // the inode is known by number alone, as with O_PATH, and gone
			return []nameIn{{op: seeDead, ino: in.ino}}, true
		}
	}
	return nil, false
}
