package grant

import (
	"path/filepath"

	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// Limiter is who has the driver itself limit a container's memory (docs/adr/0046), as it is found
// when a snapshot is read: the hook asks gpuledgerd at the create.
type Limiter struct {
	Hook    string // absolute path of gpuledger-hook; "" where the driver can limit nothing
	Env     string // what the hook is told, as NAME=VALUE: the configuration that it is to read
	Problem string // why nobody would answer it
}

// CanLimit is Driver.MemoryLimits where the driver can.
const CanLimit = "ok"

// LimitStage is the word by which gpuledger-hook knows what it is called for.
const LimitStage = "limit"

// limitTime is how long a runtime waits for the hook, in seconds. The hook itself gives up earlier,
// and says why.
const limitTime = 60

// Edit is the hook as a container's edits have it. It has an environment of its own: one without
// inherits the image's (CVE-2025-23266).
func (l Limiter) Edit() *cdispec.Hook {
	timeout := limitTime
	return &cdispec.Hook{HookName: "createRuntime", Path: l.Hook, Args: []string{filepath.Base(l.Hook),
		LimitStage}, Env: []string{l.Env}, Timeout: &timeout}
}

// LimitSocket is where gpuledgerd hears what is asked of the driver's limits. Only root reaches it.
func (p Policy) LimitSocket() string { return filepath.Join(p.RunDir, "limit.sock") }

// NoLimit is what a cgroup may have of a GPU where nothing limits it (nvml.h,
// NVML_DEVICE_MEMORY_LIMIT_MAX).
const NoLimit Bytes = 1<<64 - 1

// CgroupLimit is what the driver lets the processes of a cgroup have of a GPU.
type CgroupLimit struct {
	Cgroup string `json:"cgroup"` // the absolute path of its directory
	GPU    string `json:"gpu"`    // UUID
	Hard   Bytes  `json:"hard"`   // NoLimit: everything
	Set    bool   `json:"set,omitzero"`
	Error  string `json:"error,omitzero"` // of an answer: why it is not so
}
