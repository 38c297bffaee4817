// Command nvcdi prints the driver files that NVIDIA's CDI generator finds below a driver root, as CDI edits: what ours is
// compared with.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: nvcdi DRIVER-ROOT DRIVER-VERSION")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "nvcdi:", err)
		os.Exit(1)
	}
}

func run(root, version string) error {
	gpus := dgxa100.New()
	gpus.DriverVersion = version
	lib, err := nvcdi.New(nvcdi.WithMode(nvcdi.ModeNvml), nvcdi.WithNvmlLib(gpus), nvcdi.WithDriverRoot(root),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils))
	if err != nil {
		return err
	}
	edits, err := lib.GetCommonEdits()
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(edits.ContainerEdits)
}
