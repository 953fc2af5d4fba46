package suite

import (
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// as runs f on a thread with the effective ids given, and the groups beside gid. Only system calls made by f itself, on
// this thread, have them: no other goroutine, no child process. f must not end the test.
func as(t testing.TB, uid, gid int, groups []int, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	old, err := unix.Getgroups()
	must(t, err)
	setThreadGroups(t, groups)
	setThreadID(t, unix.SYS_SETRESGID, gid)
	setThreadID(t, unix.SYS_SETRESUID, uid)
	defer func() {
		setThreadID(t, unix.SYS_SETRESUID, 0)
		setThreadID(t, unix.SYS_SETRESGID, 0)
		setThreadGroups(t, old)
	}()
	f()
}

// setThreadID sets the effective id of this thread; the calls of package syscall set those of the whole process.
func setThreadID(t testing.TB, call uintptr, id int) {
	t.Helper()
	if _, _, errno := unix.RawSyscall(call, ^uintptr(0), uintptr(id), ^uintptr(0)); errno != 0 {
		panic(errno) // the thread's identity is unknown now: nothing may go on
	}
}

// setThreadGroups sets the supplementary groups of this thread alone.
func setThreadGroups(t testing.TB, groups []int) {
	t.Helper()
	list := make([]uint32, len(groups)+1)
	for i, g := range groups {
		list[i] = uint32(g)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&list[0])), 0); errno != 0 {
		panic(errno)
	}
}
