package edit

import (
	"errors"
	"fmt"
	"slices"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// CDI returns a verdict as the edits of a CDI device. CDI only adds: a verdict that removes
// something, or that replaces the device rules, is an error, because an engine that applied the
// rest would give more than the verdict does. Device rules are not written: the engine makes one
// for each node.
func CDI(v grant.Verdict) (cdispec.ContainerEdits, error) {
	switch {
	case v.Kind != grant.Admit:
		return cdispec.ContainerEdits{}, fmt.Errorf(
			"cannot write a verdict of %q as CDI edits: only an admission has some", v.Kind)
	case v.Narrow || len(v.Removed) > 0:
		return cdispec.ContainerEdits{}, errors.New(
			"cannot write the verdict as CDI edits: CDI only adds, and the verdict takes away")
	}
	for _, r := range v.Rules {
		if !slices.ContainsFunc(v.Edits.DeviceNodes, func(n *cdispec.DeviceNode) bool {
			return isRuleOf(r, n)
		}) {
			return cdispec.ContainerEdits{}, fmt.Errorf(
				"cannot write the verdict as CDI edits: its device rule for %c %d:%d belongs to no node",
				r.Type, r.Major, r.Minor)
		}
	}
	edits := v.Edits
	edits.DeviceNodes = CDINodes(v.Edits.DeviceNodes)
	return edits, nil
}

func isRuleOf(r grant.DeviceRule, n *cdispec.DeviceNode) bool {
	return r.Allow && string(r.Type) == n.Type && r.Major == n.Major && r.Minor == n.Minor &&
		r.Access == n.Permissions
}

// CDINodes returns device nodes as a CDI file has them. They are owned by root: otherwise an engine
// would give them to the container's user. A path of the host that is the same as the container's
// is left out, because it needs CDI 0.5.0.
func CDINodes(nodes []*cdispec.DeviceNode) []*cdispec.DeviceNode {
	written := make([]*cdispec.DeviceNode, len(nodes))
	for i, n := range nodes {
		w := *n
		w.UID, w.GID = new(uint32), new(uint32)
		if w.HostPath == w.Path {
			w.HostPath = ""
		}
		written[i] = &w
	}
	return written
}
