package rpc_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/strakefs/strake/fs/env"
	"github.com/strakefs/strake/fs/rpc"
	"github.com/strakefs/strake/fs/stats"
	"github.com/strakefs/strake/fs/wire"
)

// TestImportText: the file tells the state, the connection and why there is none.
func TestImportText(t *testing.T) {
	eachTransport(t, func(t *testing.T, c *cluster) {
		reg := stats.NewRegistry()
		c.target.serve = func(*env.Env, *rpc.Call) error { return nil }
		c.start()
		i := c.connect(func(o *rpc.ImportOptions) { o.Stats = reg })
		if err := i.Do(testContext(t), &rpc.Request{Op: wire.OpGetattr}); err != nil {
			t.Fatal(err)
		}
		text := func() (s string) {
			t.Helper()
			if err := reg.Walk("*.*.import", func(e stats.Entry) error { s = e.Text(); return nil }); err != nil {
				t.Fatal(err)
			}
			return s
		}
		for _, want := range []string{
			"import:\n    target: " + targetName + "\n    state: FULL\n", "\n       generation: 1\n", "\n       inflight: 0\n", "\n    transactions:\n",
		} {
			if s := text(); !strings.Contains(s, want) {
				t.Errorf("no %q in\n%s", want, s)
			}
		}
		if s := text(); strings.Contains(s, "last_error") || strings.HasSuffix(s, "\n") {
			t.Errorf("connected:\n%s", s)
		}
		c.crash()
		for s := text(); strings.Contains(s, "state: FULL") || !strings.Contains(s, "last_error: \"rpc: "); s = text() {
			if t.Context().Err() != nil {
				t.Fatalf("without a server:\n%s", s)
			}
			runtime.Gosched()
		}
		c.restart()
	})
}
