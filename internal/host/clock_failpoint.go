//go:build failpoint

package host

import (
	"os"
	"strings"
	"time"
)

// ClockVariable names a file with what is added to the machine's clock, as "-36h". Only a build for
// crash tests reads it: with it a clock can jump for gpuledger's programs, and not for the machine.
const ClockVariable = "GPULEDGER_CLOCK"

// clock has no monotonic part, as a time that was read from a file.
func clock() time.Time {
	text, _ := os.ReadFile(os.Getenv(ClockVariable))
	jump, _ := time.ParseDuration(strings.TrimSpace(string(text)))
	return time.Now().Round(0).Add(jump)
}
