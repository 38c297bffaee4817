package daemon

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// TestWatchdog: systemd gets signs of life while the loop makes passes.
func TestWatchdog(t *testing.T) {
	for _, c := range []struct {
		usec, pid string
		want      time.Duration
	}{{"", "", 0}, {"3000000", "", 3 * time.Second}, {"3000000", fmt.Sprint(os.Getpid()), 3 * time.Second},
		{"3000000", "1", 0}, {"x", "", 0}, {"-1", "", 0}} {
		t.Setenv("WATCHDOG_USEC", c.usec)
		t.Setenv("WATCHDOG_PID", c.pid)
		if got := watchdogTime(); got != c.want {
			t.Errorf("WATCHDOG_USEC=%q WATCHDOG_PID=%q: %s, want %s", c.usec, c.pid, got, c.want)
		}
	}
	var l Loop
	if !l.Alive("configuration", 0) {
		t.Error("before it runs it hangs")
	}
	l.started = time.Now().Add(-time.Hour)
	if l.Alive("configuration", time.Minute) {
		t.Error("a manager that has not passed for an hour turns")
	}
	l.record("configuration", time.Now(), 0, nil)
	if !l.Alive("configuration", time.Minute) {
		t.Error("a manager that has just passed hangs")
	}
}
