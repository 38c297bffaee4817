package host

import (
	"encoding/binary"
	"testing"
)

// TestTheCallOfSystemd: the header states how long its fields are, and is padded to a multiple of
// eight.
func TestTheCallOfSystemd(t *testing.T) {
	const before = 8 // type, version and the body's length, which are written for each call
	fields := int(binary.LittleEndian.Uint32([]byte(resetFailed[4:])))
	if all := before + len(resetFailed); all%8 != 0 || (before+8+fields+7)/8*8 != all {
		t.Errorf("the header has %d bytes, and its fields %d", all, fields)
	}
}
