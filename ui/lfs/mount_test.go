package lfs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/strakefs/strake/fs/fid"
	"github.com/strakefs/strake/fs/layout"
	"github.com/strakefs/strake/fs/virtual"
)

// fakeMount is a file system in memory that answers the virtual attributes as the client does.
type fakeMount struct {
	dir string

	mu      sync.Mutex
	values  map[string][]byte // guarded by mu; attributes that are answered alike on every inode
	refuse  syscall.Errno     // guarded by mu; what setting a layout answers, if not 0
	objects uint64            // guarded by mu; the last object's number
}

func (m *fakeMount) set(name string, value []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.values[name] = value
}

func (m *fakeMount) setJSON(t *testing.T, name string, v any) {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	m.set(name, b)
}

func fourTargets() *virtual.Info {
	def := layout.Plain(1, layout.StripeSizeDefault)
	i := &virtual.Info{FSName: "strake", Version: "test", Client: "c0ffee", Default: def.Append(nil)}
	for _, kind := range []string{"MDT", "OST", "OST", "OST"} {
		n := uint32(max(len(i.Targets)-1, 0))
		i.Targets = append(i.Targets, virtual.Target{Name: fmt.Sprintf("strake-%s%04x", kind, n), Kind: kind, Index: n, State: virtual.Active})
	}
	return i
}

// node is a file, folder or fifo.
type node struct {
	fusefs.Inode
	m      *fakeMount
	fid    fid.FID
	layout []byte // guarded by m.mu
}

// newMount mounts, or skips the test where the machine cannot.
func newMount(t *testing.T) *fakeMount {
	t.Helper()
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil || os.Getuid() != 0 {
		t.Skip("needs /dev/fuse and root")
	} else if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	m := &fakeMount{dir: t.TempDir(), values: make(map[string][]byte)}
	m.setJSON(t, virtual.About, fourTargets())
	root := &node{m: m, fid: fid.Root}
	server, err := fusefs.Mount(m.dir, root, &fusefs.Options{
		MountOptions: fuse.MountOptions{FsName: "test:/strake", Name: "strake", DirectMountStrict: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Unmount(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func (n *node) Getxattr(_ context.Context, name string, dest []byte) (uint32, syscall.Errno) {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	v, ok := n.m.values[name]
	switch {
	case ok:
	case name == virtual.FID:
		v = []byte(n.fid.String())
	case name == virtual.Layout && len(n.layout) > 0:
		v = n.layout
	case name == virtual.Paths, name == virtual.PathsOf+n.fid.String():
		v = []byte(n.Path(nil) + "\x00")
		if n.fid == fid.Root {
			v = []byte("/\x00")
		}
	case strings.HasPrefix(name, virtual.PathsOf):
		return 0, syscall.ESTALE
	default:
		return 0, syscall.ENODATA
	}
	if len(v) > len(dest) {
		return uint32(len(v)), syscall.ERANGE
	}
	return uint32(copy(dest, v)), 0
}

func (n *node) Setxattr(_ context.Context, name string, data []byte, _ uint32) syscall.Errno {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	var l layout.Layout
	switch {
	case name != virtual.Layout:
		return syscall.EOPNOTSUPP
	case n.m.refuse != 0:
		return n.m.refuse
	case l.Decode(data) != nil:
		return syscall.EINVAL
	}
	n.layout = bytes.Clone(data)
	if !n.IsDir() {
		c := &l.Components[0]
		count := max(len(c.Wanted), int(min(max(c.StripeCount, 1), 3)))
		for i := range count {
			s := layout.Stripe{OST: layout.OSTIndex(i)}
			if len(c.Wanted) > 0 {
				s.OST = c.Wanted[i]
			}
			n.m.objects++
			s.Object.ID = n.m.objects
			c.Stripes = append(c.Stripes, s)
		}
		c.StripeCount, c.Wanted, c.Flags = uint32(count), nil, layout.FlagInit
		if c.StripeSize == 0 {
			c.StripeSize = layout.StripeSizeDefault
		}
		n.layout = l.Append(nil)
	}
	return 0
}

func (n *node) Removexattr(_ context.Context, name string) syscall.Errno {
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	if name != virtual.Layout || len(n.layout) == 0 {
		return syscall.ENODATA
	}
	n.layout = nil
	return 0
}

func (n *node) add(ctx context.Context, mode uint32) *fusefs.Inode {
	child := &node{m: n.m}
	in := n.NewInode(ctx, child, fusefs.StableAttr{Mode: mode & syscall.S_IFMT})
	n.m.mu.Lock()
	defer n.m.mu.Unlock()
	child.fid = fid.FID{Seq: fid.SeqFirst, OID: uint32(in.StableAttr().Ino & (fid.Width - 1))}
	return in
}

func (n *node) Mknod(ctx context.Context, _ string, mode, _ uint32, _ *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	return n.add(ctx, mode), 0
}

func (n *node) Mkdir(ctx context.Context, _ string, mode uint32, _ *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	return n.add(ctx, syscall.S_IFDIR|mode), 0
}

func (n *node) Unlink(context.Context, string) syscall.Errno { return 0 }

func (n *node) Setattr(context.Context, fusefs.FileHandle, *fuse.SetAttrIn, *fuse.AttrOut) syscall.Errno {
	return 0
}

// lfs runs the tool and returns its output, its errors and its exit status.
func lfs(t *testing.T, args ...string) (out, errs string, code int) {
	t.Helper()
	var o, e bytes.Buffer
	c := NewCommand()
	c.SetArgs(args)
	c.SetOut(&o)
	c.SetErr(&e)
	c.SilenceErrors, c.SilenceUsage = true, true
	if err := c.Execute(); err != nil {
		code = exitUsage
		var coded ended
		if errors.As(err, &coded) {
			code = coded.ExitCode()
		} else {
			fmt.Fprintln(&e, err)
		}
	}
	return o.String(), e.String(), code
}

// want runs the tool and compares everything it says, with the mount point written as MNT.
func (m *fakeMount) want(t *testing.T, code int, out, errs string, args ...string) {
	t.Helper()
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "MNT", m.dir)
	}
	o, e, c := lfs(t, args...)
	o, e = strings.ReplaceAll(o, m.dir, "MNT"), strings.ReplaceAll(e, m.dir, "MNT")
	if o != out || e != errs || c != code {
		t.Errorf("lfs %q: status %d\n%s%s\nwant %d\n%s%s", args, c, o, e, code, out, errs)
	}
}
