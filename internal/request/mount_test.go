package request

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

func TestMountsOfDeviceNodes(t *testing.T) {
	elsewhere := func(source string) string {
		return "gpu-bind-mount | mount:/x | " + source + " (" + grant.UnknownTarget + ") | never"
	}
	other := func(link string) string { return fmt.Sprintf("/proc/%d/%s", os.Getppid(), link) }
	const gpu0 = "gpu-bind-mount | mount:/x | T/dev/nvidia0 (c 195:0) | node=nvidia/0 | -mount:/x"
	check(t, []row{
		{"a GPU", func(s *scene) { s.bind(s.mknod("dev/nvidia0", 195, 0), "/x") }, []string{gpu0}},
		{"a GPU, read only", func(s *scene) { s.bind(s.mknod("dev/nvidia0", 195, 0), "/x", "ro") }, []string{
			gpu0}},
		{"a GPU's node that stands elsewhere", func(s *scene) {
			s.bind(s.mknod("state/../bundle/disk", 195, 2), "/x")
		}, []string{"gpu-bind-mount | mount:/x | T/bundle/disk (c 195:2) | node=nvidia/2 | -mount:/x"}},
		{"a link to a GPU", func(s *scene) {
			s.mknod("dev/nvidia0", 195, 0)
			s.bind(s.Link("dev/nvidia0", "link"), "/x")
		}, []string{"gpu-bind-mount | mount:/x | T/link (c 195:0) | node=nvidia/0 | -mount:/x"}},
		{"a path with .. and //", func(s *scene) {
			s.mknod("dev/nvidia0", 195, 0)
			s.bind(s.Dir+"//run/..//dev/./nvidia0", "/x")
		}, []string{"gpu-bind-mount | mount:/x | T//run/..//dev/./nvidia0 (c 195:0) | node=nvidia/0 " +
			"| -mount:/x"}},
		{"a path relative to the bundle", func(s *scene) {
			s.mknod("dev/nvidia0", 195, 0)
			s.bind("../dev/nvidia0", "/x")
		}, []string{"gpu-bind-mount | mount:/x | ../dev/nvidia0 (c 195:0) | node=nvidia/0 | -mount:/x"}},
		{"a type that does not say bind, with options that do", func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Source: s.mknod("dev/nvidia0", 195, 0), Destination: "/x", Type: "none",
				Options: []string{"bind"}})
		}, []string{gpu0}},
		{"a type that says bind, without options", func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Source: s.mknod("dev/nvidia0", 195, 0), Destination: "/x", Type: "bind"})
		}, []string{gpu0}},
		{"the control node", func(s *scene) { s.bind(s.mknod("dev/nvidiactl", 195, 255), "/x") },
			[]string{"gpu-bind-mount | mount:/x | T/dev/nvidiactl (c 195:255) | node=nvidiactl/255 " +
				"| -mount:/x"}},
		{"modeset", func(s *scene) { s.bind(s.mknod("dev/m", 195, 254), "/x") },
			[]string{"gpu-bind-mount | mount:/x | T/dev/m (c 195:254) | drop=nvidia-modeset/254 " +
				"| -mount:/x"}},
		{"an NVIDIA DRM node", func(s *scene) { s.bind(s.mknod("dev/renderD128", 226, 128), "/x") },
			[]string{"gpu-bind-mount | mount:/x | T/dev/renderD128 (c 226:128) | node=drm/128 | -mount:/x"}},
		{"another vendor's DRM node", func(s *scene) {
			s.bind(s.mknod("dev/renderD129", 226, 129), "/x")
		}, nil},
		{"/dev/null", func(s *scene) { s.bind(s.mknod("dev/null", 1, 3), "/x") }, nil},
		{"a file by a GPU's name", func(s *scene) { s.bind(s.Touch("dev/nvidia0"), "/dev/nvidia0") }, nil},
		{"a chain of links", func(s *scene) {
			s.mknod("dev/nvidia0", 195, 0)
			s.Link("dev/nvidia0", "a")
			s.Link(s.Path("a"), "b")
			s.bind(s.Link("run/../b", "c"), "/x")
		}, []string{"gpu-bind-mount | mount:/x | T/c (c 195:0) | node=nvidia/0 | -mount:/x"}},
		{"the second in a directory, a GPU", func(s *scene) {
			s.Mkdir("plain")
			s.bind(s.Touch("plain/a"), "/a")
			s.bind(s.mknod("plain/b", 195, 0), "/x")
		}, []string{"gpu-bind-mount | mount:/x | T/plain/b (c 195:0) | node=nvidia/0 | -mount:/x"}},
		{"the second in a directory, a link to a GPU", func(s *scene) {
			s.mknod("dev/nvidia0", 195, 0)
			s.Mkdir("plain")
			s.bind(s.Touch("plain/a"), "/a")
			s.bind(s.Link(s.Path("dev/nvidia0"), "plain/link"), "/x")
		}, []string{"gpu-bind-mount | mount:/x | T/plain/link (c 195:0) | node=nvidia/0 | -mount:/x"}},
		{"the second in a directory, and from there upwards", func(s *scene) {
			s.Mkdir("state/plain")
			s.bind(s.Touch("state/plain/a"), "/a")
			s.bind(s.Dir+"/state/plain/..", "/x")
		}, []string{"gpu-socket | mount:/a | T/state/plain/a | never",
			"gpu-socket | mount:/x | T/state/plain/.. | never"}},
		{"a type of tmpfs, with options that say bind", func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Source: s.mknod("dev/nvidia0", 195, 0), Destination: "/x", Type: "tmpfs",
				Options: []string{"rbind"}})
		}, []string{gpu0}},
		{"what the runtime's directory lacks, or has", func(s *scene) {
			s.bind("/proc/self/cwd/dev/nvidia0", "/x")
		}, []string{elsewhere("/proc/self/cwd/dev/nvidia0")}},
		{"the runtime's current directory", func(s *scene) { s.bind("/proc/self/cwd", "/x") },
			[]string{elsewhere("/proc/self/cwd")}},
		{"a plain file in the runtime's current directory", func(s *scene) {
			s.bind("/proc/self/cwd/mount_test.go", "/x")
		}, []string{elsewhere("/proc/self/cwd/mount_test.go")}},
		{"the runtime's root", func(s *scene) { s.bind("/proc/self/root/etc", "/x") },
			[]string{elsewhere("/proc/self/root/etc")}},
		{"a thread's", func(s *scene) { s.bind("/proc/thread-self/cwd", "/x") },
			[]string{elsewhere("/proc/thread-self/cwd")}},
		{"a file that the runtime has open, and we have not", func(s *scene) {
			s.bind("/proc/self/fd/987", "/x")
		}, []string{elsewhere("/proc/self/fd/987")}},
		{"below such a file", func(s *scene) { s.bind("/dev/fd/987/nvidia0", "/x") },
			[]string{elsewhere("/dev/fd/987/nvidia0")}},
		{"a link to such a place", func(s *scene) { s.bind(s.Link("/proc/self/cwd", "link"), "/x") },
			[]string{elsewhere("T/link")}},
		{"a link to such a file", func(s *scene) { s.bind(s.Link("/proc/self/fd/987", "link"), "/x") },
			[]string{elsewhere("T/link")}},
		{"another process's root", func(s *scene) { s.bind(other("root/dev/nvidia0"), "/x") },
			[]string{elsewhere(other("root/dev/nvidia0"))}},
		{"another process's network", func(s *scene) { s.bind(other("ns/net"), "/x", "ro") }, nil},
		{"the network of one of its threads", func(s *scene) {
			s.bind(other(fmt.Sprintf("task/%d/ns/net", os.Getppid())), "/x")
		}, nil},
		{"the runtime's network", func(s *scene) { s.bind("/proc/self/ns/net", "/x") }, nil},
		{"another process's mounts", func(s *scene) { s.bind(other("ns/mnt"), "/x") },
			[]string{elsewhere(other("ns/mnt"))}},
		{"a network behind another process's root", func(s *scene) {
			s.bind(other("root/proc/1/ns/net"), "/x")
		}, []string{elsewhere(other("root/proc/1/ns/net"))}},
		{"what a process has open, by such a name", func(s *scene) {
			s.Mkdir("ns")
			s.bind(s.Link(other("fd/0"), "ns/net"), "/x")
		}, []string{elsewhere("T/ns/net")}},
		{"a file of /proc", func(s *scene) { s.bind("/proc/self/mountinfo", "/x") }, nil},
		{"what is not there", func(s *scene) { s.bind(s.Path("dev/none"), "/x") }, nil},
		{"a path through a file", func(s *scene) { s.bind(s.Touch("file")+"/x", "/x") }, nil},
		{"a link to itself", func(s *scene) { s.bind(s.Link("loop", "loop"), "/x") }, nil},
		{"a name that is too long", func(s *scene) { s.bind(s.Path(strings.Repeat("n", 300)), "/x") }, nil},
	})
}

// driverOf is a driver with one file.
func driverOf(path string) grant.Sources {
	return grant.Driver{Root: "/", Files: []grant.DriverFile{{Path: path, Kind: grant.FileLibrary}}}.Sources()
}

// TestFilesOfTheDriverAreNotLookedAt: what an admission has just written for a file that the
// inventory knows. Here a GPU stands in its place, to tell whether somebody looked.
func TestFilesOfTheDriverAreNotLookedAt(t *testing.T) {
	file := func(change func(*scene, *specs.Mount)) func(*scene) {
		return func(s *scene) {
			m := specs.Mount{Source: s.mknod("bundle/libcuda.so.1", 195, 0), Destination: "/x", Type: "bind",
				Options: grant.DriverFileOptions}
			s.node.Files = driverOf(m.Source)
			change(s, &m)
			s.spec.Mounts = append(s.spec.Mounts, m)
		}
	}
	found := []string{"gpu-bind-mount | mount:/x | T/bundle/libcuda.so.1 (c 195:0) | node=nvidia/0 " +
		"| -mount:/x"}
	check(t, []row{
		{"as an admission writes it", file(func(*scene, *specs.Mount) {}), nil},
		{"before there was an admission", file(func(s *scene, _ *specs.Mount) {
			s.node.Files = grant.Sources{}
		}), found},
		{"another file", file(func(s *scene, m *specs.Mount) {
			s.node.Files = driverOf(m.Source + "2")
		}), found},
		{"writable", file(func(_ *scene, m *specs.Mount) {
			m.Options = []string{"rw", "nosuid", "nodev", "bind"}
		}), found},
		{"with an option more", file(func(_ *scene, m *specs.Mount) {
			m.Options = append(slices.Clone(m.Options), "rbind")
		}), found},
		{"of another type", file(func(_ *scene, m *specs.Mount) { m.Type = "" }), found},
		{"with ids of its own", file(func(_ *scene, m *specs.Mount) {
			m.UIDMappings = []specs.LinuxIDMapping{{Size: 1}}
		}), found},
		{"in the container's own root", file(func(s *scene, _ *specs.Mount) {
			s.spec.Root = &specs.Root{Path: s.Path("bundle")}
		}), found},
		{"where the root is the node's", file(func(s *scene, _ *specs.Mount) {
			s.spec.Root = &specs.Root{Path: "/"}
		}), found},
		{"beside the container's own root", file(func(s *scene, _ *specs.Mount) {
			s.spec.Root = &specs.Root{Path: s.Mkdir("bundle/rootfs")}
		}), nil},
		{"with ids of a group's", file(func(_ *scene, m *specs.Mount) {
			m.GIDMappings = []specs.LinuxIDMapping{{Size: 1}}
		}), found},
		{"a rootless spec", file(func(s *scene, _ *specs.Mount) { s.spec.Root = nil }), nil},
	})
}

func TestMountsOfParentsOfDeviceNodes(t *testing.T) {
	withRules := func(source string, rules ...string) func(*scene) {
		return func(s *scene) {
			s.mknod("dev/null", 1, 3)
			s.Mkdir("dev/nvidia-caps")
			s.mknod("dev/nvidia-caps/nvidia-cap1", majorCaps, 1)
			s.Mkdir("dev/shm")
			s.bind(strings.Replace(source, "T", s.Dir, 1), "/host")
			s.addRules(rules...)
		}
	}
	every := "gpu-device-rule | rule:14 | c 195:* rw | never | -rule:c 195:*"
	check(t, []row{
		{"/dev, nothing open", withRules("T/dev"), nil},
		{"/, nothing open", withRules("/"), nil},
		{"/dev, other devices open", withRules("T/dev", "allow c 10:* rw"), nil},
		{"/dev, one GPU open: the others answer EPERM", withRules("T/dev", "allow c 195:0 rw"),
			[]string{"gpu-device-rule | rule:13 | c 195:0 rw | node=nvidia/0 | -rule:c 195:0"}},
		{"/dev, all GPUs open", withRules("T/dev", "allow c 10:1 rw", "allow c 195:* rw"),
			[]string{every, "gpu-bind-mount | mount:/host | T/dev | drop"}},
		{"/, all GPUs open", withRules("/", "allow c 10:1 rw", "allow c 195:* rw"),
			[]string{every, "gpu-bind-mount | mount:/host | / | drop"}},
		{"a directory of nodes, all GPUs open", withRules("T/dev/nvidia-caps", "allow c 10:1 rw",
			"allow c 195:* rw"), []string{every, "gpu-bind-mount | mount:/host | T/dev/nvidia-caps | drop"}},
		{"a directory of nodes, nothing open", withRules("T/dev/nvidia-caps"), nil},
		{"/dev/shm, all GPUs open", withRules("T/dev/shm", "allow c 10:1 rw", "allow c 195:* rw"), []string{
			every}},
		{"a directory elsewhere, all GPUs open", withRules("T/bundle", "allow c 10:1 rw", "allow c 195:* rw"),
			[]string{every}},
		{"/dev of a privileged container", withRules("T/dev", "allow a"),
			[]string{"privileged-gpu | rule:13 | a *:* rwm | narrow",
				"privileged-gpu | mount:/host | T/dev | drop"}},
		{"a devtmpfs of its own, nothing open", func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{Destination: "/dev", Type: "devtmpfs"})
		}, nil},
		{"a devtmpfs of its own, all GPUs open", func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/dev", Type: "devtmpfs", Source: "devtmpfs"})
			s.addRules("allow c 10:1 rw", "allow c 195:* rw")
		}, []string{every, "gpu-bind-mount | mount:/dev | devtmpfs | drop"}},
	})
}

func TestMountsOfWhatGovernsGPUs(t *testing.T) {
	socket := func(source string) []string {
		return []string{"gpu-socket | mount:/x | " + source + " | never"}
	}
	check(t, []row{
		{"run_dir", func(s *scene) { s.bind(s.Path("run"), "/x") }, socket("T/run")},
		{"state_dir", func(s *scene) { s.bind(s.Path("state"), "/x", "ro") }, socket("T/state")},
		{"a directory below", func(s *scene) { s.bind(s.Mkdir("run/mps/GPU-a"), "/x") },
			socket("T/run/mps/GPU-a")},
		{"a file below", func(s *scene) { s.bind(s.Touch("state/inventory.json"), "/x") },
			socket("T/state/inventory.json")},
		{"what is not there below", func(s *scene) { s.bind(s.Path("run/none"), "/x") },
			socket("T/run/none")},
		{"a link to it", func(s *scene) { s.bind(s.Link("run", "link"), "/x") }, socket("T/link")},
		{"a link in the middle", func(s *scene) {
			s.Mkdir("run/a")
			s.Link("run", "link")
			s.bind(s.Path("link/a"), "/x")
		}, socket("T/link/a")},
		{"a run_dir that is a link itself", func(s *scene) {
			s.Link("run", "varrun")
			s.node.Policy.RunDir = s.Path("varrun")
			s.bind(s.Path("run"), "/x")
		}, socket("T/run")},
		{"through ..", func(s *scene) { s.bind(s.Dir+"/dev/../run", "/x") }, socket("T/dev/../run")},
		{"through .. of what is not there yet, to a link", func(s *scene) {
			s.Link("run", "link")
			s.bind(s.Dir+"/dev/none/../../link", "/x")
		}, socket("T/dev/none/../../link")},
		{"the same, below a link", func(s *scene) {
			s.Link("run", "link")
			s.Link("dev", "to")
			s.bind(s.Dir+"/to/none/../../link/a", "/x")
		}, socket("T/to/none/../../link/a")},
		{"through .. of a file", func(s *scene) {
			s.Link("run", "link")
			s.bind(s.Touch("file")+"/../link", "/x")
		}, socket("T/file/../link")},
		{"through .. of what a link lacks", func(s *scene) {
			s.Link("run", "link")
			s.bind(s.Link("none/../link", "to"), "/x")
		}, socket("T/to")},
		{"through .. of what is not there, to what is not there either",
			func(s *scene) { s.bind(s.Dir+"/none/../run/none", "/x") }, socket("T/none/../run/none")},
		{"through .. of what is not there, to nothing of ours", func(s *scene) {
			s.bind(s.Dir+"/none/../dev/../other", "/x")
		}, nil},
		{"a directory whose name only begins alike", func(s *scene) {
			s.bind(s.Mkdir("runtime"), "/x")
		}, nil},
		{"a parent passes", func(s *scene) { s.bind(s.Dir, "/x") }, nil},
		{"an overlay over state_dir, as Podman's :O makes it", func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/x", Type: "overlay", Source: "overlay",
				Options: []string{"lowerdir=/usr:" + s.Path("state")}})
		}, []string{"gpu-socket | mount:/x | lowerdir=/usr:T/state | never"}},
		{"an overlay over something else", func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/x", Type: "overlay", Options: []string{
					"lowerdir=" + s.Mkdir("data"), "upperdir=/a"}})
		}, nil},
		{"an overlay that writes to it", func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/x", Type: "overlay", Options: []string{
					"lowerdir=/usr", "upperdir=" + s.Path("state"), "workdir=/w"}})
		}, []string{"gpu-socket | mount:/x | upperdir=T/state | never"}},
		{"an overlay with its options in one", func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/x", Type: "overlay", Options: []string{
					"userxattr,lowerdir=/usr,upperdir=" + s.Path("run")}})
		}, []string{"gpu-socket | mount:/x | userxattr,lowerdir=/usr,upperdir=T/run | never"}},
		{"an overlay with a layer more", func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/x", Type: "overlay", Options: []string{
					"lowerdir+=" + s.Path("state"), "datadir+=/x"}})
		}, []string{"gpu-socket | mount:/x | lowerdir+=T/state | never"}},
		{"an overlay whose path is written with backslashes", func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/x", Type: "overlay", Options: []string{"lowerdir=" + s.Dir + `/\s\tate`}})
		}, []string{`gpu-socket | mount:/x | lowerdir=T/\s\tate | never`}},
		{"an overlay whose path is relative to the bundle", func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/x", Type: "overlay", Options: []string{"lowerdir=../state"}})
		}, []string{"gpu-socket | mount:/x | lowerdir=../state | never"}},
		{"an overlay whose path is relative to the root", func(s *scene) {
			s.spec.Root = &specs.Root{Path: s.Mkdir("r/o/o/t")}
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/x", Type: "overlay", Options: []string{"lowerdir=../../../../state"}})
		}, []string{"gpu-socket | mount:/x | lowerdir=../../../../state | never"}},
		{"an overlay of many layers", func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/x", Type: "overlay", Options: []string{
					"lowerdir=" + strings.Repeat("/none:", 500) + s.Path("state")}})
		}, []string{"gpu-socket | mount:/x | lowerdir=" + strings.Repeat("/none:", 500) + "T/state | never"}},
		{"a type of overlay with options of a bind mount, which runc binds", func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/x", Type: "overlay", Source: s.Path("state"), Options: []string{"rbind"}})
		}, socket("T/state")},
		{"a type of proc with options of a bind mount", func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/x", Type: "proc", Source: s.Path("run"), Options: []string{"bind"}})
		}, socket("T/run")},
		{"a type of tmpfs with ids of its own, whose source crun clones", func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/x", Type: "tmpfs", Source: s.Path("run"),
				Options: []string{"idmap=uids=0-0-1;gids=0-0-1"}})
		}, socket("T/run")},
		{"the same, and all below", func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/x", Type: "mqueue", Source: s.Path("run"), Options: []string{"ridmap"}})
		}, socket("T/run")},
		{"the same, its ids in fields", func(s *scene) {
			ids := []specs.LinuxIDMapping{{Size: 1}}
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/x", Type: "sysfs", Source: s.Path("run"), UIDMappings: ids, GIDMappings: ids})
		}, socket("T/run")},
		{"no type, with options of an overlay, which nobody mounts", func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/x", Type: "none", Options: []string{"lowerdir=" + s.Path("state")}})
		}, nil},
		{"another stacked file system", func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/x", Type: "ecryptfs", Source: s.Path("state")})
		}, socket("T/state")},
		{"another stacked file system by an option", func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/x", Type: "aufs", Source: "none",
				Options: []string{"br:/usr=rr:" + s.Path("state")}})
		}, []string{"gpu-socket | mount:/x | br:/usr=rr:T/state | never"}},
		{"a network file system", func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/x", Type: "nfs", Source: "server:/export",
				Options: []string{"addr=10.0.0.1", "vers=4"}})
		}, nil},
		{"through an own link that leads nowhere yet", func(s *scene) {
			s.bind(s.Link("run/later", "link"), "/x")
		}, socket("T/link")},
		{"through a link in the middle that leads nowhere yet", func(s *scene) {
			s.bind(s.Link("run/later", "link")+"/a/b", "/x")
		}, socket("T/link/a/b")},
		{"a path of thousands of directories below it", func(s *scene) {
			s.bind(s.Path("run")+strings.Repeat("/a", 1500), "/x")
		}, socket("T/run" + strings.Repeat("/a", 1500))},
		{"a path that is longer than paths can be", func(s *scene) {
			s.bind(s.Path("run")+strings.Repeat("/a", 5000), "/x")
		}, socket("T/run" + strings.Repeat("/a", 5000))},
		{"a root file system in run_dir", func(s *scene) {
			s.spec.Root = &specs.Root{Path: s.Mkdir("run/x")}
		}, []string{"gpu-socket | root | T/run/x | never"}},
		{"a file called control", func(s *scene) { s.bind(s.Touch("bundle/control"), "/x") }, nil},
	})
}

func TestVolumeMountRequests(t *testing.T) {
	mount := func(destination string) func(*scene) {
		return func(s *scene) { s.bind("/dev/null", destination) }
	}
	check(t, []row{
		{"one GPU", mount("/var/run/nvidia-container-devices/GPU-a"), []string{
			"visible-devices-outside-grant | mount:/var/run/nvidia-container-devices/GPU-a | GPU-a | " +
				"gpus=GPU-a | -mount:/var/run/nvidia-container-devices/GPU-a"}},
		{"all GPUs, under /run", mount("/run/nvidia-container-devices/all"), []string{
			"visible-devices-all | mount:/run/nvidia-container-devices/all | all | gpus=all | " +
				"-mount:/run/nvidia-container-devices/all"}},
		{"the missing slash of NVIDIA's prefix", mount("/var/run/nvidia-container-devicesX/1"), []string{
			"visible-devices-outside-grant | mount:/var/run/nvidia-container-devicesX/1 | X/1 | gpus=X/1 | " +
				"-mount:/var/run/nvidia-container-devicesX/1"}},
		{"a path with //", mount("/var/run//nvidia-container-devices//0/"), []string{
			"visible-devices-outside-grant | mount:/var/run//nvidia-container-devices//0/ | 0 | gpus=0 | " +
				"-mount:/var/run//nvidia-container-devices//0/"}},
		{"a relative destination", mount("var/run/nvidia-container-devices/0"), []string{
			"visible-devices-outside-grant | mount:var/run/nvidia-container-devices/0 | 0 | gpus=0 | " +
				"-mount:var/run/nvidia-container-devices/0"}},
		{"a CDI device", mount("/var/run/nvidia-container-devices/cdi/nvidia.com/gpu/0"), []string{
			"visible-devices-outside-grant | mount:/var/run/nvidia-container-devices/cdi/nvidia.com/gpu/0 " +
				"| cdi/nvidia.com/gpu/0 | gpus=cdi/nvidia.com/gpu/0 | " +
				"-mount:/var/run/nvidia-container-devices/cdi/nvidia.com/gpu/0"}},
		{"the directory itself", mount("/var/run/nvidia-container-devices"), nil},
		{"none", mount("/var/run/nvidia-container-devices/none"), nil},
		{"another directory", mount("/var/run/secrets/kubernetes.io/serviceaccount"), nil},
	})
}

// What runs on every node and has to do with no GPU: it starts, whatever it mounts.
func TestHarmlessContainersHitNothing(t *testing.T) {
	check(t, []row{
		{"node-exporter", func(s *scene) {
			s.spec.Process.User.UID = 65534
			s.bind("/proc", "/host/proc", "ro")
			s.bind("/sys", "/host/sys", "ro")
			s.bind("/", "/host/root", "ro", "rslave")
		}, nil},
		{"cAdvisor", func(s *scene) {
			s.mknod("dev/nvidia0", 195, 0)
			s.bind("/", "/rootfs", "ro")
			s.bind("/var/run", "/var/run", "ro")
			s.bind("/sys", "/sys", "ro")
			s.bind("/var/lib/docker", "/var/lib/docker", "ro")
			s.bind(s.Path("dev"), "/dev/disk", "ro")
			s.device("/dev/kmsg", "c", 1, 11)
			s.addRules("allow c 1:11 rwm")
		}, nil},
		{"a CNI agent", func(s *scene) {
			s.caps("CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SYS_MODULE", "CAP_SYS_ADMIN", "CAP_MKNOD")
			s.bind("/opt/cni/bin", "/host/opt/cni/bin")
			s.bind("/etc/cni/net.d", "/host/etc/cni/net.d")
			s.bind("/lib/modules", "/lib/modules", "ro")
			s.bind("/run", "/host/run")
			s.bind("/sys/fs/bpf", "/sys/fs/bpf", "rshared")
		}, nil},
		{"a CSI node plugin", func(s *scene) {
			s.mknod("dev/nvidia0", 195, 0)
			s.caps("CAP_SYS_ADMIN")
			s.bind("/var/lib/kubelet/plugins/csi.example", "/csi")
			s.bind("/var/lib/kubelet/pods", "/var/lib/kubelet/pods", "rshared")
			s.bind(s.Path("dev"), "/dev")
			s.addRules("allow b *:* rwm")
		}, nil},
		{"a log collector", func(s *scene) {
			s.bind("/var/log", "/var/log", "ro")
			s.bind("/run/containerd/containerd.sock", "/run/containerd/containerd.sock")
		}, nil},
		{"a virtual machine's launcher", func(s *scene) {
			s.device("/dev/kvm", "c", 10, 232)
			s.device("/dev/net/tun", "c", 10, 200)
			s.device("/dev/dri/renderD129", "c", 226, 129)
			s.addRules("allow c 10:232 rwm", "allow c 226:129 rwm")
		}, nil},
		{"a CUDA image told to see nothing", func(s *scene) {
			s.env("CUDA_VERSION=12.4.1", "NVIDIA_REQUIRE_CUDA=cuda>=12.4", "NVIDIA_VISIBLE_DEVICES=all",
				"NVIDIA_DRIVER_CAPABILITIES=compute,utility", "NVIDIA_VISIBLE_DEVICES=void")
		}, nil},
	})
}
