package grant

import (
	"path/filepath"

	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// Limiter is the hook through which the driver limits a container's memory (docs/adr/0046). It is
// determined when a snapshot is read. At the create the hook connects to gpuledgerd.
type Limiter struct {
	Hook    string // absolute path of gpuledger-hook; "" if the driver cannot limit
	Env     string // the hook's environment, as NAME=VALUE: the configuration that it reads
	Problem string // why gpuledgerd would not answer
}

// CanLimit is the value of Driver.MemoryLimits if the driver can limit.
const CanLimit = "ok"

// LimitStage is the argument with which gpuledger-hook sets the limit.
const LimitStage = "limit"

// limitTime is how long a runtime waits for the hook, in seconds. The hook gives up earlier, with
// an error that says why.
const limitTime = 60

// Edit returns the hook for a container's edits. It sets an environment: a hook without one
// inherits the image's (CVE-2025-23266).
func (l Limiter) Edit() *cdispec.Hook {
	timeout := limitTime
	return &cdispec.Hook{HookName: "createRuntime", Path: l.Hook, Args: []string{filepath.Base(l.Hook),
		LimitStage}, Env: []string{l.Env}, Timeout: &timeout}
}

// LimitSocket returns the socket on which gpuledgerd serves requests for the driver's limits. Only
// root can connect.
func (p Policy) LimitSocket() string { return filepath.Join(p.RunDir, "limit.sock") }

// NoLimit is the limit of a cgroup that may use all of a GPU (nvml.h,
// NVML_DEVICE_MEMORY_LIMIT_MAX).
const NoLimit Bytes = 1<<64 - 1

// CgroupLimit is the driver's limit of a GPU's memory for the processes of a cgroup.
type CgroupLimit struct {
	Cgroup string `json:"cgroup"` // absolute path of its directory
	GPU    string `json:"gpu"`    // UUID
	Hard   Bytes  `json:"hard"`   // bytes; NoLimit: all
	Set    bool   `json:"set,omitzero"`
	Error  string `json:"error,omitzero"` // in an answer: why it could not be set
}
