package config

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// The ports of the protocol and the dashboard.
const (
	DefaultPort     = 9880
	DefaultHTTPPort = 9881
)

// maxHostBytes is the longest name that DNS can hold (RFC 1035, 2.3.4).
const maxHostBytes = 253

// ParseAddress checks the HOST[:PORT] of a server, whose default port is DefaultPort.
func ParseAddress(text string) (string, error) { return parseAddress(text, DefaultPort) }

// parseAddress checks HOST:PORT and returns it in the form net.Listen and net.Dial take. A missing port becomes
// defaultPort. IPv6 literals stand in brackets when a port follows, and may stand without when none does.
func parseAddress(text string, defaultPort int) (string, error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"), strconv.Itoa(defaultPort)
		if _, ip := netip.ParseAddr(host); ip != nil && strings.ContainsAny(host, ":[]") {
			return "", invalidf("%q is no address; write HOST:PORT, or [IPV6]:PORT", text)
		}
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return "", invalidf("%q has no port between 0 and 65535; write HOST:PORT", text)
	}
	if !validHost(host) {
		return "", invalidf("%q has no host name or IP address; write HOST:PORT", text)
	}
	return net.JoinHostPort(host, strconv.FormatUint(n, 10)), nil
}

// validHost accepts an empty host, an IP address and a DNS name. Underscores are accepted since container
// networks give such names.
func validHost(host string) bool {
	if host == "" {
		return true
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	if len(host) > maxHostBytes {
		return false
	}
	for _, c := range host {
		ok := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.' || c == '_'
		if !ok {
			return false
		}
	}
	return true
}

// IsLoopback reports whether a HOST:PORT stays on this host. A name other than localhost does not count, whatever
// it resolves to: the answer must not depend on a name server.
func IsLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
