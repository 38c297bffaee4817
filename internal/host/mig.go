package host

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// MIGMinors reads the minors of the two nodes below /dev/nvidia-caps that open a MIG device: those
// of its GPU instance and of its compute instance. gpu is the driver's minor of the card. The
// numbers change when instances are recreated, so they are read when needed. The error is
// fs.ErrNotExist if the driver has no such instance.
func (h Host) MIGMinors(gpu, gi, ci int) (minors [2]int, err error) {
	instance := filepath.Join(h.Proc, "driver/nvidia/capabilities", fmt.Sprintf("gpu%d/mig/gi%d", gpu, gi))
	for i, file := range []string{"access", fmt.Sprintf("ci%d/access", ci)} {
		if minors[i], err = capMinor(filepath.Join(instance, file)); err != nil {
			return [2]int{}, fmt.Errorf("cannot tell the device of MIG instance %d/%d of card %d: %w", gi, ci,
				gpu, err)
		}
	}
	return minors, nil
}

// capMinor reads the line "DeviceFileMinor: N" of a capability.
func capMinor(path string) (int, error) {
	text, err := ReadFile(path, maxProc)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, "DeviceFileMinor:"); found {
			return strconv.Atoi(strings.TrimSpace(value))
		}
	}
	return 0, errors.New(path + " names no minor")
}
