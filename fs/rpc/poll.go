package rpc

import (
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pollTime is how long who reads alone waits in the kernel, with its thread, before it parks as goroutines do. Waking a thread that
// sleeps in ppoll(2) is one switch. Waking a parked goroutine wakes the thread in epoll_wait(2) and, for what else may be ready,
// another one: with one request at a time that is a third of a server's processor time per request.
const pollTime = time.Millisecond

// poller reads from a TCP connection by ppoll(2). Its fields belong to the goroutine that has the reading role.
type poller struct {
	raw syscall.RawConn // nil where the connection has no file descriptor
	try func(fd uintptr) bool

	into  []byte
	n     int
	err   error
	tried bool
	fds   [1]unix.PollFd
}

func (p *poller) init(nc net.Conn) {
	c, ok := nc.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	p.raw, p.try = raw, p.attempt
}

// read is net.Conn's Read. A deadline, or Close, ends it within pollTime.
func (p *poller) read(b []byte) (int, error) {
	p.into, p.n, p.err, p.tried = b, 0, nil, false
	err := p.raw.Read(p.try)
	p.into = nil
	if err == nil {
		err = p.err
	}
	if err == nil && p.n == 0 {
		err = io.EOF
	}
	return p.n, err
}

// attempt reads what there is; false says that the goroutine is to park until there is something.
func (p *poller) attempt(fd uintptr) bool {
	if !p.tried {
		p.tried = true
		p.fds[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
		wait := unix.NsecToTimespec(int64(pollTime))
		_, _ = unix.Ppoll(p.fds[:], &wait, nil) // The read says whether there is something.
	}
	for {
		n, err := unix.Read(int(fd), p.into)
		switch err {
		case nil:
			p.n = n
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		default:
			p.err = err
		}
		return true
	}
}
