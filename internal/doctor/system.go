package doctor

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// programs checks the files beside gpuledger. The wrapper runs as root at every create.
func programs(f Facts) []Line {
	var lines []Line
	for _, p := range f.Programs {
		switch {
		case p.Missing:
			lines = append(lines, Line{Status: Warning, Message: p.Path + " is not there",
				Hint: "install all programs of one version into one directory"})
		case p.loose() || len(p.Above) > 0:
			lines = append(lines, open(p))
		}
	}
	return orOK(lines, "all programs are there, and only root can change them")
}

// open is the line for a path that users other than root can change.
func open(p PathFacts) Line {
	if !p.loose() && len(p.Above) > 0 {
		p = p.Above[0]
	}
	return Line{Status: Problem, Message: fmt.Sprintf(
		"%s can be changed by others than root (mode %04o, owner %d)", p.Path, p.Mode.Perm(), p.UID),
		Hint: "chown root and chmod go-w " + p.Path}
}

func orOK(lines []Line, format string, args ...any) []Line {
	if len(lines) > 0 {
		return lines
	}
	return []Line{{Status: OK, Message: fmt.Sprintf(format, args...)}}
}

// runtimes checks the runtime that the wrapper executes: the first of runtime.path that exists.
func runtimes(f Facts) []Line {
	if len(f.Runtimes) == 0 {
		return []Line{{Status: Problem, Message: "none of " + strings.Join(f.Policy.Runtime.Path, ", ") +
			" is there (runtime.path): the wrapper starts no container",
			Hint: "install runc or crun, or set runtime.path"}}
	}
	r := f.Runtimes[0]
	if r.loose() || len(r.Above) > 0 {
		return []Line{open(r.PathFacts)}
	}
	if r.Failed != nil {
		return []Line{{Status: Problem, Message: fmt.Sprintf("%s does not run: %v", r.Path, r.Failed),
			Hint: "install it anew, or set runtime.path"}}
	}
	lines := []Line{{Status: OK, Message: fmt.Sprintf("containers run under %s (%s)", r.Path, r.Version)}}
	for _, name := range sortedKeys(f.Unjudged) {
		lines = append(lines, unjudged(name, f.Unjudged[name]))
	}
	return lines
}

// unjudged checks a runtime of containers that pass without being judged.
func unjudged(name string, p PathFacts) Line {
	switch {
	case p.Missing:
		return Line{Status: Warning, Message: name +
			" is not there (runtime.unjudged): containers that are not judged run under runtime.path",
			Hint: "install it again, or take the key out"}
	case p.loose() || len(p.Above) > 0:
		return open(p)
	}
	return Line{Status: OK, Message: "containers that are not judged run under " + p.Path}
}

// newer reports whether a kernel release or driver version is at least major.minor. It is true for
// a version that cannot be parsed.
func newer(version string, major, minor int) bool {
	var a, b int
	if _, err := fmt.Sscanf(version, "%d.%d", &a, &b); err != nil {
		return true
	}
	return a > major || a == major && b >= minor
}

// kernel checks the release. openat2 came with 5.6, mount_setattr with 5.12.
func kernel(f Facts) []Line {
	switch {
	case !newer(f.Kernel, 5, 6):
		return []Line{{Status: Warning, Message: "Linux " + f.Kernel +
			" has no openat2: links in a spec are followed less strictly, and gpuledger-hook cannot inject",
			Hint: "Linux 5.12 or newer has all that gpuledger uses"}}
	case !newer(f.Kernel, 5, 12):
		return []Line{{Status: Warning, Message: "Linux " + f.Kernel +
			" has no mount_setattr: gpuledger-hook cannot inject",
			Hint: "use the runtime wrapper, or Linux 5.12"}}
	}
	return []Line{{Status: OK, Message: "Linux " + f.Kernel}}
}

func cgroups(f Facts) []Line {
	c := f.Cgroup
	switch {
	case c.Version == 0:
		return []Line{{Status: Problem,
			Message: "no cgroup hierarchy holds device rules: every container can open every GPU",
			Hint:    "mount cgroup v2 at /sys/fs/cgroup, or v1 with its devices controller"}}
	case c.Error != nil:
		return []Line{{Status: Problem,
			Message: fmt.Sprintf("cgroup v%d is there, but device rules cannot be used: %v",
				c.Version, c.Error),
			Hint: "the kernel needs CONFIG_CGROUP_BPF for v2, CONFIG_CGROUP_DEVICE for v1"}}
	case c.Hybrid:
		return []Line{
			{Status: OK,
				Message: "cgroup v1 holds device rules, v2 is mounted beside it; crun 1.8 and strength " +
					"driver want v2 alone"}}
	}
	return []Line{{Status: OK, Message: fmt.Sprintf("cgroup v%d holds device rules", c.Version)}}
}

// driver checks the modules of the NVIDIA driver.
func driver(f Facts) []Line {
	_, loaded := f.Majors["nvidia"]
	_, uvm := f.Majors["nvidia-uvm"]
	version := f.Driver
	if version == "" {
		version = "of unknown version"
	}
	switch {
	case !loaded && f.Policy.Inventory.Source == grant.Simulated:
		return []Line{{Status: OK,
			Message: "no NVIDIA driver is loaded, and none is needed: inventory.source is \"simulated\""}}
	case !loaded:
		return []Line{{Status: Problem, Message: "no NVIDIA driver is loaded: /proc/devices has no nvidia",
			Hint: "install it, or `modprobe nvidia`; to try gpuledger without a GPU set inventory.source = " +
				"\"simulated\""}}
	case !uvm:
		return []Line{{Status: Warning, Message: "driver " + version +
			" is loaded, but not nvidia-uvm: CUDA finds no GPU",
			Hint: "run `nvidia-modprobe -u -c 0` at boot, then `gpuledger inventory refresh`"}}
	}
	return []Line{{Status: OK, Message: "driver " + version + ", majors " + majors(f.Majors)}}
}

func majors(all map[string]int) string {
	var list []string
	for _, name := range sortedKeys(all) {
		list = append(list, name+" "+strconv.Itoa(all[name]))
	}
	return strings.Join(list, ", ")
}

// devices checks the host's own nodes. The ledger does not govern them, but a user that can open
// them needs no container.
func devices(f Facts) []Line {
	if len(f.Devices) == 0 {
		if f.Policy.Inventory.Source == grant.Simulated {
			return []Line{{Status: OK, Message: "the GPUs are simulated: no device nodes"}}
		}
		return []Line{{Status: Warning, Message: "there is no NVIDIA device node in /dev",
			Hint: "run `nvidia-modprobe -c 0 -u` or nvidia-persistenced at boot"}}
	}
	hint := "options nvidia NVreg_DeviceFileMode=" + f.nodeMode() + " NVreg_DeviceFileUID=0 " +
		"NVreg_DeviceFileGID=0 in /etc/modprobe.d, unless users of the host compute without containers"
	if f.Sets.OpenToUsers() && f.Policy.Enforcement.UserNodes == grant.UserNodesACL {
		return []Line{{Status: Problem, Hint: hint, Message: fmt.Sprintf("enforcement.user_nodes = \"acl\" "+
			"keeps no user from a GPU: the driver gives its nodes %s whenever root uses one",
			f.Sets)}}
	}
	var lines []Line
	warn := func(message string) {
		lines = append(lines, Line{Status: Warning, Message: message + ", around the ledger", Hint: hint})
	}
	var all, some []string
	for _, d := range f.Devices {
		switch p := d.nodePermissions(); {
		case p.OpenToAll():
			all = append(all, d.Path)
		case p.OpenToUsers():
			some = append(some, fmt.Sprintf("%s (%s)", d.Path, p))
		}
	}
	if len(all) > 0 {
		warn("every user of the host can open " + strings.Join(all, ", "))
	}
	if len(some) > 0 {
		warn("a user or a group of the host can open " + strings.Join(some, ", "))
	}
	if len(lines) == 0 && f.Sets.OpenToUsers() {
		warn(fmt.Sprintf("the driver gives its nodes %s whenever root uses a GPU: users of the host can "+
			"open them", f.Sets))
	}
	return orOK(lines, "only root can open the host's GPU nodes")
}

func (p PathFacts) nodePermissions() host.NodePermissions {
	return host.NodePermissions{Mode: uint32(p.Mode.Perm()), UID: p.UID, GID: p.GID}
}

// nodeMode is the mode that closes the nodes to users: that of a file with an access list has the
// list's mask where a group's bits are.
func (f *Facts) nodeMode() string {
	if f.Policy.Enforcement.UserNodes == grant.UserNodesACL {
		return "0660"
	}
	return "0600"
}
