package grant

import "fmt"

// Mode is how a GPU is shared. A GPU is in one mode at a time: its first grant sets the mode, and
// the end of its last grant clears it.
type Mode string

// The modes.
const (
	Exclusive Mode = "exclusive" // whole GPUs
	Timeslice Mode = "timeslice" // shares without a limit; the ledger counts them
	Limit     Mode = "limit"     // shares with a memory limit
	MPS       Mode = "mps"       // shares through NVIDIA's Multi-Process Service
	MIG       Mode = "mig"       // a hardware partition
)

// Modes lists every mode, in the order in which help and errors name them.
var Modes = []Mode{Exclusive, Timeslice, Limit, MPS, MIG}

// IsWhole reports whether a grant in the mode has all of each of its GPUs or MIG devices, so that
// it states no amount of memory.
func (m Mode) IsWhole() bool { return m == Exclusive || m == MIG }

// ParseMode parses the name of a mode.
func ParseMode(text string) (Mode, error) {
	var m Mode
	if err := m.UnmarshalText([]byte(text)); err != nil {
		return "", fmt.Errorf("cannot read mode: %w", err)
	}
	return m, nil
}

// Strength says what holds a container to its grant. A weaker one than hardware is never called
// isolation.
type Strength string

// The strengths, weakest first.
const (
	StrengthNone     Strength = "none"     // the ledger counts the share, nothing enforces it
	StrengthLibrary  Strength = "library"  // the shim, measured by the watch
	StrengthServer   Strength = "server"   // MPS
	StrengthDriver   Strength = "driver"   // the driver's cgroup limit, R615 and later
	StrengthHardware Strength = "hardware" // MIG
)

// Strengths lists every strength, weakest first.
var Strengths = []Strength{StrengthNone, StrengthLibrary, StrengthServer, StrengthDriver, StrengthHardware}

// AtLeast reports whether s is at least as strong as want. An unknown strength is weaker than every
// other.
func (s Strength) AtLeast(want Strength) bool { return s.rank() >= want.rank() }

func (s Strength) rank() int {
	for i, known := range Strengths {
		if s == known {
			return i
		}
	}
	return -1
}
