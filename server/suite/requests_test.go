package suite

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// statsMetric is how many operations a target has served: strake_mdt_op_seconds_count{op="getxattr",target="…"}.
var statsMetric = regexp.MustCompile(`^strake_(?:mdt|obdfilter)_op_seconds_count\{([^}]*)\}\s+([0-9.e+]+)`)

// requests sums the operations that the servers have served, of one kind (op) or of all. This is the one place that knows
// how the figures are named.
func (c *cluster) requests(t testing.TB, op string) int64 {
	t.Helper()
	var sum float64
	found := false
	for _, n := range c.nodes {
		if n.http == "" || n.cmd == nil { // stopped nodes have no figures
			continue
		}
		for _, line := range strings.Split(scrape(t, n.http), "\n") {
			m := statsMetric.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			found = true
			if op == "" || strings.Contains(m[1], `op="`+op+`"`) {
				v, err := strconv.ParseFloat(m[2], 64)
				must(t, err)
				sum += v
			}
		}
	}
	if !found {
		t.Fatal("no strake_mdt_op_seconds among the metrics of any server")
	}
	return int64(sum)
}

// gauge returns the sum of a metric over its label sets, and whether any node exports it.
func (c *cluster) gauge(t testing.TB, name string) (sum float64, found bool) {
	t.Helper()
	for _, n := range c.nodes {
		if n.http == "" || n.cmd == nil { // stopped nodes have no figures
			continue
		}
		for s := bufio.NewScanner(strings.NewReader(scrape(t, n.http))); s.Scan(); {
			rest, ok := strings.CutPrefix(s.Text(), name)
			if !ok || (rest[0] != '{' && rest[0] != ' ') {
				continue
			}
			v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
			must(t, err)
			sum, found = sum+v, true
		}
	}
	return sum, found
}

func scrape(t testing.TB, addr string) string {
	t.Helper()
	web := http.Client{Timeout: 10 * time.Second}
	resp, err := web.Get("http://" + addr + "/metrics")
	must(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	must(t, err)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("/metrics of %s: %s", addr, resp.Status)
	}
	return string(text)
}

// TestEveryFigureIsExported: a figure that cannot be exported is left out and logged.
func TestEveryFigureIsExported(t *testing.T) {
	judged(t, func(t *testing.T, c *cluster) {
		c.real(t)
		must(t, os.WriteFile(filepath.Join(c.folder(t), "f"), []byte("text"), 0o644))
		for _, n := range c.nodes {
			if n.http == "" {
				continue
			}
			scrape(t, n.http)
			text, err := os.ReadFile(n.log)
			must(t, err)
			for line := range strings.Lines(string(text)) {
				if strings.Contains(line, "metrics: scrape") {
					t.Errorf("%s: %.1000s", n.name, line)
				}
			}
		}
	})
}

// TestWritesAskForNoCapability (case 38): the kernel asks for security.capability before every write; no server sees it.
func TestWritesAskForNoCapability(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		c.real(t)
		path := filepath.Join(c.folder(t), "f")
		for block, count := range map[int]int{4096: size(500, 1000), 1 << 20: size(16, 100)} {
			f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
			must(t, err)
			buf := make([]byte, block)
			before := c.requests(t, "getxattr")
			for range count {
				_, err := f.Write(buf)
				must(t, err)
			}
			must(t, f.Close())
			if n := c.requests(t, "getxattr") - before; n > 5 {
				t.Errorf("%d getxattr requests for writes of %d bytes", n, block)
			}
		}
	})
}

// inodeTableMetric is the number of files of which the client's process keeps a record.
const inodeTableMetric = "strake_llite_inodes"

// TestListingsLeaveNoInodesBehind (case 35): "." and ".." of a listing with attributes take no lookup count.
func TestListingsLeaveNoInodesBehind(t *testing.T) {
	small(t, func(t *testing.T, c *cluster) {
		c.real(t)
		dir := c.folder(t)
		if _, found := c.gauge(t, inodeTableMetric); !found {
			t.Skip("the client exports no " + inodeTableMetric)
		}
		drop := func() { must(t, os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0)) }
		drop()
		before, _ := c.gauge(t, inodeTableMetric)
		for range size(20, 100) {
			shell(t, dir, `mkdir -p a/b/c; touch a/1 a/2 a/b/3 a/b/c/4; ls -laR . > /dev/null; find . > /dev/null; rm -rf a`)
		}
		must(t, poll(20*time.Second, func() error {
			drop()
			if after, _ := c.gauge(t, inodeTableMetric); after > before+10 {
				return retry("%v inodes after the cycles, %v before", after, before)
			}
			return nil
		}))
	})
}
