//go:build failpoint

package host

import (
	"os"
	"testing"
	"time"
)

func TestClockJumpsWithItsFile(t *testing.T) {
	file := t.TempDir() + "/clock"
	t.Setenv(ClockVariable, file)
	for _, jump := range []string{"", "0s", "-36h\n", "1h"} {
		if err := os.WriteFile(file, []byte(jump), 0o600); err != nil {
			t.Fatal(err)
		}
		want := map[string]time.Duration{"-36h\n": -36 * time.Hour, "1h": time.Hour}[jump]
		if got := time.Until(Default().Now()); (got - want).Abs() > time.Minute {
			t.Errorf("%q: the clock is %v ahead", jump, got)
		}
	}
}
