package request

import (
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// intelRdt examines the name of the container's class of Intel RDT. crun writes the container's
// process into the file tasks of the directory of that name below /sys/fs/resctrl, and does not
// look at the name: by "../cgroup/devices/..." on cgroup v1 that is another container's cgroup,
// whose devices it can then open (docs/adr/0064). runc refuses such names, but for "/" itself,
// which is the root's class.
func intelRdt(f *containerFacts) (found vectorResult) {
	if rdt := f.spec.Linux.IntelRdt; rdt != nil && isPath(rdt.ClosID) && !f.rules.unruled {
		found.hit(grant.Hit{Vector: "intelRdt:closID", Value: rdt.ClosID, Code: grant.GPUDeviceRule,
			Cover: grant.CoverNever})
	}
	return found
}

// isPath reports whether a class's name leads elsewhere than to a directory of the name.
func isPath(class string) bool {
	return class == "." || class == ".." || class != "/" && strings.Contains(class, "/")
}
