package dash

import (
	"errors"
	"io/fs"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/strakefs/strake/fs/stats"
)

// maxStatsEntries is how many paths one answer of /api/v1/stats holds; past it a browser's
// table is of no use. The answer says so in "more".
const maxStatsEntries = 5000

// writeTimeout is how long one write of the live feed may take before the page is dropped.
const writeTimeout = 5 * time.Second

func (s *Server) routes() *echo.Echo {
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.HTTPErrorHandler = s.refuse
	e.Pre(guard(s.loopback))
	e.GET("/", s.page)
	e.GET("/assets/*", s.asset)
	e.GET("/api/v1/overview", s.getOverview)
	e.GET("/api/v1/host", s.getHost)
	e.GET("/api/v1/locks", s.getLocks)
	e.GET("/api/v1/hashtables", s.getTables)
	e.GET("/api/v1/recovery", s.getRecovery)
	e.GET("/api/v1/stats", s.getStats)
	e.GET("/api/v1/events", s.getEvents)
	e.GET("/healthz", func(c echo.Context) error { return c.String(http.StatusOK, "ok\n") })
	if s.opts.Metrics != nil {
		e.GET("/metrics", echo.WrapHandler(s.opts.Metrics))
	}
	return e
}

// refuse answers with an error's status and words as JSON.
func (s *Server) refuse(err error, c echo.Context) {
	status, text := http.StatusInternalServerError, "internal error; the log has it"
	var he *echo.HTTPError
	if errors.As(err, &he) {
		status = he.Code
		if m, ok := he.Message.(string); ok {
			text = m
		}
	} else {
		s.opts.Log.Error("dashboard request failed", "path", c.Request().URL.Path, "err", err)
	}
	if !c.Response().Committed {
		// The connection may be gone; there is nobody left to tell.
		_ = c.JSON(status, map[string]string{"error": text})
	}
}

// page serves index.html, or the placeholder of a binary built without the bundle.
func (s *Server) page(c echo.Context) error {
	body, err := fs.ReadFile(s.opts.Assets, "index.html")
	if errors.Is(err, fs.ErrNotExist) {
		body, err = fs.ReadFile(s.opts.Assets, "placeholder.html")
	}
	if err != nil {
		return err
	}
	c.Response().Header().Set("Cache-Control", "no-cache")
	return c.HTMLBlob(http.StatusOK, body)
}

// contentTypes are the kinds of file in the bundle; others are not served.
var contentTypes = map[string]string{
	"txt": "text/plain; charset=utf-8",
	"js":  "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8",
	"svg": "image/svg+xml", "woff2": "font/woff2", "png": "image/png",
}

// asset serves a file of the bundle. A name holds a hash of its content, so it never
// changes; but for the text of the licences.
func (s *Server) asset(c echo.Context) error {
	name := "assets/" + c.Param("*")
	kind := contentTypes[name[strings.LastIndexByte(name, '.')+1:]]
	if kind == "" || !fs.ValidPath(name) {
		return echo.ErrNotFound
	}
	body, err := fs.ReadFile(s.opts.Assets, name)
	if errors.Is(err, fs.ErrNotExist) {
		return echo.ErrNotFound
	}
	if err != nil {
		return err
	}
	if !strings.HasSuffix(name, ".txt") {
		c.Response().Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	return c.Blob(http.StatusOK, kind, body)
}

func (s *Server) getOverview(c echo.Context) error {
	s.feed.poller.refresh(c.Request().Context())
	return fresh(c, s.feed.overview(time.Now()))
}

func (s *Server) getHost(c echo.Context) error {
	return fresh(c, struct {
		hostView
		History past `json:"history"`
	}{readHost(s.opts.Registry, time.Now()), s.feed.past()})
}

func (s *Server) getLocks(c echo.Context) error { return fresh(c, s.feed.locks(time.Now())) }

func (s *Server) getTables(c echo.Context) error {
	return fresh(c, readTables(s.opts.Registry, time.Now()))
}

func (s *Server) getRecovery(c echo.Context) error {
	return fresh(c, s.feed.recoveries.view(s.opts.Registry, time.Now()))
}

// fresh sends JSON that must not be cached.
func fresh(c echo.Context, v any) error {
	c.Response().Header().Set("Cache-Control", "no-store")
	return c.JSON(http.StatusOK, v)
}

// statView is one path in the JSON of /api/v1/stats.
type statView struct {
	Path      string            `json:"path"`
	Kind      string            `json:"kind"`
	Help      string            `json:"help,omitempty"`
	Metric    string            `json:"metric,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Value     *int64            `json:"value,omitempty"`
	Text      *string           `json:"text,omitempty"`
	Histogram *histogramView    `json:"histogram,omitempty"`
}

// histogramView is a distribution; buckets are [inclusive end in ns, count], empty ones
// left out. Ends are strings: the last ones are above what a JavaScript number holds.
type histogramView struct {
	Count   uint64      `json:"count"`
	SumNs   int64       `json:"sumNs"`
	MinNs   int64       `json:"minNs"`
	MaxNs   int64       `json:"maxNs"`
	P50Ns   int64       `json:"p50Ns"`
	P99Ns   int64       `json:"p99Ns"`
	Buckets [][2]string `json:"buckets"`
}

var errEnough = errors.New("enough")

func (s *Server) getStats(c echo.Context) error {
	answer := struct {
		AtMs    int64      `json:"atMs"`
		Pattern string     `json:"pattern"`
		More    bool       `json:"more"` // there are paths past the limit
		Entries []statView `json:"entries"`
	}{AtMs: time.Now().UnixMilli(), Pattern: c.QueryParam("pattern"), Entries: []statView{}}
	err := s.opts.Registry.Walk(answer.Pattern, func(e stats.Entry) error {
		if len(answer.Entries) == maxStatsEntries {
			answer.More = true
			return errEnough
		}
		answer.Entries = append(answer.Entries, statOf(&e))
		return nil
	})
	if errors.Is(err, stats.ErrPattern) {
		return echo.NewHTTPError(http.StatusBadRequest, err.Error())
	}
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	return fresh(c, answer)
}

func statOf(e *stats.Entry) statView {
	v := statView{Path: e.Path, Kind: e.Kind.String(), Help: e.Help, Metric: e.Metric}
	if len(e.Labels) > 0 {
		v.Labels = make(map[string]string, len(e.Labels))
		for _, l := range e.Labels {
			v.Labels[l.Name] = l.Value
		}
	}
	if n, ok := e.Value(); ok {
		v.Value = &n
	} else if h, ok := e.Histogram(); ok {
		v.Histogram = histogramOf(&h)
	} else {
		text := e.Text()
		v.Text = &text
	}
	return v
}

func histogramOf(h *stats.HistogramSnapshot) *histogramView {
	v := &histogramView{Count: h.Count, SumNs: h.SumNs, MinNs: h.MinNs, MaxNs: h.MaxNs,
		P50Ns: int64(h.Quantile(0.5)), P99Ns: int64(h.Quantile(0.99)), Buckets: [][2]string{}}
	for i, n := range h.Buckets {
		if n > 0 {
			v.Buckets = append(v.Buckets, [2]string{strconv.FormatUint(stats.BucketEndNs(i), 10), strconv.FormatUint(n, 10)})
		}
	}
	return v
}
