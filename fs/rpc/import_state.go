package rpc

import "time"

// State of an import.
type State uint8

// States. A request flows only in StateFull; in the others Do waits.
const (
	// StateNew: not asked to connect yet.
	StateNew State = iota
	// StateConnecting: a connect is under way.
	StateConnecting
	// StateReplay: connected to a target that was started again and waits for its clients; what it may have lost is sent again.
	StateReplay
	// StateReplayLocks: opens and locks are handed back to it.
	StateReplayLocks
	// StateReplayWait: until the other clients have done the same.
	StateReplayWait
	// StateRecover: connected; requests whose callers have left are being resent.
	StateRecover
	// StateFull: requests flow.
	StateFull
	// StateDisconn: the connection is lost; the next try comes after the back-off.
	StateDisconn
	// StateEvicted: the server has thrown this client out; what was in flight fails.
	StateEvicted
	// StateClosed: for good.
	StateClosed
)

// String gives the state as `lctl get_param *.*.state` prints it.
func (s State) String() string {
	switch s {
	case StateNew:
		return "NEW"
	case StateConnecting:
		return "CONNECTING"
	case StateReplay:
		return "REPLAY"
	case StateReplayLocks:
		return "REPLAY_LOCKS"
	case StateReplayWait:
		return "REPLAY_WAIT"
	case StateRecover:
		return "RECOVER"
	case StateFull:
		return "FULL"
	case StateDisconn:
		return "DISCONN"
	case StateEvicted:
		return "EVICTED"
	case StateClosed:
		return "CLOSED"
	}
	return "UNKNOWN"
}

const (
	// backoffMin and backoffMax bound the time between two tries: a restarted server is back within a few tenths of a
	// second, and a thousand clients that try every five seconds are no load. While the host answers that nobody listens,
	// the bound is backoffQuick: a try costs it next to nothing, and the server is about to start.
	backoffMin   = 50 * time.Millisecond
	backoffQuick = time.Second
	backoffMax   = 5 * time.Second
	// steadyTime is how long a connection must have been full for the next loss to count as the first.
	steadyTime = time.Second
)

// event is what happens to an import.
type event uint8

const (
	evConnect    event = iota // somebody wants it connected, now
	evTimer                   // the back-off is over
	evConnected               // a connect succeeded: generation, instance, recovered, recovering
	evFailed                  // a connect failed; quick says that the host is there
	evRefused                 // the server will not have this client
	evReplayed                // requests are replayed, and those of all other clients
	evRestored                // opens and locks are handed back
	evWindowOver              // all clients have handed theirs back
	evRecovered               // the orphans are resent
	evFlushed                 // what was in flight has failed
	evLost                    // a connection ended
	evEvicted                 // a reply said that the export is gone
	evClose
)

// input of one step. now is any clock that only moves forward; jitter is a random number in [0, 1).
type input struct {
	event      event
	now        time.Duration
	jitter     float64
	generation uint64
	instance   uint64
	recovered  bool
	recovering bool
	quick      bool
}

// action is what the driver does next.
type action uint8

const (
	actNothing action = iota // wait for an event
	actDial                  // connect to address
	actWait                  // wait for delay, then evTimer
	actReplay                // replay requests, then evReplayed
	actRestore               // hand opens and locks back, then evRestored
	actAwait                 // wait for the end of the target's window, then evWindowOver
	actResend                // resend orphans, then evRecovered
	actFlow                  // let requests flow
	actFail                  // fail what is in flight, then evFlushed
	actRefuse                // as actWait, and fail what waits with the refusal
	actStop                  // cut the connections and end
)

type output struct {
	action  action
	address int
	delay   time.Duration
}

// machine is the state of an import as a step function: no goroutine, clock, socket or random source inside.
type machine struct {
	state      State
	addresses  int
	address    int  // the next to try
	failures   uint // tries in a row that led to no steady connection
	generation uint64
	instance   uint64
	connected  bool // a connection stands
	// replays says that there is something to replay or to hand back after a restart of the target.
	replays bool
	// staged is the instance to which all requests are replayed, finished the one whose recovery, if it had one, is over.
	staged, finished uint64
	fullSince        time.Duration
}

// step takes one event. Events that do not fit the state change nothing: they were on their way when it changed.
func (m *machine) step(in input) output {
	if in.event == evClose {
		m.state, m.connected = StateClosed, false
		return output{action: actStop}
	}
	switch m.state {
	case StateNew, StateDisconn:
		if in.event == evConnect || in.event == evTimer && m.state == StateDisconn {
			return m.dial()
		}
	case StateConnecting:
		return m.stepConnecting(in)
	case StateEvicted:
		switch {
		case in.event == evLost:
			m.connected = false
		case in.event == evFlushed && m.connected:
			m.state = StateRecover
			return output{action: actResend}
		case in.event == evFlushed:
			return m.dial()
		}
	case StateReplay, StateReplayLocks, StateReplayWait, StateRecover, StateFull:
		return m.stepConnected(in)
	}
	return output{}
}

func (m *machine) stepConnecting(in input) output {
	switch in.event {
	case evConnected:
		return m.connect(in)
	case evFailed:
		m.address = (m.address + 1) % m.addresses
		return m.disconnect(in, actWait)
	case evRefused:
		m.address = (m.address + 1) % m.addresses
		out := m.disconnect(in, actRefuse)
		out.delay = backoffMax
		return out
	}
	return output{}
}

// connect decides what follows a connect.
func (m *machine) connect(in input) output {
	// The same instance knows this client no more: it was evicted meanwhile. So it was when another instance does not, for an
	// import whose target keeps its clients on its disk. Without anything to replay that is a restart like any other.
	known := m.generation != 0
	evicted := known && !in.recovered && (m.instance == in.instance || m.replays)
	m.generation, m.instance, m.connected = in.generation, in.instance, true
	switch {
	case evicted:
		m.state, m.finished = StateEvicted, in.instance
		return output{action: actFail}
	case known && in.recovering && m.replays && m.finished != in.instance:
		if m.staged == in.instance {
			m.state = StateReplayLocks
			return output{action: actRestore}
		}
		m.state = StateReplay
		return output{action: actReplay}
	}
	m.state, m.finished = StateRecover, in.instance
	return output{action: actResend}
}

func (m *machine) stepConnected(in input) output {
	switch in.event {
	case evReplayed:
		if m.state == StateReplay {
			m.state, m.staged = StateReplayLocks, m.instance
			return output{action: actRestore}
		}
	case evRestored:
		if m.state == StateReplayLocks {
			m.state = StateReplayWait
			return output{action: actAwait}
		}
	case evWindowOver:
		if m.state == StateReplayWait {
			m.state, m.finished = StateRecover, m.instance
			return output{action: actResend}
		}
	case evRecovered:
		if m.state == StateRecover {
			m.state, m.fullSince = StateFull, in.now
			return output{action: actFlow}
		}
	case evEvicted:
		m.state, m.connected, m.generation = StateEvicted, false, 0
		return output{action: actFail}
	case evLost:
		if m.state == StateFull && in.now-m.fullSince >= steadyTime {
			m.failures = 0
		}
		return m.disconnect(in, actWait)
	}
	return output{}
}

func (m *machine) dial() output {
	m.state = StateConnecting
	return output{action: actDial, address: m.address}
}

// disconnect gives the time to the next try: at once after the loss of a steady connection, then doubling from backoffMin
// to backoffMax or, while the host is there, backoffQuick, each between half and the whole of it.
func (m *machine) disconnect(in input, a action) output {
	m.state, m.connected = StateDisconn, false
	out := output{action: a, address: m.address}
	if m.failures > 0 {
		most := backoffMax
		if in.quick {
			most = backoffQuick
		}
		d := min(backoffMin<<min(m.failures-1, 10), most)
		out.delay = d/2 + time.Duration(in.jitter*float64(d/2))
	}
	m.failures++
	return out
}

// setAddresses makes n the number of addresses; the first is tried next. Whoever says so has heard of the target, so a try that
// fails is followed soon by the next one.
func (m *machine) setAddresses(n int) { m.addresses, m.address, m.failures = n, 0, min(m.failures, 1) }
