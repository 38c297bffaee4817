package oci

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// RestoresRules reports whether CRIU will write the device rules of its images into the container's
// cgroup (criu/cgroup.c, restore_devices_list). It does where it restores the properties of
// existing cgroups.
func RestoresRules(argv []string) bool {
	return slices.ContainsFunc(values(argv, cgroupsMode),
		func(mode string) bool { return mode == "full" || mode == "strict" })
}

const cgroupsMode = "manage-cgroups-mode"

// RestoredOutside returns why the real runtime may let processes of a restored container run
// without its device rules, or "". said is what that runtime prints about its version. onV1 says
// that the node has device rules in cgroups of version 1.
//
// CRIU moves the processes into the cgroup that its images name, and makes it if it is missing,
// unless the runtime gives it another one (criu/cgroup.c, rewrite_cgroup_roots). runc gives it one
// from 1.2.0 on, and before that on version 1 alone (libcontainer, criuApplyCgroups). crun does so
// from 1.21 on. With "ignore" CRIU leaves the processes in its own cgroup, and crun starts CRIU in
// crun's. Without systemd crun sets the rules of a cgroup of version 2 when the processes run
// already (libcrun_container_restore).
func (c Command) RestoredOutside(said string, argv []string, onV1 bool) string {
	const outside = " lets processes of a restored container run outside its cgroup"
	name, version, numbers := parseVersion(said)
	is := grant.Printable(name + " " + version)
	switch {
	case name == "runc" && numbers != nil:
		if !onV1 && slices.Compare(numbers, []int{1, 2}) < 0 {
			return is + outside + "; runc 1.2 or newer is needed"
		}
	case name != "crun" || numbers == nil:
		return "it is not known whether its processes stay in its cgroup, because the real runtime does " +
			"not say which version it is; runc 1.2, crun 1.21 or newer is needed"
	case slices.Compare(numbers, []int{1, 21}) < 0:
		return is + outside + "; crun 1.21 or newer is needed"
	case slices.Contains(values(argv, cgroupsMode), "ignore"):
		return is + outside + " with --" + cgroupsMode + "=ignore"
	case !onV1 && !c.Systemd:
		return is + " sets the device rules of a restored container after its processes run; " +
			"systemd as its cgroup manager is needed"
	}
	return ""
}

// parseVersion reads the first line of a runtime's version output, such as "runc version 1.5.2".
// numbers are the first two of the version, nil if they cannot be read.
func parseVersion(said string) (name, version string, numbers []int) {
	line, _, _ := strings.Cut(said, "\n")
	words := strings.Fields(line)
	if len(words) != 3 || words[1] != "version" {
		return "", "", nil
	}
	parts := strings.FieldsFunc(words[2], func(r rune) bool { return r < '0' || r > '9' })
	if len(parts) < 2 || !strings.HasPrefix(words[2], parts[0]+"."+parts[1]) {
		return words[0], words[2], nil
	}
	for _, part := range parts[:2] {
		n, err := strconv.Atoi(part)
		if err != nil {
			return words[0], words[2], nil
		}
		numbers = append(numbers, n)
	}
	return words[0], words[2], numbers
}
