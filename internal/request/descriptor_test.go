package request

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/host"
)

// TestDescriptors: what a container is handed open, by what it is.
func TestDescriptors(t *testing.T) {
	hands := func(d host.Descriptor) func(*scene) {
		return func(s *scene) {
			if d.Number = 7; len(d.Path) > 1 && d.Path[:2] == "T/" {
				d.Path = s.path(d.Path[2:])
			}
			s.caller.Descriptors = append(s.caller.Descriptors, d)
		}
	}
	device := func(kind, major, minor uint32) func(*scene) {
		return hands(host.Descriptor{Mode: kind | 0o600, Rdev: unix.Mkdev(major, minor), Path: "/dev/x"})
	}
	file := func(path string) func(*scene) {
		return hands(host.Descriptor{Mode: unix.S_IFREG | 0o600, Path: path})
	}
	socket := func(paths ...string) func(*scene) {
		return hands(host.Descriptor{Mode: unix.S_IFSOCK | 0o600, Path: "socket:[1]", Sockets: paths})
	}
	node := func(numbers, class string) []string {
		return []string{"gpu-device-node | descriptor:7 | c " + numbers + " | node=" + class}
	}
	governs := []string{"gpu-socket | descriptor:7 | a file or socket that governs GPUs | never"}
	noDRM := func(setup func(*scene)) func(*scene) {
		return func(s *scene) {
			s.node.DRM = func() (map[int]bool, error) { return nil, errors.New("it is asked") }
			setup(s)
		}
	}
	check(t, []row{
		{"a GPU", device(unix.S_IFCHR, 195, 1), node("195:1", "nvidia/1")},
		{"the control device", device(unix.S_IFCHR, 195, 255), node("195:255", "nvidiactl/255")},
		{"a device of a number that Linux gives out", device(unix.S_IFCHR, majorUVM, 0), node("508:0", "nvidia-uvm/0")},
		{"another device", noDRM(device(unix.S_IFCHR, 10, 200)), nil},
		{"a GPU's DRM node", device(unix.S_IFCHR, 226, 128), node("226:128", "drm/128")},
		{"another's DRM node", device(unix.S_IFCHR, 226, 129), nil},
		{"a block device of a GPU's numbers", device(unix.S_IFBLK, 195, 0), nil},
		{"a block device of a DRM node's numbers", noDRM(device(unix.S_IFBLK, 226, 0)), nil},
		{"two of them", func(s *scene) { device(unix.S_IFCHR, 195, 0)(s); device(unix.S_IFCHR, 195, 1)(s) }, append(node("195:0", "nvidia/0"), node("195:1", "nvidia/1")...)},
		{"a file", file("/etc/passwd"), nil},
		{"a file of the ledger's", file("T/state/grants/x"), governs},
		{"a directory of ours", hands(host.Descriptor{Mode: unix.S_IFDIR | 0o700, Path: "T/run"}), governs},
		{"a pipe", hands(host.Descriptor{Mode: unix.S_IFIFO, Path: "pipe:[2]"}), nil},
		{"a socket", socket("/run/systemd/notify"), nil},
		{"one without a name", socket("", ""), nil},
		{"one of ours", func(s *scene) { socket("", s.path("run/gpuledgerd.sock"))(s) }, governs},
		{"an MPS daemon's", func(s *scene) { socket(s.mps("data/mps") + "/control")(s) }, governs},
		{"another one in its directory", func(s *scene) { s.mps("data/mps"); socket(s.socket("data/mps/other"))(s) }, nil},
		{"what looks like an MPS daemon's", func(s *scene) { socket(s.deadMPS("data/mps") + "/control")(s) }, nil},
		{"udev's, which is called the same", func(s *scene) { s.mkdir("data/udev"); socket(s.socket("data/udev/control"))(s) }, nil},
		{"an MPS daemon's, by a name that is no path", func(s *scene) { s.t.(*testing.T).Chdir(s.mps("data/mps")); socket("control")(s) }, nil},
		{"an MPS daemon's that only root can have made, in another mount namespace", socket("/run/nvidia-mps/control"), governs},
		{"another program's of the name, which only root can have made", socket("/run/udev/control"), nil},
		{"another one of its directory", socket("/run/nvidia-mps/log"), nil},
		{"one at a usual place that everybody can make", socket("/tmp/nvidia-mps/control"), nil},
		{"CRIU's rules on cgroup v1", func(s *scene) {
			s.mkdir("sys/fs/cgroup/devices")
			s.touch("sys/fs/cgroup/devices/cgroup.procs")
			s.caller.RestoresRules = true
		}, []string{"gpu-device-rule | option:--manage-cgroups-mode | whatever the checkpoint has | never"}},
		{"the spec's own rules on cgroup v1", func(s *scene) { s.mkdir("sys/fs/cgroup/devices"); s.touch("sys/fs/cgroup/devices/cgroup.procs") }, nil},
		{"CRIU's rules on cgroup v2", func(s *scene) { s.caller.RestoresRules = true }, nil},
	})
}
