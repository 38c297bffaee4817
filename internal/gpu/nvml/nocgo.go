//go:build !cgo

package nvml

import (
	"errors"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// Refresh fails: NVML is a C library, and this build has no cgo.
func Refresh(host.Host, string) (grant.Inventory, error) {
	return grant.Inventory{}, errors.New("cannot load NVML: this gpuledger was built without cgo. " + advice)
}

// Sampler reads nothing in this build.
type Sampler struct{}

// OpenSampler fails as Refresh does.
func OpenSampler(string) (*Sampler, error) {
	return nil, errors.New("cannot load NVML: this gpuledger was built without cgo. " + advice)
}

// Close does nothing.
func (*Sampler) Close() {}

// Sample is never called.
func (*Sampler) Sample(time.Time) (grant.Sample, error) { return grant.Sample{}, errors.New(advice) }

// CgroupLimiter limits nothing in this build.
type CgroupLimiter struct{}

// OpenCgroupLimiter fails as Refresh does.
func OpenCgroupLimiter(string) (*CgroupLimiter, error) {
	return nil, errors.New("cannot load NVML: this gpuledger was built without cgo. " + advice)
}

// Limit is never called.
func (*CgroupLimiter) Limit(ask grant.CgroupLimit) grant.CgroupLimit {
	ask.Error = advice
	return ask
}
