package cli

import (
	"log/slog"
	"net"
	"strings"
)

// notifyReady tells whoever started the process that it is up: systemd (sd_notify(3), Type=notify) and the mount helper
// listen on the socket that NOTIFY_SOCKET names.
func notifyReady(environ []string, log *slog.Logger) {
	name := getEnv(environ, notifyEnv)
	if name == "" {
		return
	}
	if strings.HasPrefix(name, "@") {
		name = "\x00" + name[1:]
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err == nil {
		_, err = conn.Write([]byte(readyMessage))
		conn.Close()
	}
	if err != nil {
		log.Warn("cannot tell the starter that the node is up", "socket", getEnv(environ, notifyEnv), "error", err)
	}
}

// The words of sd_notify(3).
const (
	notifyEnv    = "NOTIFY_SOCKET"
	readyMessage = "READY=1"
)
