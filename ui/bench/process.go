package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	startLimit = 60 * time.Second // for a mount to appear, MGS and targets included
	stopLimit  = 15 * time.Second // for a process to leave after SIGTERM
)

// process is one running command with its log.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan error // gets the result of the wait, once
}

// startProcess runs args with stdout and stderr in a file of dir, and files as its descriptors from 3 on.
func startProcess(dir, name string, files []*os.File, args []string) (*process, error) {
	log, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt at the terminal reaches only the bench
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("bench: start %s: %w", name, err)
	}
	p := &process{name: name, log: log.Name(), cmd: cmd, done: make(chan error, 1)}
	go func() { p.done <- cmd.Wait() }()
	return p, nil
}

// ended returns an error with the end of the log when the process has ended.
func (p *process) ended() error {
	select {
	case err := <-p.done:
		p.done <- err
		text, _ := os.ReadFile(p.log)
		return fmt.Errorf("bench: %s has ended (%w): %s", p.name, orExit0(err), bytes.TrimSpace(text[max(0, len(text)-2000):]))
	default:
		return nil
	}
}

var errExit0 = errors.New("exit status 0")

func orExit0(err error) error {
	if err == nil {
		return errExit0
	}
	return err
}

// stop sends SIGTERM and, past the limit, SIGKILL.
func (p *process) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-p.done:
		if err != nil {
			return fmt.Errorf("bench: %s: %w", p.name, err)
		}
		return nil
	case <-time.After(stopLimit):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("bench: %s did not leave within %v", p.name, stopLimit)
	}
}

// await polls until ready says so, the limit is over, ctx ends or a process of the list has ended.
func await(ctx context.Context, what string, list []*process, ready func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ready() {
		for _, p := range list {
			if err := p.ended(); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("bench: wait for %s: %w", what, ctx.Err())
		}
	}
	return nil
}

// mounted says whether a file system is mounted on dir, without touching it.
func mounted(dir string) bool {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return false
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Fields(s.Text()); len(fields) > 4 && fields[4] == dir {
			return true
		}
	}
	return false
}

// unmount detaches whatever is left on dir.
func unmount(dir string) {
	for mounted(dir) && unix.Unmount(dir, unix.MNT_DETACH) == nil {
	}
}

// listening says whether something accepts connections at addr.
func listening(addr string) bool {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	return conn.Close() == nil
}

// freePort is HOST:PORT on loopback that was free a moment ago.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
