package host

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestSlack: the value holds for all threads and for programs that they start.
func TestSlack(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("misses root, to read the value of other threads")
	}
	defer SetTimerSlack(DefaultTimerSlack)
	late := func() (late []string) {
		threads, err := filepath.Glob("/proc/self/task/*")
		if err != nil || len(threads) < 2 {
			t.Fatalf("%d threads (%v)", len(threads), err)
		}
		for _, thread := range threads {
			if text, err := os.ReadFile(filepath.Join("/proc", filepath.Base(thread),
				"timerslack_ns")); err == nil && string(text) != "3000000\n" {
				late = append(late, filepath.Base(thread)+": "+strings.TrimSpace(string(text)))
			}
		}
		return late
	}
	others := late()
	// A thread that does not have the value yet may start another meanwhile.
	for tries := 0; tries < 100 && len(others) > 0; tries++ {
		SetTimerSlack(3 * time.Millisecond)
		others = late()
	}
	if len(others) > 0 {
		t.Errorf("threads are woken so many ns late: %v", others)
	}
	out, err := exec.Command("cat", "/proc/self/timerslack_ns").Output()
	if err != nil || string(out) != fmt.Sprintln(int64(3*time.Millisecond)) {
		t.Errorf("a program that it starts is woken %s ns late (%v)", strings.TrimSpace(string(out)), err)
	}
}
