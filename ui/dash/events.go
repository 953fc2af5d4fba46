package dash

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"
)

// getEvents is the live feed: one "past" event, one tick at once, then a tick each second,
// until the page leaves, is too slow, or the server closes.
func (s *Server) getEvents(c echo.Context) error {
	ctx := c.Request().Context()
	about := topic(c.QueryParam("about"))
	switch about {
	case topicNone, topicLocks, topicTables, topicRecovery:
	default:
		return echo.NewHTTPError(http.StatusBadRequest, "about is locks, hashtables or recovery")
	}
	sub, err := s.feed.subscribe(about)
	if err != nil {
		c.Response().Header().Set("Retry-After", "10")
		return echo.NewHTTPError(http.StatusServiceUnavailable, err.Error())
	}
	defer s.feed.unsubscribe(sub)
	w := c.Response()
	// The server's read timeout is for requests; past it this stream would be cut.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	past, err := json.Marshal(s.feed.past())
	if err != nil {
		return fmt.Errorf("dash: past points: %w", err)
	}
	s.feed.poller.refresh(ctx)
	now := time.Now()
	first, err := s.firstTick(about, now)
	if err != nil {
		return err
	}
	if writeEvent(w, "past", past) != nil || writeEvent(w, "tick", first) != nil {
		return nil // the page left
	}
	s.stream(ctx, w, sub)
	return nil
}

// firstTick is a tick without a point: the last one is among the past ones.
func (s *Server) firstTick(t topic, now time.Time) ([]byte, error) {
	b, err := json.Marshal(struct {
		Overview overview `json:"overview"`
		Host     hostView `json:"host"`
		about
	}{s.feed.overview(now), readHost(s.opts.Registry, now), s.feed.about(t, now)})
	if err != nil {
		return nil, fmt.Errorf("dash: first tick: %w", err)
	}
	return b, nil
}

// stream forwards ticks until the page leaves, was dropped, or the server closes.
func (s *Server) stream(ctx context.Context, w *echo.Response, sub *subscriber) {
	for {
		select {
		case <-ctx.Done():
			return
		case message, ok := <-sub.ticks:
			if !ok || writeEvent(w, "tick", message) != nil {
				return
			}
		}
	}
}

// writeEvent writes one event and flushes it. data is JSON of one line.
func writeEvent(w *echo.Response, event string, data []byte) error {
	control := http.NewResponseController(w)
	// A writer without deadlines (a test's recorder) is never slow.
	_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event, data); err != nil {
		return err
	}
	return control.Flush()
}
