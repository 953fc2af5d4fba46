package forgetfs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Disk is a disk that a process of its own serves.
type Disk struct {
	// Dir is the mount point, Backing the backing folder.
	Dir, Backing string

	cmd   *exec.Cmd
	stdin io.Closer
	temp  string // holds the control socket

	mu      sync.Mutex
	conn    net.Conn      // guarded by mu
	answers *bufio.Reader // guarded by mu
}

// Pending tells what a disk has not on its backing folder.
type Pending struct {
	Changes int // of names
	Files   int // with bytes, sizes or holes
	Pages   int // of 4 KiB
	Syncs   int // flushes of files and folders since the last cut, not pending but beside it
}

// Start serves the folder backing on the folder dir, both made if they are not there, from a process of the running
// binary, which calls Helper. It returns when the mount can be used. log gets what the process has to complain of.
func Start(backing, dir string, log io.Writer) (*Disk, error) {
	for _, d := range []string{backing, dir} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("forgetfs: %w", err)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("forgetfs: %w", err)
	}
	temp, err := os.MkdirTemp("", "forgetfs-")
	if err != nil {
		return nil, fmt.Errorf("forgetfs: %w", err)
	}
	d := &Disk{Dir: dir, Backing: backing, temp: temp}
	socket := filepath.Join(temp, "control")
	d.cmd = exec.Command(exe)
	d.cmd.Env = append(os.Environ(), helperEnv+"="+strings.Join([]string{backing, dir, socket}, "\n"))
	d.cmd.Stderr = log
	stdin, err1 := d.cmd.StdinPipe()
	stdout, err2 := d.cmd.StdoutPipe()
	d.stdin = stdin
	if err := errors.Join(err1, err2, d.cmd.Start()); err != nil {
		return nil, fmt.Errorf("forgetfs: %w", err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "mounted\n" {
		return nil, errors.Join(fmt.Errorf("forgetfs: %s on %s is not served: %q, %w", backing, dir, line, err), d.Close())
	}
	if d.conn, err = net.Dial("unix", socket); err != nil {
		return nil, errors.Join(fmt.Errorf("forgetfs: %w", err), d.Close())
	}
	d.answers = bufio.NewReader(d.conn)
	return d, nil
}

// do sends a command and waits for its answer.
func (d *Disk) do(format string, args ...any) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	command := fmt.Sprintf(format, args...)
	_ = d.conn.SetDeadline(time.Now().Add(time.Minute))
	_, err := fmt.Fprintln(d.conn, command)
	if err == nil {
		var line string
		line, err = d.answers.ReadString('\n')
		if rest, ok := strings.CutPrefix(line, "ok"); ok {
			return strings.TrimSpace(rest), nil
		}
		if err == nil {
			err = errors.New(strings.TrimSpace(line))
		}
	}
	return "", fmt.Errorf("forgetfs: %s: %q: %w", d.Dir, command, err)
}

// Off takes the power away: from now on every request fails, and nothing reaches the backing folder.
func (d *Disk) Off() error { _, err := d.do("off"); return err }

// Forget drops all that is pending. The mount is a new one afterwards; open files of the old one fail with EIO.
func (d *Disk) Forget() error { _, err := d.do("forget"); return err }

// Tear keeps a random part of what is pending, as the package's comment says, and forgets the rest. grain divides 4096.
func (d *Disk) Tear(seed int64, grain int) error {
	_, err := d.do("tear %d %d", seed, grain)
	return err
}

// Room bounds the space that is left, in bytes; negative for as much as the backing folder has.
func (d *Disk) Room(bytes int64) error { _, err := d.do("room %d", bytes); return err }

// Fail makes count operations (negative: all) of a kind, "fsync" or "write", fail with EIO, on files and folders whose
// name holds name; the next skip ones pass.
func (d *Disk) Fail(what, name string, skip, count int) error {
	_, err := d.do("fail %s *%s %d %d", what, name, skip, count)
	return err
}

// OffAt takes the power away when the count-th flush from now on of a file whose name holds name begins: it fails, and
// keeps nothing.
func (d *Disk) OffAt(name string, count int) error {
	_, err := d.do("offat *%s %d", name, count)
	return err
}

// Heal ends all faults and bounds.
func (d *Disk) Heal() error { _, err := d.do("heal"); return err }

// Sync puts everything into the backing folder.
func (d *Disk) Sync() error { _, err := d.do("sync"); return err }

// Pending tells what is not in the backing folder.
func (d *Disk) Pending() (p Pending, err error) {
	text, err := d.do("pending")
	if err == nil {
		_, err = fmt.Sscan(text, &p.Changes, &p.Files, &p.Pages, &p.Syncs)
	}
	return p, err
}

// Close unmounts and ends the process. What is pending is lost.
func (d *Disk) Close() error {
	if d.conn != nil {
		_ = d.conn.Close()
	}
	_ = d.stdin.Close() // ends it
	err := d.cmd.Wait()
	if err != nil {
		_ = unix.Unmount(d.Dir, unix.MNT_DETACH)
		err = fmt.Errorf("forgetfs: %s: %w", d.Dir, err)
	}
	return errors.Join(err, os.RemoveAll(d.temp))
}
