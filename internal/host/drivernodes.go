package host

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// NodePermissions are those of a device node.
type NodePermissions struct {
	Mode uint32 // permission bits
	GID  uint32
}

// OpenToUsers reports whether users other than root can open the node: all of them, or a group.
func (p NodePermissions) OpenToUsers() bool {
	return p.Mode&0o006 != 0 || p.GID != 0 && p.Mode&0o060 != 0
}

func (p NodePermissions) String() string {
	if p.GID == 0 {
		return fmt.Sprintf("mode %04o", p.Mode)
	}
	return fmt.Sprintf("mode %04o and group %d", p.Mode, p.GID)
}

// DriverNodePermissions are those that the driver's libraries give its device nodes whenever a
// program of root uses a GPU (NVreg_DeviceFileMode, NVreg_DeviceFileGID; seen with driver 580).
// False: they leave the nodes as they are, or no driver is loaded.
func (h Host) DriverNodePermissions() (p NodePermissions, sets bool) {
	text, err := ReadFile(filepath.Join(h.Proc, "driver/nvidia/params"), maxProc)
	if err != nil {
		return p, false
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		number, err := strconv.ParseUint(value, 10, 32)
		switch {
		case err != nil:
		case name == "DeviceFileMode":
			p.Mode = uint32(number)
		case name == "DeviceFileGID":
			p.GID = uint32(number)
		case name == "ModifyDeviceFiles":
			sets = number != 0
		}
	}
	return p, sets && p.Mode != 0
}
