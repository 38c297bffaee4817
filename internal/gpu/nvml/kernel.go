//go:build cgo

package nvml

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// numaNode is the NUMA node that sysfs gives for the PCI device, or -1 (sysfs itself says -1 on a
// machine with one).
func numaNode(h host.Host, pci string) int {
	text, err := os.ReadFile(filepath.Join(h.Sys, "bus/pci/devices", pci, "numa_node"))
	if err != nil {
		return -1
	}
	node, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return -1
	}
	return node
}

// drmLinks are the links that udev makes to the DRM nodes of a PCI device.
func drmLinks(h host.Host, pci string) (links []string) {
	for _, kind := range []string{"card", "render"} {
		name := "dri/by-path/pci-" + pci + "-" + kind
		if _, err := os.Stat(filepath.Join(h.Dev, name)); err == nil {
			links = append(links, "/dev/"+name)
		}
	}
	return links
}

// information is what the driver tells in /proc about a GPU, even one that NVML no longer gives a
// handle for.
type information struct {
	uuid, name string
	minor      int
}

// readInformation reads /proc/driver/nvidia/gpus/<PCI>/information, lines of "Key: value".
func readInformation(h host.Host, pci string) (information, error) {
	path := filepath.Join(h.Proc, "driver/nvidia/gpus", pci, "information")
	text, err := os.ReadFile(path)
	if err != nil {
		return information{}, err
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		fields[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	info := information{uuid: fields["GPU UUID"], name: fields["Model"]}
	if info.minor, err = strconv.Atoi(fields["Device Minor"]); err != nil {
		return information{}, fmt.Errorf("cannot read %s: there is no minor in it", path)
	}
	return info, nil
}

// lostGPU is an index in NVML's list for which NVML gives no handle, and why.
type lostGPU struct {
	index  int
	reason error
}

// identify fills in the identity of the lost GPUs. The driver still has them in /proc under their
// PCI addresses, and NVML's order is that of the addresses. It fails if the two lists do not match.
func identify(h host.Host, list []grant.GPU, lost []lostGPU) error {
	if len(lost) == 0 {
		return nil
	}
	others, err := unlisted(h, list)
	if err == nil && len(others) != len(lost) {
		err = fmt.Errorf("%d GPUs don't answer and the driver knows of %d more", len(lost), len(others))
	}
	for i := 0; err == nil && i < len(lost); i++ {
		list[lost[i].index], err = lost[i].gpu(h, others[i])
	}
	if err != nil {
		return fmt.Errorf("cannot take GPU %d into the inventory: %w; and it is unknown which one it is: %w",
			lost[0].index, lost[0].reason, err)
	}
	return nil
}

// unlisted are the PCI addresses, in order, of the GPUs that the driver has and the list has not.
func unlisted(h host.Host, list []grant.GPU) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(h.Proc, "driver/nvidia/gpus"))
	if err != nil {
		return nil, err
	}
	var others []string
	for _, e := range entries {
		if !slices.ContainsFunc(list, func(g grant.GPU) bool { return g.PCI == e.Name() }) {
			others = append(others, e.Name())
		}
	}
	return others, nil
}

// gpu is the entry of a lost GPU that sits at a PCI address.
func (l lostGPU) gpu(h host.Host, pci string) (grant.GPU, error) {
	info, err := readInformation(h, pci)
	if err != nil {
		return grant.GPU{}, err
	}
	if info.uuid == "" || strings.Contains(info.uuid, "?") { // the driver never got as far as reading it
		return grant.GPU{}, fmt.Errorf("the driver does not know the UUID of %s", pci)
	}
	return grant.GPU{
		UUID: info.uuid, Index: l.index, Minor: info.minor, Name: info.name, PCI: pci, NUMA: numaNode(h, pci),
		Render: host.DRMNodes(h, pci), MIG: []grant.MIGDevice{},
		Health: fmt.Sprintf("NVML gives no access to it: %v", l.reason),
	}, nil
}
