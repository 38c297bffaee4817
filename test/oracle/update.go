package oracle

import (
	"encoding/json"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Update lists what the resources of a runtime's update open. crun replaces the container's device
// rules by these, and both runtimes write the keys of unified as they are.
func (w World) Update(resources []byte) ([]Way, error) {
	var r specs.LinuxResources
	if err := json.Unmarshal(resources, &r); err != nil {
		return nil, err
	}
	s := spec{rules: rulesOf(r.Devices)}
	var ways []Way
	if len(s.rules) > 0 {
		ways = w.open(s, "crun", []filter{crunV1, crunV2})
	}
	for key := range r.Unified {
		if strings.HasPrefix(key, "dmem.") || affectsProcesses(key) {
			ways = append(ways, Way{"unified " + key, Nothing})
		}
	}
	slices.SortFunc(ways, func(a, b Way) int { return strings.Compare(a.How, b.How) })
	return ways, nil
}
