package host

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// NodePermissions are those of a device node.
type NodePermissions struct {
	Mode     uint32 // permission bits
	UID, GID uint32
}

// OpenToAll reports whether every user can open the node.
func (p NodePermissions) OpenToAll() bool { return p.Mode&0o006 != 0 }

// OpenToUsers reports whether users other than root can open the node: all of them, a group, or its
// owner. Root's group does not count: its bits are the mask of a node with an access list.
func (p NodePermissions) OpenToUsers() bool {
	return p.OpenToAll() || p.GID != 0 && p.Mode&0o060 != 0 || p.UID != 0 && p.Mode&0o600 != 0
}

func (p NodePermissions) String() string {
	text := fmt.Sprintf("mode %04o", p.Mode)
	if p.UID != 0 {
		text += fmt.Sprintf(" and owner %d", p.UID)
	}
	if p.GID != 0 {
		text += fmt.Sprintf(" and group %d", p.GID)
	}
	return text
}

// DriverNodePermissions are those that the driver's libraries give its device nodes whenever a
// program of root uses a GPU (NVreg_DeviceFileMode, NVreg_DeviceFileUID, NVreg_DeviceFileGID; seen
// with driver 580). False: they leave the nodes as they are, or no driver is loaded.
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
		case name == "DeviceFileUID":
			p.UID = uint32(number)
		case name == "DeviceFileGID":
			p.GID = uint32(number)
		case name == "ModifyDeviceFiles":
			sets = number != 0
		}
	}
	return p, sets && p.Mode != 0
}
