package host

import (
	"path/filepath"
	"strconv"
	"strings"
)

// DriverNodeMode returns the mode that the driver's libraries give its device nodes whenever a
// program of root uses a GPU (NVreg_DeviceFileMode; seen with driver 580). False: they leave the
// nodes as they are, or no driver is loaded.
func (h Host) DriverNodeMode() (mode uint32, sets bool) {
	text, err := ReadFile(filepath.Join(h.Proc, "driver/nvidia/params"), maxProc)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		number, err := strconv.ParseUint(value, 10, 32)
		switch {
		case err != nil:
		case name == "DeviceFileMode":
			mode = uint32(number)
		case name == "ModifyDeviceFiles":
			sets = number != 0
		}
	}
	return mode, sets && mode != 0
}
