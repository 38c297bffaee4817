package request

import (
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// resourceKeys are the kernel's own keys of a cgroup that set a resource of it (Documentation/admin-guide/cgroup-v2.rst, Core
// Interface Files). Every other one of cgroup.* moves processes (procs, threads), stops or ends them (freeze, kill), or says
// what cgroups are (type, subtree_control). A newer kernel's counts as one of those until it is known.
var resourceKeys = []string{"cgroup.max.depth", "cgroup.max.descendants", "cgroup.pressure"}

// controllers are those whose keys set resources and nothing else, and no GPU's. The kernel names a controller's files after it,
// so that a new file of one of them is a resource, too.
var controllers = []string{"cpu", "cpuset", "hugetlb", "io", "irq", "memory", "misc", "pids", "rdma"}

// unifiedCode judges a raw key of cgroup v2, whatever its value: "" sets a resource. doubtful: nobody knows what it does, which
// matters where a grant has to be kept.
func unifiedCode(key string) (code grant.Code, doubtful bool) {
	controller, file, isFile := strings.Cut(key, ".")
	switch {
	case strings.Contains(key, "/"), key == "", key == ".", key == "..": // of another cgroup, or of none
		return grant.GPUDeviceRule, false
	case slices.Contains(resourceKeys, key):
		return "", false
	case controller == "cgroup":
		return grant.GPUDeviceRule, false
	case controller == "dmem" && isFile:
		return grant.LimitUnenforceable, false
	}
	return "", file == "" || !slices.Contains(controllers, controller)
}

// unified judges the raw cgroup keys of a spec (docs/adr/0012 and 0064).
func (f *finder) unified() {
	for _, key := range sortedKeys(f.spec.Linux.Resources.Unified) {
		hit := grant.Hit{Vector: "unified:" + key, Value: f.spec.Linux.Resources.Unified[key], Cover: grant.CoverNever}
		code, doubtful := unifiedCode(key)
		switch {
		case doubtful:
			hit.Code = grant.LimitUnenforceable
			f.request.Doubtful = append(f.request.Doubtful, hit)
			f.note("cgroup key " + key + ", of no controller that is known")
		case code == grant.GPUDeviceRule && f.request.Unruled: // no cgroup holds anything here
		case code != "":
			hit.Code = code
			f.hit(hit)
		}
	}
}

// Unfit is the weightiest of the keys of an update that no container may set: its code, and the key; "" where there is none.
// Doubtful is the first key of which nobody knows what it does.
func (u Update) Unfit() (code grant.Code, key, doubtful string) {
	for _, k := range sortedKeys(u.Unified) {
		c, odd := unifiedCode(k)
		if odd && doubtful == "" {
			doubtful = k
		}
		if c != "" && (code == "" || c.Rank() < code.Rank()) {
			code, key = c, k
		}
	}
	return code, key, doubtful
}
