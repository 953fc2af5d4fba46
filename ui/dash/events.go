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
	sub, err := s.feed.subscribe()
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
	first, err := json.Marshal(struct {
		Overview overview `json:"overview"`
		Host     hostView `json:"host"`
	}{s.feed.overview(now), readHost(s.opts.Registry, now)})
	if err != nil {
		return fmt.Errorf("dash: first tick: %w", err)
	}
	if writeEvent(w, "past", past) != nil || writeEvent(w, "tick", first) != nil {
		return nil // the page left
	}
	s.stream(ctx, w, sub)
	return nil
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
