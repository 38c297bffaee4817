package admission

import (
	"slices"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// addRules adds a device rule for each node. A node can be there under two paths.
func addRules(rules []grant.DeviceRule, nodes []*cdispec.DeviceNode) []grant.DeviceRule {
	for _, n := range nodes {
		r := grant.DeviceRule{Allow: true, Type: 'c', Major: n.Major, Minor: n.Minor, Access: n.Permissions}
		if !slices.Contains(rules, r) {
			rules = append(rules, r)
		}
	}
	return rules
}

// Confined returns the device rules of a privileged container that must not reach GPUs. They allow
// everything but the majors of NVIDIA's driver, those that it could still get, and the DRM nodes of
// its GPUs (docs/adr/0010). They are a list of what is allowed, because runc refuses to deny parts
// of a rule for everything, and systemd reads a list of denials as "nothing is allowed" when it
// reloads (both measured; 510 rules cost no measurable time).
func Confined(devices grant.DeviceMap) []grant.DeviceRule {
	rules := []grant.DeviceRule{{Allow: true, Type: 'b', Major: -1, Minor: -1, Access: "rwm"}}
	for major := range grant.LastMajor + 1 {
		if !closes(devices, major) {
			rules = append(rules, grant.DeviceRule{
				Allow: true, Type: 'c', Major: int64(major), Minor: -1, Access: "rwm"})
		}
	}
	var others []int
	for minor, nvidia := range devices.DRM {
		if !nvidia {
			others = append(others, minor)
		}
	}
	slices.Sort(others)
	for _, minor := range others {
		rules = append(rules, grant.DeviceRule{
			Allow: true, Type: 'c', Major: grant.MajorDRM, Minor: int64(minor), Access: "rwm"})
	}
	return rules
}

// Closed returns what Confined leaves out, for a container whose rules stay but for that. Confined
// has some minors of DRM, whose major is here as a whole. It covers reading and writing: mknod
// alone opens no device.
func Closed(devices grant.DeviceMap) (rules []grant.DeviceRule) {
	for major := range grant.LastMajor + 1 {
		if closes(devices, major) {
			rules = append(rules, grant.DeviceRule{Type: 'c', Major: int64(major), Minor: -1, Access: "rw"})
		}
	}
	return rules
}

// closes reports whether a major is not open as a whole to a container that must not reach GPUs.
func closes(devices grant.DeviceMap, major int) bool {
	_, nvidia := devices.Majors[major]
	return nvidia || major == grant.MajorDRM || grant.IsDynamicMajor(major) && !devices.Taken[major]
}
