// Command nvcdi prints what NVIDIA's CDI generator gives a container on a node with this driver
// root, as CDI edits: what every device brings along, and with "gpu" in place of it what GPU 0 of a
// DGX A100 does. Ours are compared with it.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: nvcdi DRIVER-ROOT DRIVER-VERSION [gpu]")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], len(os.Args) > 3); err != nil {
		fmt.Fprintln(os.Stderr, "nvcdi:", err)
		os.Exit(1)
	}
}

func run(root, version string, gpu bool) error {
	gpus := dgxa100.New()
	gpus.DriverVersion = version
	first := gpus.Devices[0].(*server.Device) // what the stand-in does not answer
	first.IsMigDeviceHandleFunc = func() (bool, nvml.Return) { return false, nvml.SUCCESS }
	// of no device of this machine
	first.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) {
		return nvml.PciInfo{Domain: 0xffff, Bus: 1}, nvml.SUCCESS
	}
	lib, err := nvcdi.New(nvcdi.WithMode(nvcdi.ModeNvml), nvcdi.WithNvmlLib(gpus), nvcdi.WithDriverRoot(root),
		nvcdi.WithDevRoot(root),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils))
	if err != nil {
		return err
	}
	if gpu {
		devices, err := lib.GetDeviceSpecsByID("0")
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(devices[0].ContainerEdits)
	}
	edits, err := lib.GetCommonEdits()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(edits.ContainerEdits)
}
