package rpc_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/status"
	"github.com/strakefs/strake/fs/wire"
	"github.com/strakefs/strake/fs/wire/wirepb"
)

// serveEnv makes the test binary the server of a benchmark in two processes.
const serveEnv = "STRAKE_RPC_TEST_SERVE"

func serveAsProcess() {
	l, err := rpc.NewTCP().Listen("127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	tg := &target{disk: newDisk(), instance: 1}
	s := rpc.NewServer(rpc.ServerOptions{Find: func(name string) (rpc.Target, error) {
		if name != targetName {
			return nil, status.WrongTarget
		}
		return tg, nil
	}})
	go func() {
		bufio.NewReader(os.Stdin).ReadByte() // until the parent ends
		os.Exit(0)
	}()
	fmt.Println(l.Addr())
	s.Serve(l)
}

// otherProcess starts a server in a process of its own.
func otherProcess(b *testing.B) *cluster {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serveEnv+"=1")
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { in.Close(); cmd.Wait() })
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return &cluster{t: b, transport: rpc.NewTCP(), addr: strings.TrimSpace(addr)}
}

func benchClusters(b *testing.B, f func(b *testing.B, c *cluster)) {
	b.Run("processes", func(b *testing.B) { f(b, otherProcess(b)) })
	for _, name := range []string{"tcp", "pipe"} {
		b.Run(name, func(b *testing.B) {
			c := newCluster(b, name)
			c.start()
			f(b, c)
		})
	}
}

// BenchmarkCall is a request and reply of 4 KiB each, one in flight.
func BenchmarkCall(b *testing.B) {
	benchClusters(b, func(b *testing.B, c *cluster) {
		i := c.connect(nil)
		reply := wirepb.XattrReply{}
		r := &rpc.Request{Op: wire.OpGetxattr, Body: &wirepb.XattrRequest{Name: make([]byte, 4096)}, Reply: &reply}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		b.ReportAllocs()
		for b.Loop() {
			reply.Value = reply.Value[:0]
			if err := i.Do(ctx, r); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkRead and BenchmarkWrite move bulk of several sizes, one request in flight.
func BenchmarkRead(b *testing.B) {
	for _, size := range []int{4 << 10, 1 << 20, 4 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			benchClusters(b, func(b *testing.B, c *cluster) {
				i := c.connect(func(o *rpc.ImportOptions) { o.Bulk = true })
				r := &rpc.Request{Op: wire.OpRead, Body: &wirepb.ReadRequest{Length: uint32(size)}, Into: make([]byte, size)}
				b.ReportAllocs()
				b.SetBytes(int64(size))
				for b.Loop() {
					if err := i.Do(b.Context(), r); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

// BenchmarkParallel keeps 16 requests of 4 KiB in flight.
func BenchmarkParallel(b *testing.B) {
	benchClusters(b, func(b *testing.B, c *cluster) {
		i := c.connect(nil)
		b.ReportAllocs()
		b.SetParallelism(8)
		b.RunParallel(func(pb *testing.PB) {
			reply := wirepb.XattrReply{}
			r := &rpc.Request{Op: wire.OpGetxattr, Body: &wirepb.XattrRequest{Name: make([]byte, 4096)}, Reply: &reply}
			for pb.Next() {
				reply.Value = reply.Value[:0]
				if err := i.Do(context.Background(), r); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}
