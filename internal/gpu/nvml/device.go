//go:build cgo

package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// nvmlDevice is one GPU as NVML and the kernel tell of it.
type nvmlDevice struct {
	lib nvml.Interface
	nvml.Device
	host host.Host
}

// gpu reads all of the GPU. What makes it useless goes into its health; what leaves it unknown is
// an error.
func (d nvmlDevice) gpu(index int) (grant.GPU, error) {
	g := grant.GPU{Index: index, NUMA: -1, Render: []string{},
		MIG: []grant.MIGDevice{}, Health: grant.Healthy}
	uuid, ret := d.GetUUID()
	if ret != nvml.SUCCESS {
		return g, fmt.Errorf("its UUID can't be read: %v", ret)
	}
	g.UUID = uuid
	d.place(&g)
	if err := d.minor(&g); err != nil {
		return g, err
	}
	d.name(&g)
	d.memory(&g)
	d.partitions(&g)
	d.virtualization(&g)
	return g, nil
}

// ail sets the health to the first problem that was found: those after it are consequences of a
// lost GPU.
func ail(g *grant.GPU, format string, args ...any) {
	if g.Health == grant.Healthy {
		g.Health = fmt.Sprintf(format, args...)
	}
}

// place finds the PCI address of the GPU, in the form of sysfs: at least four digits of domain,
// where NVML's own text has eight. A GPU is always function 0.
func (d nvmlDevice) place(g *grant.GPU) {
	pci, ret := d.GetPciInfo()
	if ret != nvml.SUCCESS {
		ail(g, "its PCI address can't be read: %v", ret)
		return
	}
	g.PCI = fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device)
	g.DriverLink = host.DriverLink(d.host, g.PCI) // before the minor, which may change meanwhile
	g.NUMA = numaNode(d.host, g.PCI)
	g.Render, g.Links = host.DRMNodes(d.host, g.PCI), drmLinks(d.host, g.PCI)
}

// minor finds N of /dev/nvidiaN. Without it there is no inventory: a guessed number could be
// another tenant's GPU.
func (d nvmlDevice) minor(g *grant.GPU) error {
	minor, ret := d.GetMinorNumber()
	if ret == nvml.SUCCESS {
		g.Minor = minor
		return nil
	}
	ail(g, "its minor number can't be read: %v", ret)
	info, err := readInformation(d.host, g.PCI)
	if err != nil {
		return fmt.Errorf("its minor number can't be read: %v (%w)", ret, err)
	}
	g.Minor = info.minor
	return nil
}

func (d nvmlDevice) name(g *grant.GPU) {
	name, ret := d.GetName()
	if ret != nvml.SUCCESS {
		ail(g, "its name can't be read: %v", ret)
	}
	g.Name = name
}

// memory is what can be granted: the driver keeps a part of a GPU for itself, which only version 2
// of the call tells (nvml.h, nvmlMemory_v2_t). The older call counts that part as used, so its
// total is some hundred MiB too much.
func (d nvmlDevice) memory(g *grant.GPU) {
	if has(d.lib, symbols{"nvmlDeviceGetMemoryInfo_v2"}) {
		if m, ret := d.GetMemoryInfo_v2(); ret == nvml.SUCCESS && m.Reserved < m.Total {
			g.Memory = grant.Bytes(m.Total - m.Reserved)
			return
		}
	}
	m, ret := d.GetMemoryInfo()
	switch {
	case ret == nvml.ERROR_NOT_SUPPORTED:
		ail(g, grant.NoMemory)
	case ret != nvml.SUCCESS:
		ail(g, "its memory can't be read: %v", ret)
	case m.Total == 0:
		ail(g, "NVML reports no memory for it")
	}
	g.Memory = grant.Bytes(m.Total)
}
