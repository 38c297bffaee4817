package limits

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// ParseUUID reads the UUID of a GPU or MIG device as NVML writes it,
// GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx. It returns only the sixteen bytes, because CUDA reports
// nothing else about a device.
func ParseUUID(text string) (id [16]byte, err error) {
	digits, found := strings.CutPrefix(text, "GPU-")
	if !found {
		digits, found = strings.CutPrefix(text, "MIG-")
	}
	if !found || len(digits) != 36 || digits[8] != '-' || digits[13] != '-' ||
		digits[18] != '-' || digits[23] != '-' {
		return id, fmt.Errorf("cannot read UUID %q: want GPU- or MIG- and 8-4-4-4-12 hexadecimal digits",
			text)
	}
	if _, err := hex.Decode(id[:], []byte(strings.ReplaceAll(digits, "-", ""))); err != nil {
		return id, fmt.Errorf("cannot read UUID %q: %w", text, err)
	}
	return id, nil
}
