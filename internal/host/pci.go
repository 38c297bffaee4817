package host

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// DriverLink returns a number that identifies the binding of a PCI device to its driver: the inode
// number of its link to the driver. The kernel makes that link anew at each binding, and the inode
// numbers of sysfs go round (idr_alloc_cyclic in Linux' fs/kernfs/dir.c, since 4.14). It is 0 if
// the device has no driver or sysfs cannot be read.
func DriverLink(h Host, pci string) uint64 {
	var st unix.Stat_t
	if pci == "" || unix.Lstat(filepath.Join(h.Sys, "bus/pci/devices", pci, "driver"), &st) != nil {
		return 0
	}
	return st.Ino
}

// DRMNodes returns the /dev/dri nodes of a PCI device, sorted. It has none while the module of its
// driver that makes them is not loaded: nvidia-drm for NVIDIA's.
func DRMNodes(h Host, pci string) []string {
	names, _ := Names(filepath.Join(h.Sys, "bus/pci/devices", pci, "drm"))
	nodes := []string{}
	for _, name := range names {
		digits, found := strings.CutPrefix(name, "renderD")
		if !found {
			digits, found = strings.CutPrefix(name, "card")
		}
		if _, err := strconv.ParseUint(digits, 10, 20); found && err == nil {
			nodes = append(nodes, "/dev/dri/"+name)
		}
	}
	slices.Sort(nodes)
	return nodes
}
