package check

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/mgc"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/wire/wirepb"
	"github.com/strakefs/strake/server/mgs"
	"github.com/strakefs/strake/server/ost"
	"github.com/strakefs/strake/server/target"
	"github.com/strakefs/strake/store"
)

// Remote says where a running file system is.
type Remote struct {
	// MGS are the addresses of the MGS, FSName is the file system's.
	MGS    []string
	FSName string
	// Transport reaches them; nil is TCP.
	Transport rpc.Transport
	// Timeout is how long the MGS and each target may take to answer; 0 is 30 s.
	Timeout time.Duration
	Log     *slog.Logger
}

// closeTime bounds the end of the connections.
const closeTime = 5 * time.Second

// Connect reaches the targets of a running file system. It waits until each has answered. A target in its recovery window
// answers when that is over. Close the set.
func Connect(ctx context.Context, o Remote) (_ *Set, err error) {
	if o.Transport == nil {
		o.Transport = rpc.NewTCP()
	}
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Set{FSName: o.FSName, online: true}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	var uuid [16]byte
	if _, err := rand.Read(uuid[:]); err != nil {
		return nil, err
	}
	c, err := s.config(ctx, &o, uuid)
	if err != nil {
		return nil, err
	}
	for _, t := range c.Targets {
		if err := s.reach(ctx, &o, uuid, t); err != nil {
			return nil, fmt.Errorf("%s: %w", t.Name, err)
		}
	}
	if s.mdt == nil {
		return nil, fmt.Errorf("the MGS knows no MDT of file system %q", o.FSName)
	}
	sort.Slice(s.osts, func(i, j int) bool { return s.osts[i].index < s.osts[j].index })
	return s, nil
}

// dial makes a tool's connection to a target and waits for it.
func (s *Set) dial(ctx context.Context, o *Remote, uuid [16]byte, name string, addresses []string) (*rpc.Import, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	i, err := rpc.NewImport(rpc.ImportOptions{
		Transport: o.Transport, Addresses: addresses, FSName: o.FSName, Target: name, UUID: uuid,
		Peer: fmt.Sprintf("%s: check (pid %d)", host, os.Getpid()), Kind: rpc.KindTool, Log: o.Log,
	})
	if err != nil {
		return nil, err
	}
	s.close = append(s.close, func() error {
		bye, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		return i.Close(bye)
	})
	limited, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	if err := i.Connect(limited); err != nil {
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return nil, fmt.Errorf("it did not answer at %s within %v", strings.Join(addresses, ", "), o.Timeout)
		}
		return nil, err
	}
	return i, nil
}

// config asks the MGS which targets there are.
func (s *Set) config(ctx context.Context, o *Remote, uuid [16]byte) (*wirepb.Config, error) {
	i, err := s.dial(ctx, o, uuid, mgs.Name, o.MGS)
	if err != nil {
		return nil, fmt.Errorf("the MGS: %w", err)
	}
	c := mgc.New(mgc.Options{Import: i, FSName: o.FSName, Log: o.Log})
	defer c.Close()
	limited, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	return c.Fetch(limited)
}

// reach connects to a target of the configuration.
func (s *Set) reach(ctx context.Context, o *Remote, uuid [16]byte, t *wirepb.Target) error {
	var addresses []string
	for _, b := range t.Addresses {
		if a := string(b); rpc.Reaches(o.Transport, a) {
			addresses = append(addresses, a)
		}
	}
	if len(addresses) == 0 {
		return errors.New("no address of it can be reached from this process: does its node listen on a port?")
	}
	if t.Kind == mgc.KindOST && !t.Active {
		return nil // The summary names it.
	}
	i, err := s.dial(ctx, o, uuid, string(t.Name), addresses)
	if err != nil {
		return err
	}
	switch t.Kind {
	case mgc.KindMDT:
		specs, tables := mdtSpecs()
		s.mdt = &mdtSide{name: string(t.Name), index: t.Index, tables: tables,
			records: &target.RemoteRecords{Import: i, Specs: specs, KeysOnly: tables.mdt.Xattr}}
	case mgc.KindOST:
		r := &target.RemoteRecords{Import: i, Specs: ost.Specs(), KeysOnly: store.Table(target.NoTable)}
		s.osts = append(s.osts, &ostSide{name: string(t.Name), index: layout.OSTIndex(t.Index), records: r, stat: r.Stat})
	}
	return nil
}
