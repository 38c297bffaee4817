package daemon

import (
	"context"
	"net"
	"os"
	"strconv"
	"time"
)

// notify reports this program's state to systemd (sd_notify(3)), if it runs under systemd.
func notify(state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	conn, err := net.Dial("unixgram", path) // Go and systemd both write abstract names with a leading @
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = conn.Write([]byte(state))
}

// watchdogTime is the time within which systemd wants a sign of life (WatchdogSec=,
// sd_watchdog_enabled(3)); 0: it wants none.
func watchdogTime() time.Duration {
	micros, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if pid := os.Getenv("WATCHDOG_PID"); err != nil || micros <= 0 || pid != "" &&
		pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	return time.Duration(micros) * time.Microsecond
}

// pingWatchdog sends systemd signs of life while alive reports true. If the daemon hangs, systemd
// restarts it.
func pingWatchdog(ctx context.Context, within time.Duration, alive func() bool) {
	if within <= 0 {
		return
	}
	beat := time.NewTicker(within / 3)
	defer beat.Stop()
	for {
		if alive() {
			notify("WATCHDOG=1")
		}
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
		}
	}
}
