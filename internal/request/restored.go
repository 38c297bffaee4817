package request

import (
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// restored examines what CRIU does to the cgroups of a container that is restored from a
// checkpoint. Its spec was judged, and its device rules may still not hold it (docs/adr/0067).
func restored(f *containerFacts) (found vectorResult) {
	if f.caller.RestoresRules && host.DevicesOnV1(f.node.Host) {
		found.hit(grant.Hit{Vector: "option:--manage-cgroups-mode", Value: "whatever the checkpoint has",
			Code: grant.GPUDeviceRule, Cover: grant.CoverNever})
	}
	if why := f.caller.RestoredOutside; why != "" && !f.rules.unruled && f.devices.reachable() {
		found.hit(grant.Hit{Vector: grant.RestoreVector, Value: why, Code: grant.RulesNotEnforced,
			Cover: grant.CoverNever})
	}
	return found
}
