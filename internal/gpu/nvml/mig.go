//go:build cgo

package nvml

import (
	"fmt"
	"math"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// partitions lists the GPU's MIG devices. A GPU in MIG mode without any cannot be used: CUDA finds
// no device on it (MIG user guide, "Creating GPU Instances").
func (d nvmlDevice) partitions(g *grant.GPU) {
	if !hasAll(d.lib, mig) {
		return
	}
	current, _, ret := d.GetMigMode()
	switch {
	case ret == nvml.ERROR_NOT_SUPPORTED: // most products
		return
	case ret != nvml.SUCCESS:
		ail(g, "its MIG mode can't be read: %v", ret)
		return
	case current != nvml.DEVICE_MIG_ENABLE:
		return
	}
	devices, err := d.migDevices(g.Minor, g.Memory)
	switch {
	case err != nil:
		ail(g, "its MIG devices can't be read: %v", err)
	case len(devices) == 0:
		ail(g, grant.Unpartitioned)
	default:
		g.MIG = devices
	}
}

// migDevices goes through all places that a MIG device can have; empty ones are not found.
func (d nvmlDevice) migDevices(card int, memory grant.Bytes) ([]grant.MIGDevice, error) {
	count, ret := d.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	var devices []grant.MIGDevice
	for i := range count {
		handle, ret := d.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND {
			continue
		}
		if ret != nvml.SUCCESS {
			return nil, ret
		}
		m, err := migDevice(handle, memory)
		if err != nil {
			return nil, fmt.Errorf("device %d: %w", i, err)
		}
		m.Caps, _ = d.host.MIGMinors(card, m.GI, m.CI) // without them it is never granted
		devices = append(devices, m)
	}
	return devices, nil
}

// migDevice reads one partition of a GPU with so much memory.
func migDevice(handle nvml.Device, memory grant.Bytes) (grant.MIGDevice, error) {
	var m grant.MIGDevice
	uuid, ret := handle.GetUUID()
	if ret != nvml.SUCCESS {
		return m, fmt.Errorf("UUID: %w", ret)
	}
	attributes, ret := handle.GetAttributes()
	if ret != nvml.SUCCESS {
		return m, fmt.Errorf("attributes: %w", ret)
	}
	gi, ret := handle.GetGpuInstanceId()
	if ret != nvml.SUCCESS {
		return m, fmt.Errorf("GPU instance: %w", ret)
	}
	ci, ret := handle.GetComputeInstanceId()
	if ret != nvml.SUCCESS {
		return m, fmt.Errorf("compute instance: %w", ret)
	}
	return grant.MIGDevice{
		UUID:    uuid,
		Profile: profileName(handle, attributes, memory),
		Memory:  grant.Bytes(attributes.MemorySizeMB) * grant.MiB, // the field's MB are 2^20 bytes
		GI:      gi,
		CI:      ci,
	}, nil
}

// profileName is the profile as people write it, 1g.10gb. NVML puts it at the end of a MIG device's
// name ("NVIDIA H100 80GB HBM3 MIG 1g.10gb"); only there are marks like +me. Otherwise the
// attributes make it.
func profileName(handle nvml.Device, a nvml.DeviceAttributes, memory grant.Bytes) string {
	if name, ret := handle.GetName(); ret == nvml.SUCCESS {
		if _, profile, found := strings.Cut(name, " MIG "); found {
			return profile
		}
	}
	profile := fmt.Sprintf("%dg.%dgb", a.GpuInstanceSliceCount, profileGB(a.MemorySizeMB, memory))
	if a.ComputeInstanceSliceCount != a.GpuInstanceSliceCount {
		profile = fmt.Sprintf("%dc.%s", a.ComputeInstanceSliceCount, profile)
	}
	return profile
}

// profileGB is the number in a profile's name: a partition's eighths of the GPU, rounded up, times
// its gigabytes, rounded up (as NVIDIA's go-nvlib names profiles).
func profileGB(mib uint64, memory grant.Bytes) int {
	if memory == 0 {
		return int((mib + 512) / 1024)
	}
	eighths := math.Ceil(float64(grant.Bytes(mib)*grant.MiB) / float64(memory) * 8)
	gib := (memory + grant.GiB - 1) / grant.GiB
	return int(math.Round(eighths / 8 * float64(gib)))
}
