package request

import (
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// resourceKeys are the kernel's own keys of a cgroup that set a resource of it
// (Documentation/admin-guide/cgroup-v2.rst, Core Interface Files). Every other one of cgroup.*
// moves processes (procs, threads), stops or ends them (freeze, kill), or sets what cgroups are
// (type, subtree_control). A key of a newer kernel counts as one of those until it is known.
var resourceKeys = []string{"cgroup.max.depth", "cgroup.max.descendants", "cgroup.pressure"}

// controllers are those whose keys set resources and nothing else, and no GPU's. The kernel names a
// controller's files after it. So a new file of one of them is a resource, too.
var controllers = []string{"cpu", "cpuset", "hugetlb", "io", "irq", "memory", "misc", "pids", "rdma"}

// unifiedCode returns the code of a raw key of cgroup v2, whatever its value; "" if it sets a
// resource. doubtful says that it is unknown what the key does, which matters if a grant has to be
// enforced.
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

// unified examines the raw cgroup keys of a spec (docs/adr/0012 and 0064).
func unified(f *containerFacts) (found vectorResult) {
	for _, key := range sortedKeys(f.spec.Linux.Resources.Unified) {
		hit := grant.Hit{Vector: "unified:" + key, Value: f.spec.Linux.Resources.Unified[key],
			Cover: grant.CoverNever}
		code, doubtful := unifiedCode(key)
		switch {
		case doubtful:
			hit.Code = grant.LimitUnenforceable
			found.doubtful = append(found.doubtful, hit)
			found.note("cgroup key " + key + ", of no controller that is known")
		case code == grant.GPUDeviceRule && f.rules.unruled: // no cgroup confines anything here
		case code != "":
			hit.Code = code
			found.hit(hit)
		}
	}
	return found
}

// Unfit returns the code of the most serious key of an update that no container may set, and the
// key; "" if there is none. doubtful is the first key of which it is unknown what it does.
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
