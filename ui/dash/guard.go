package dash

import (
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/labstack/echo/v4"
)

// contentSecurityPolicy lets the page load from and talk to its own origin only.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; " +
	"font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// guard refuses what no page of ours sends and sets the headers that bind a browser.
func guard(loopback bool) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			h := c.Response().Header()
			h.Set("Content-Security-Policy", contentSecurityPolicy)
			h.Set("X-Content-Type-Options", "nosniff")
			h.Set("X-Frame-Options", "DENY")
			h.Set("Referrer-Policy", "no-referrer")
			h.Set("Cross-Origin-Resource-Policy", "same-origin")
			h.Set("Cross-Origin-Opener-Policy", "same-origin")
			r := c.Request()
			if r.Method != http.MethodGet {
				h.Set("Allow", http.MethodGet)
				return echo.NewHTTPError(http.StatusMethodNotAllowed, "only GET is served")
			}
			if loopback && !isLoopbackHost(r.Host) {
				return echo.NewHTTPError(http.StatusMisdirectedRequest,
					"this address answers to localhost, 127.0.0.1 and [::1] only; the dashboard listens on loopback")
			}
			return next(c)
		}
	}
}

// isLoopbackHost reports whether a Host header names this machine's loopback.
func isLoopbackHost(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && addr.Unmap().IsLoopback()
}
