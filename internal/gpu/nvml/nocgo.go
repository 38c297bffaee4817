//go:build !cgo

package nvml

import (
	"errors"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// Refresh fails: NVML is a C library, and this build has no cgo.
func Refresh(host.Host, string) (grant.Inventory, error) {
	return grant.Inventory{}, errors.New("cannot load NVML: this gpuledger was built without cgo. " + advice)
}
