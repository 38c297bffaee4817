//go:build cgo

package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// virtual are NVML's virtualization modes in our words (nvml.h, nvmlGpuVirtualizationMode_t).
var virtual = map[nvml.GpuVirtualizationMode]grant.Virtual{
	nvml.GPU_VIRTUALIZATION_MODE_PASSTHROUGH: grant.PassThrough,
	nvml.GPU_VIRTUALIZATION_MODE_VGPU:        grant.VGPU,
	nvml.GPU_VIRTUALIZATION_MODE_HOST_VGPU:   grant.VGPUHost,
	nvml.GPU_VIRTUALIZATION_MODE_HOST_VSGA:   grant.VGPUHost}

// virtualization tells what this machine has of the GPU. A guest's vGPU is granted like a GPU: its
// memory is what NVML says, and its nodes are the same. Where NVML cannot tell, nothing depends on
// it.
func (d nvmlDevice) virtualization(g *grant.GPU) {
	if !has(d.lib, symbols{"nvmlDeviceGetVirtualizationMode"}) {
		return
	}
	if mode, ret := d.GetVirtualizationMode(); ret == nvml.SUCCESS {
		g.Virtual = virtual[mode]
	}
}
