package daemon

import (
	"context"
	"net"
	"os"
	"strconv"
	"time"
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

// watchdog is the time within which systemd wants to hear of us (WatchdogSec=, sd_watchdog_enabled(3)); 0: it does not.
func watchdogTime() time.Duration {
	micros, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if pid := os.Getenv("WATCHDOG_PID"); err != nil || micros <= 0 || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	return time.Duration(micros) * time.Microsecond
}

// guard tells systemd that we live, as long as we do: whoever hangs says nothing more and is started anew.
func pingWatchdog(ctx context.Context, within time.Duration, lives func() bool) {
	if within <= 0 {
		return
	}
	beat := time.NewTicker(within / 3)
	defer beat.Stop()
	for {
		if lives() {
			notify("WATCHDOG=1")
		}
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
		}
	}
}
