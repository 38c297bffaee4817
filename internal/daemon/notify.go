package daemon

import (
	"net"
	"os"
)

// notify tells systemd how far we are (sd_notify(3)); without systemd nobody listens.
func notify(state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	conn, err := net.Dial("unixgram", path) // a leading @ is an abstract name to Go as it is to systemd
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = conn.Write([]byte(state))
}
