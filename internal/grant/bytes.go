package grant

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is an amount of device memory in bytes. JSON has it as a plain number; text for people has
// a unit.
type Bytes uint64

// The units of a size. They are powers of two, as in memory allocators.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
	TiB Bytes = 1 << 40
)

var units = []struct {
	name  string
	bytes Bytes
}{{"KiB", KiB}, {"MiB", MiB}, {"GiB", GiB}, {"TiB", TiB}, {"Ki", KiB}, {"Mi", MiB}, {"Gi", GiB}, {"Ti", TiB}}

// ParseBytes reads a size with its unit: a whole number followed by KiB, MiB, GiB or TiB (or
// Kubernetes' Ki, Mi, Gi, Ti). A bare number is an error: 4096 could mean bytes or MiB, and a wrong
// guess is a wrong limit.
func ParseBytes(text string) (Bytes, error) {
	digits := strings.TrimRight(text, "KMGTiB")
	unit := text[len(digits):]
	for _, u := range units {
		if unit != u.name {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 64)
		tooLarge := errors.Is(err, strconv.ErrRange)
		if err != nil && !tooLarge {
			break
		}
		if tooLarge || n > math.MaxUint64/uint64(u.bytes) {
			return 0, fmt.Errorf("cannot read size %q: it is too large", text)
		}
		return Bytes(n) * u.bytes, nil
	}
	return 0, fmt.Errorf(
		"cannot read size %q: want a whole number and a unit of 1024: KiB, MiB, GiB or TiB, as 4GiB", text)
}

// String returns the size in the largest unit that leaves a whole number: 4GiB, 16160MiB, 0MiB,
// 17B.
func (b Bytes) String() string {
	switch {
	case b == 0:
		return "0MiB"
	case b%TiB == 0:
		return strconv.FormatUint(uint64(b/TiB), 10) + "TiB"
	case b%GiB == 0:
		return strconv.FormatUint(uint64(b/GiB), 10) + "GiB"
	case b%MiB == 0:
		return strconv.FormatUint(uint64(b/MiB), 10) + "MiB"
	case b%KiB == 0:
		return strconv.FormatUint(uint64(b/KiB), 10) + "KiB"
	}
	return strconv.FormatUint(uint64(b), 10) + "B"
}

// Size is a Bytes that a configuration file writes with a unit.
type Size Bytes

// UnmarshalText reads what ParseBytes accepts.
func (s *Size) UnmarshalText(text []byte) error {
	b, err := ParseBytes(string(text))
	*s = Size(b)
	return err
}
