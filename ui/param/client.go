package param

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/strakefs/strake/fs/status"
)

// answerMax bounds a line of an answer: the text of a parameter, escaped.
const answerMax = 64 << 20

// Process is a process as its parameter socket shows it. It is for one goroutine at a time.
type Process struct {
	Path    string
	Role    string
	PID     int
	FSName  string
	Version string
	// MGS says that it keeps permanent parameters.
	MGS bool

	c   *net.UnixConn
	in  *bufio.Scanner
	enc *json.Encoder
}

// Node is a parameter or a folder of a process.
type Node struct {
	Name     string
	Folder   bool
	Writable bool
	// Text is the value; HasText is false for folders and for answers to List.
	Text    string
	HasText bool
	// Err is why Set was refused; its status.Kind is Access for a read-only parameter and Invalid for a bad value.
	Err error
}

// How long a process may take to greet and to answer a request, a permanent parameter's way to the disk included, before
// it is given up. One that is stopped, or hangs in the kernel, does neither.
const (
	greetTime = 3 * time.Second
	askTime   = 10 * time.Second
)

// errSilent is what a process that takes too long gets.
var errSilent = status.Errorf(status.TimedOut, "the process does not answer: it is stopped, or hangs")

// Dial connects to a parameter socket. ctx bounds the connecting, and so does a limit of its own.
func Dial(ctx context.Context, path string) (*Process, error) {
	ctx, cancel := context.WithTimeout(ctx, greetTime)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) && op.Err != nil {
			err = op.Err // without the path: the caller knows it
		}
		return nil, silent(err)
	}
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("no Unix socket"), conn.Close())
	}
	p := &Process{Path: path, c: c, in: bufio.NewScanner(c), enc: json.NewEncoder(c)}
	p.in.Buffer(nil, answerMax)
	// Whoever cancels ctx ends the wait for the greeting.
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	err = p.greet()
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, errors.Join(silent(err), c.Close())
	}
	return p, nil
}

// silent says in words that time is up.
func silent(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return errSilent
	}
	return err
}

// Gone reports whether Dial failed because the process is not there any more: it was killed, or has just stopped.
func Gone(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist)
}

// Close ends the conversation.
func (p *Process) Close() error { return p.c.Close() }

// line reads one line into v.
func (p *Process) line(v any) error {
	if !p.in.Scan() {
		if err := p.in.Err(); err != nil {
			return err
		}
		return io.ErrUnexpectedEOF
	}
	return json.Unmarshal(p.in.Bytes(), v)
}

func (p *Process) greet() error {
	var g greeting
	if err := p.line(&g); err != nil {
		return err
	}
	switch {
	case g.End:
		return status.Errorf(status.Access, "%s", g.Error)
	case g.Strake != protocolVersion:
		return status.Errorf(status.Protocol, "it speaks version %d, lctl speaks %d: take both from one build", g.Strake, protocolVersion)
	}
	p.Role, p.PID, p.FSName, p.Version, p.MGS = g.Role, g.PID, g.FSName, g.Version, g.MGS
	return nil
}

// ask sends a request and returns the nodes of its answer. An error of the server has its status.Kind.
func (p *Process) ask(q request) ([]Node, error) {
	q.V = protocolVersion
	err := p.c.SetDeadline(time.Now().Add(askTime))
	if err == nil {
		err = p.enc.Encode(q)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Path, silent(err))
	}
	var nodes []Node
	for {
		var a answer
		if err := p.line(&a); err != nil {
			return nil, fmt.Errorf("%s: %w", p.Path, silent(err))
		}
		var failed error
		if a.Error != "" {
			failed = status.Errorf(status.Kind(a.Code), "%s", a.Error)
		}
		if a.End {
			return nodes, failed
		}
		n := Node{Name: a.Name, Folder: a.Folder, Writable: a.Writable, Err: failed}
		if a.Text != nil {
			n.Text, n.HasText = *a.Text, true
		}
		nodes = append(nodes, n)
	}
}

// List returns the nodes that match, and those below them if recursive.
func (p *Process) List(pattern string, recursive bool) ([]Node, error) {
	return p.ask(request{Op: opList, Pattern: pattern, Recursive: recursive})
}

// Get returns the nodes that match with their values, and those below them if recursive.
func (p *Process) Get(pattern string, recursive bool) ([]Node, error) {
	return p.ask(request{Op: opGet, Pattern: pattern, Recursive: recursive})
}

// Set sets all parameters that match and returns them, each with its error.
func (p *Process) Set(pattern, value string) ([]Node, error) {
	return p.ask(request{Op: opSet, Pattern: pattern, Value: value})
}

// SetPermanent keeps a value at the MGS, or removes it when value is empty. It returns when that is on disk.
func (p *Process) SetPermanent(pattern, value string) error {
	_, err := p.ask(request{Op: opPermanent, Pattern: pattern, Value: value})
	return err
}
