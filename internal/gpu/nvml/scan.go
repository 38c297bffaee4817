//go:build cgo

package nvml

import (
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// Scan takes the inventory through an initialised NVML. A GPU that does not answer gets an entry
// whose health says so, if its UUID and minor are known. If not even these are known, there is no
// inventory, because the GPU can be neither closed nor opened.
func Scan(lib nvml.Interface, h host.Host, driverRoot string) (grant.Inventory, error) {
	if err := checkLibrary(lib); err != nil {
		return grant.Inventory{}, err
	}
	inv := grant.Inventory{Version: 1, Taken: h.Now().UTC().Truncate(time.Second), Source: string(grant.NVML)}
	var err error
	if inv.BootID, err = h.BootID(); err != nil {
		return grant.Inventory{}, err
	}
	if inv.Majors, err = h.NVIDIAMajors(); err != nil {
		return grant.Inventory{}, err
	}
	if inv.Driver, err = driver(lib, h, driverRoot); err != nil {
		return grant.Inventory{}, err
	}
	if inv.GPUs, err = gpus(lib, h); err != nil {
		return grant.Inventory{}, err
	}
	return inv, nil
}

// driver returns the loaded driver. It prefers the kernel's version, with which the snapshot is
// compared later.
func driver(lib nvml.Interface, h host.Host, driverRoot string) (grant.Driver, error) {
	version, err := h.DriverVersion()
	if err != nil {
		return grant.Driver{}, err
	}
	if version == "" {
		var ret nvml.Return
		if version, ret = lib.SystemGetDriverVersion(); ret != nvml.SUCCESS {
			return grant.Driver{}, fmt.Errorf("cannot read the driver's version: %v", ret)
		}
	}
	return grant.Driver{Version: version, CUDA: cuda(lib), Root: driverRoot,
		MemoryLimits: memoryLimits(lib, version)}, nil
}

// cuda is the highest CUDA version that the driver serves, as 13.0, or "" where NVML can't tell.
// The older call answers without a libcuda to ask.
func cuda(lib nvml.Interface) string {
	for _, call := range []struct {
		symbol  string
		version func() (int, nvml.Return)
	}{
		{"nvmlSystemGetCudaDriverVersion_v2", lib.SystemGetCudaDriverVersion_v2},
		{"nvmlSystemGetCudaDriverVersion", lib.SystemGetCudaDriverVersion},
	} {
		if !has(lib, symbols{call.symbol}) {
			continue
		}
		if v, ret := call.version(); ret == nvml.SUCCESS {
			// nvml.h: NVML_CUDA_DRIVER_VERSION_MAJOR and _MINOR
			return fmt.Sprintf("%d.%d", v/1000, v%1000/10)
		}
	}
	return ""
}

// gpus lists the GPUs in NVML's order.
func gpus(lib nvml.Interface, h host.Host) ([]grant.GPU, error) {
	count, ret := lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("cannot count the GPUs: %v", ret)
	}
	list := make([]grant.GPU, count)
	var lost []lostGPU
	for i := range list {
		handle, ret := lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			lost = append(lost, lostGPU{i, ret})
			continue
		}
		var err error
		if list[i], err = (nvmlDevice{lib, handle, h}).gpu(i); err != nil {
			return nil, fmt.Errorf("cannot take GPU %d into the inventory: %w", i, err)
		}
	}
	if err := identify(h, list, lost); err != nil {
		return nil, err
	}
	return list, nil
}
