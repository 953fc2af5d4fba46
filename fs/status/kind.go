package status

import (
	"context"
	"errors"
	"fmt"
	"syscall"
)

// Kind is what went wrong, as the peer and the application are told. Zero is no error.
type Kind uint32

// Kinds with the meaning of the errno of that name.
const (
	OK          = Kind(0)
	Perm        = Kind(syscall.EPERM)
	NotExist    = Kind(syscall.ENOENT)
	Interrupted = Kind(syscall.EINTR)
	IO          = Kind(syscall.EIO)
	NoDevice    = Kind(syscall.ENXIO)
	TooBig      = Kind(syscall.E2BIG)
	BadHandle   = Kind(syscall.EBADF)
	Again       = Kind(syscall.EAGAIN)
	NoMemory    = Kind(syscall.ENOMEM)
	Access      = Kind(syscall.EACCES)
	Busy        = Kind(syscall.EBUSY)
	Exist       = Kind(syscall.EEXIST)
	CrossDevice = Kind(syscall.EXDEV)
	NotDir      = Kind(syscall.ENOTDIR)
	IsDir       = Kind(syscall.EISDIR)
	Invalid     = Kind(syscall.EINVAL)
	TextBusy    = Kind(syscall.ETXTBSY)
	FileTooBig  = Kind(syscall.EFBIG)
	NoSpace     = Kind(syscall.ENOSPC)
	ReadOnly    = Kind(syscall.EROFS)
	TooManyLink = Kind(syscall.EMLINK)
	Range       = Kind(syscall.ERANGE)
	NameTooLong = Kind(syscall.ENAMETOOLONG)
	NotEmpty    = Kind(syscall.ENOTEMPTY)
	Loop        = Kind(syscall.ELOOP)
	NoData      = Kind(syscall.ENODATA)
	Overflow    = Kind(syscall.EOVERFLOW)
	NotSupport  = Kind(syscall.EOPNOTSUPP)
	TimedOut    = Kind(syscall.ETIMEDOUT)
	Stale       = Kind(syscall.ESTALE)
	Quota       = Kind(syscall.EDQUOT)
	Deadlock    = Kind(syscall.EDEADLK)
	NotSystem   = Kind(syscall.ENOSYS)
	NotUnique   = Kind(syscall.ENOTUNIQ)
)

// Kinds of the protocol itself.
const (
	// NotConnected: the request came on a connection whose export is gone (restart or eviction). Reconnect, resend.
	NotConnected = Kind(1000 + iota)
	// Evicted: this client was evicted; its locks, opens and grants are gone.
	Evicted
	// Checksum: bulk data did not match its checksum. Send it again.
	Checksum
	// Protocol: the peer sent what no peer may send. The text says what.
	Protocol
	// Refused: the server will not have this peer; the text says why and what to do.
	Refused
	// Stopping: the target is stopping or has failed. Wait and reconnect.
	Stopping
	// WrongTarget: the request names a target that does not live here.
	WrongTarget
	// Overtaken: the identifier of a new inode lies too far behind others of its client. Nothing was done: take another one.
	Overtaken
)

// Error makes a Kind an error.
func (k Kind) Error() string {
	switch k {
	case OK:
		return "no error"
	case NotConnected:
		return "not connected"
	case Evicted:
		return "evicted by the server"
	case Checksum:
		return "checksum mismatch"
	case Protocol:
		return "protocol violation"
	case Refused:
		return "refused"
	case Stopping:
		return "target is stopping"
	case WrongTarget:
		return "no such target here"
	case Overtaken:
		return "identifier overtaken by younger ones"
	}
	if k < 1000 {
		return syscall.Errno(k).Error()
	}
	return fmt.Sprintf("status %d", uint32(k))
}

// Error is a Kind with the sentence that came with it.
type Error struct {
	Kind Kind
	Text string
}

// Error gives the sentence, or the kind's own words when there is none.
func (e *Error) Error() string {
	if e.Text == "" {
		return e.Kind.Error()
	}
	return e.Text
}

// Unwrap lets errors.Is find the kind.
func (e *Error) Unwrap() error { return e.Kind }

// Errorf makes an error of a kind with a sentence.
func Errorf(k Kind, format string, args ...any) error {
	return &Error{Kind: k, Text: fmt.Sprintf(format, args...)}
}

// Of gives the kind inside err: a wrapped Kind, a wrapped syscall.Errno, or the kind of a context's end.
// An error that carries none is IO.
func Of(err error) Kind {
	if err == nil {
		return OK
	}
	var k Kind
	if errors.As(err, &k) {
		return k
	}
	var e syscall.Errno
	if errors.As(err, &e) {
		return Kind(e)
	}
	switch {
	case errors.Is(err, context.Canceled):
		return Interrupted
	case errors.Is(err, context.DeadlineExceeded):
		return TimedOut
	}
	return IO
}

// Errno gives what an application is told for err. Kinds of the protocol become EIO; they never reach an
// application while the client can still retry. Refused is EACCES, Stopping and NotConnected are EAGAIN's job
// inside the client and EIO outside.
func Errno(err error) syscall.Errno {
	k := Of(err)
	switch {
	case k < 1000:
		return syscall.Errno(k)
	case k == Refused:
		return syscall.EACCES
	}
	return syscall.EIO
}
