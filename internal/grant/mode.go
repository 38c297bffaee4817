package grant

import "fmt"

// Mode is how a GPU is shared. A GPU is in one mode at a time, decided by its first grant and given
// up with its last.
type Mode string

// The modes, from nobody beside you to a slice of hardware.
const (
	Exclusive Mode = "exclusive" // whole GPUs
	Timeslice Mode = "timeslice" // shares that nothing limits; the ledger counts them
	Limit     Mode = "limit"     // shares with a memory limit
	MPS       Mode = "mps"       // shares through NVIDIA's Multi-Process Service
	MIG       Mode = "mig"       // a hardware partition
)

// Modes lists every mode, in the order in which help and errors name them.
var Modes = []Mode{Exclusive, Timeslice, Limit, MPS, MIG}

// ParseMode reads a mode by its name.
func ParseMode(text string) (Mode, error) {
	var m Mode
	if err := m.UnmarshalText([]byte(text)); err != nil {
		return "", fmt.Errorf("cannot read mode: %w", err)
	}
	return m, nil
}

// Strength says what holds a container to its grant. A weaker one is never called isolation.
type Strength string

// The strengths, weakest first.
const (
	StrengthNone     Strength = "none"     // the ledger counts it, nothing enforces it
	StrengthLibrary  Strength = "library"  // the shim, watched from outside
	StrengthServer   Strength = "server"   // MPS
	StrengthDriver   Strength = "driver"   // the driver's cgroup limit, R615 and later
	StrengthHardware Strength = "hardware" // MIG
)

// Strengths lists every strength, weakest first.
var Strengths = []Strength{StrengthNone, StrengthLibrary, StrengthServer, StrengthDriver, StrengthHardware}

// AtLeast reports whether s is as strong as want. An unknown strength is weaker than all.
func (s Strength) AtLeast(want Strength) bool { return s.rank() >= want.rank() }

func (s Strength) rank() int {
	for i, known := range Strengths {
		if s == known {
			return i
		}
	}
	return -1
}
