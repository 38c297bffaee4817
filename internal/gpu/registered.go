package gpu

import (
	"path/filepath"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// Registered returns the PCI addresses of the GPUs that the driver has registered, also of those
// that it has excluded from use. Without a driver there are none.
func Registered(h host.Host) []string {
	names, _ := host.Names(filepath.Join(h.Proc, "driver/nvidia/gpus"))
	return names
}

// CameLater returns the PCI address of a GPU that a scan has missed because the driver registered
// it after the scan began, or "". before is what Registered returned when the scan began.
func CameLater(inv grant.Inventory, before []string, h host.Host) string {
	for _, pci := range Registered(h) {
		found := slices.ContainsFunc(inv.GPUs, func(g grant.GPU) bool { return g.PCI == pci })
		if !found && !slices.Contains(before, pci) {
			return pci
		}
	}
	return ""
}
