package schedule

import (
	"testing"
	"time"
)

// TestNext: work is due again after its period, or after a hundred times what it cost,
// but after ten periods or twice what it cost in any case.
func TestNext(t *testing.T) {
	began := time.Now()
	for _, c := range []struct{ every, cost, want time.Duration }{
		{5 * time.Second, 0, 5 * time.Second},
		{5 * time.Second, 50 * time.Millisecond, 5 * time.Second},
		{5 * time.Second, 200 * time.Millisecond, 20 * time.Second},
		{5 * time.Second, 10 * time.Second, 50 * time.Second},
		{5 * time.Second, 80 * time.Second, 160 * time.Second},
	} {
		if got := Next(began, c.every, c.cost).Sub(began); got != c.want {
			t.Errorf("every %s at a cost of %s: after %s, want %s", c.every, c.cost, got, c.want)
		}
	}
}

// TestCPUTime grows with work.
func TestCPUTime(t *testing.T) {
	before := CPUTime()
	for end := time.Now().Add(time.Minute); CPUTime() == before && time.Now().Before(end); {
	}
	if CPUTime() <= before {
		t.Errorf("after work it is %s, as before", before)
	}
}
