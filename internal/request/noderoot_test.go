package request

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

func TestMountsThatMakeRoot(t *testing.T) {
	bind := func(source string, options ...string) func(*scene) {
		return func(s *scene) { s.bind(strings.Replace(source, "T", s.Dir, 1), "/x", options...) }
	}
	rootIs := func(propagation string, mount func(*scene)) func(*scene) {
		return func(s *scene) {
			s.spec.Linux.RootfsPropagation = propagation
			mount(s)
		}
	}
	mount := func(m specs.Mount) func(*scene) {
		m.Destination = "/x"
		return func(s *scene) { s.spec.Mounts = append(s.spec.Mounts, m) }
	}
	for _, c := range []struct {
		name  string
		setup func(*scene)
		want  bool
	}{
		{"no mount of the host's", func(*scene) {}, false},
		{"host /", bind("/"), true},
		{"host /, read only", bind("/", "ro"), true},
		{"the cgroup file system", bind("T/sys/fs/cgroup"), true},
		{"a cgroup", bind("T/sys/fs/cgroup/system.slice"), true},
		{"a parent of the cgroup file system", bind("T/sys"), true},
		{"a parent, read only at its top", bind("T/sys", "ro"), true},
		{"a parent, read only all the way down", bind("T/sys", "rro"), false},
		{"the cgroup file system, read only", func(s *scene) {
			s.Touch("sys/fs/cgroup/cgroup.controllers")
			bind("T/sys/fs/cgroup", "ro")(s)
		}, false},
		{"the file systems of version 1, read only at their top", bind("T/sys/fs/cgroup", "ro"), true},
		{"the file systems of version 1, read only all the way down", bind("T/sys/fs/cgroup", "rro"), false},
		{"the top of version 1 alone, read only", mount(specs.Mount{
			Type: "bind", Source: "/sys/fs/cgroup", Options: []string{"bind", "ro"}}), false},
		{"one controller of version 1, read only", bind("T/sys/fs/cgroup/devices", "ro"), false},
		{"a writable cgroup mount of its own", mount(specs.Mount{Type: "cgroup2", Source: "cgroup"}), true},
		{"a writable mount of version 1", mount(specs.Mount{Type: "cgroup", Source: "cgroup"}), true},
		{"a writable sysfs", mount(specs.Mount{Type: "sysfs", Source: "sysfs"}), true},
		{"a read-only sysfs", mount(specs.Mount{Type: "sysfs", Source: "sysfs", Options: []string{"ro"}}),
			false},
		{"containerd's socket", bind("/run/containerd/containerd.sock"), true},
		{"Docker's socket, read only, by its old path", bind("/var/run/docker.sock", "ro"), true},
		{"CRI-O's socket", bind("/run/crio/crio.sock", "ro"), true},
		{"Podman's socket", bind("/run/podman/podman.sock"), true},
		{"a directory with Podman's socket", bind("/run/podman", "ro"), true},
		{"CRI-O's socket, alone and read only", mount(specs.Mount{
			Type: "bind", Source: "/run/crio/crio.sock", Options: []string{"bind", "ro"}}), true},
		{"CRI-O's socket, read only all the way down", bind("/run/crio/crio.sock", "rro"), true},
		{"a socket that is mounted as a file of the driver",
			mount(specs.Mount{Type: "bind", Source: "/run/crio/crio.sock", Options: grant.DriverFileOptions}),
			true},
		{"a file of the driver, which nobody looks at", func(s *scene) {
			s.node.Files = driverOf("/run/crio/crio.sock")
			mount(specs.Mount{Type: "bind", Source: "/run/crio/crio.sock",
				Options: grant.DriverFileOptions})(s)
		}, false},
		{"NRI's socket", bind("/run/nri/nri.sock"), true},
		{"systemd's own socket", bind("/run/systemd/private"), true},
		{"the system bus", bind("/run/dbus/system_bus_socket", "ro"), true},
		{"another daemon's socket", bind("/run/gssproxy.sock"), false},
		{"the kubelet's plugins", bind("/var/lib/kubelet/plugins"), true},
		{"one plugin's own directory", bind("/var/lib/kubelet/plugins/csi.example"), false},
		{"the kubelet's device plugins", bind("/var/lib/kubelet/device-plugins", "ro"), true},
		{"the socket among them", bind("/var/lib/kubelet/device-plugins/kubelet.sock"), true},
		{"what the kubelet tells monitors", bind("/var/lib/kubelet/pod-resources"), false},
		{"the kubelet's directory", bind("/var/lib/kubelet"), true},
		{"one pod's directory", bind("/var/lib/kubelet/pods/u/volumes"), false},
		{"the manifests of static pods", bind("/etc/kubernetes/manifests"), true},
		{"a parent of state_dir and run_dir", bind("T"), true},
		{"a parent of them, read only", bind("T", "rro"), true},
		{"/dev", bind("T/dev"), false},
		{"/etc, read only", bind("/etc", "ro"), false},
		{"/etc", bind("/etc"), true},
		{"one file of /etc", bind("/etc/localtime"), false},
		{"the configuration's directory", bind("/etc/gpuledger"), true},
		{"the configuration", bind("/etc/gpuledger/config.toml"), true},
		{"the configuration, read only", bind("/etc/gpuledger/config.toml", "ro"), false},
		{"a configuration elsewhere", func(s *scene) {
			s.node.Config = s.Path("conf/gpu.toml")
			s.bind(s.Mkdir("conf"), "/x")
		}, true},
		{"the same, read only", func(s *scene) {
			s.node.Config = s.Path("conf/gpu.toml")
			s.bind(s.Mkdir("conf"), "/x", "ro")
		}, false},
		{"what a cluster sets, beside it", func(s *scene) {
			s.node.Config = s.Path("conf/gpu.toml")
			s.Mkdir("conf")
			s.bind(s.Touch("conf/cluster.toml"), "/x")
		}, true},
		{"our program", func(s *scene) {
			s.node.Program = "/srv/gpuledger-runtime"
			s.bind("/srv/gpuledger-runtime", "/x")
		}, true},
		{"its directory", func(s *scene) {
			s.node.Program = "/srv/gpuledger-runtime"
			s.bind("/srv", "/x")
		}, true},
		{"the real runtime", func(s *scene) {
			s.node.Policy.Runtime.Path = []string{"runc", "/srv/bin/crun"}
			s.bind("/srv/bin/crun", "/x")
		}, true},
		{"the node's programs", bind("/usr/bin"), true},
		{"the node's programs, read only", bind("/usr/bin", "ro"), false},
		{"one program", bind("/usr/bin/kubectl"), false},
		{"the node's libraries", bind("/usr/lib/modules"), false},
		{"CDI specifications", bind("/etc/cdi"), true},
		{"CDI specifications, by the old path", bind("/var/run/cdi"), true},
		{"one of them", bind("/etc/cdi/nvidia.yaml"), true},
		{"CDI specifications, read only", bind("/etc/cdi", "ro"), false},
		{"hooks of engines", bind("/usr/share/containers/oci/hooks.d"), true},
		{"hooks of the administrator", bind("/etc/containers/oci/hooks.d"), true},
		{"containerd's configuration", bind("/etc/containerd/config.toml"), true},
		{"/etc, read only", bind("/etc", "ro"), false},
		{"/etc, read only and shared", rootIs("shared", bind("/etc", "ro", "rshared")), true},
		{"/etc, read only and shared, the root not", bind("/etc", "ro", "shared"), true},
		{"/etc, read only, shared as the root is", rootIs("rshared", bind("/etc", "ro", "rro")), true},
		{"/etc, read only, shared as all but the root is", rootIs("private", bind("/etc", "ro")), true},
		{"/etc, read only, private in a shared root", rootIs("shared", bind("/etc", "ro", "rprivate")),
			false},
		{"/etc, read only, a slave in a shared root", rootIs("rshared", bind("/etc", "ro", "rslave")), false},
		{"/etc, read only and private before it is shared", bind("/etc", "ro", "private", "shared"), false},
		{"/etc, read only, the root a slave", rootIs("rslave", bind("/etc", "ro")), false},
		{"/etc, read only, the root private", rootIs("rprivate", bind("/etc", "ro")), false},
		{"shared file systems below, the top private", rootIs("shared", bind("T/sys", "rro", "private")),
			true},
		{"shared file systems below, the top a slave", bind("T/sys", "rro", "slave"), true},
		{"file systems below, private", rootIs("shared", bind("T/sys", "rro", "rprivate")), false},
		{"a directory of one's own, shared", rootIs("shared", bind("/data", "ro", "rshared")), false},
		{"network plugins, which the engine runs", bind("/opt/cni/bin"), true},
		{"units of systemd", bind("/etc/systemd/system"), true},
		{"containerd's state", bind("/run/containerd"), true},
		{"bundles of its containers", bind("/run/containerd/io.containerd.runtime.v2.task/k8s.io"), true},
		{"a sandbox's files there", bind("/run/containerd/io.containerd.grpc.v1.cri/sandboxes/s/shm"), false},
		{"runc's state", bind("/run/runc"), true},
		{"runc's state of one container", bind("/run/runc/c1"), true},
		{"runc's state, read only", bind("/run/runc", "ro"), false},
		{"crun's state", bind("/run/crun"), true},
		{"Podman's and CRI-O's bundles", bind("/run/containers/storage/overlay-containers"), true},
		{"another container's bundle", bind("/run/containers/storage/overlay-containers/other/userdata"),
			true},
		{"another container's bundle, read only",
			bind("/run/containers/storage/overlay-containers/other/userdata", "ro"), false},
		{"its own bundle", func(s *scene) {
			s.caller.Container.Bundle = "/run/containers/storage/overlay-containers/mine/userdata"
			bind("/run/containers/storage/overlay-containers/mine/userdata")(s)
		}, false},
		{"what CRI-O and Podman mount of one",
			bind("/run/containers/storage/overlay-containers/sandbox/userdata/resolv.conf"), false},
		{"its sandbox's shared memory",
			bind("/run/containers/storage/overlay-containers/sandbox/userdata/shm"), false},
		{"Podman's bundles on disk", bind("/var/lib/containers/storage/overlay-containers"), true},
		{"Podman's layers", bind("/var/lib/containers/storage/overlay"), true},
		{"a mounted image of Podman's", bind("/var/lib/containers/storage/overlay/l1/merged"), false},
		{"all volumes of Podman's", bind("/var/lib/containers/storage/volumes"), true},
		{"Docker's containers", bind("/var/lib/docker/containers"), true},
		{"one of Docker's containers", bind("/var/lib/docker/containers/c1"), true},
		{"what Docker mounts of one", bind("/var/lib/docker/containers/c1/resolv.conf"), false},
		{"the shared memory of one", bind("/var/lib/docker/containers/c1/mounts/shm"), false},
		{"Docker's layers", bind("/var/lib/docker/overlay2"), true},
		{"containerd's snapshots",
			bind("/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots"), true},
		{"containerd's snapshotter", bind("/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs"),
			true},
		{"containerd's metadata", bind("/var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db"), true},
		{"all pods", bind("/var/lib/kubelet/pods"), true},
		{"all pods, read only", bind("/var/lib/kubelet/pods", "ro"), false},
		{"a whole pod", bind("/var/lib/kubelet/pods/u"), true},
		{"a volume of a pod", bind("/var/lib/kubelet/pods/u/volumes/kubernetes.io~empty-dir/v"), false},
		{"a pod's hosts file", bind("/var/lib/kubelet/pods/u/etc-hosts"), false},
		{"the kubelet's configuration", bind("/var/lib/kubelet/config.yaml"), true},
		{"runc where it always is", bind("/usr/sbin/runc"), true},
		{"runc, read only", bind("/usr/sbin/runc", "ro"), false},
		{"a file of the name elsewhere", bind("/data/runc"), false},
		{"containerd's shim", bind("/usr/bin/containerd-shim-runc-v2"), true},
		{"the monitor of Podman and CRI-O", bind("/usr/bin/conmon"), true},
		{"the real runtime, that a link leads to", func(s *scene) {
			s.Mkdir("opt")
			s.Touch("opt/crun-1.2")
			s.node.Policy.Runtime.Path = []string{s.Link("crun-1.2", "opt/crun")}
			s.bind(s.Path("opt/crun-1.2"), "/x")
		}, true},
		{"Docker's state", bind("/var/lib/docker"), true},
		{"Docker's state, read only", bind("/var/lib/docker", "ro"), false},
		{"a volume of Docker's", bind("/var/lib/docker/volumes/v/_data"), false},
		{"Podman's state", bind("/var/lib/containers"), true},
		{"Podman's storage", bind("/var/lib/containers/storage"), true},
		{"a volume of Podman's", bind("/var/lib/containers/storage/volumes/v/_data"), false},
		{"CRI-O's state", bind("/run/crio"), true},
		{"/var/lib", bind("/var/lib"), true},
		{"a directory of one's own", bind("/data"), false},
		{"host /proc", bind("/proc"), true},
		{"host /proc, read only", bind("/proc", "ro"), true},
		{"host /proc, read only all the way down", bind("/proc", "rro"), true},
		{"host /proc, read only, as nobody", func(s *scene) { bind("/proc", "ro")(s); s.nobody() }, true},
		{"host /proc, read only, in a user namespace that has the node's root in it", func(s *scene) {
			bind("/proc", "ro")(s)
			s.caps("CAP_SYS_PTRACE")
			s.userNamespace()
			s.spec.Linux.UIDMappings = []specs.LinuxIDMapping{{ContainerID: 0, HostID: 0, Size: 1}}
		}, false},
		{"host /proc, read only, in the node's own user namespace, joined", func(s *scene) {
			bind("/proc", "ro")(s)
			s.node.Host.Proc = "/proc"
			s.spec.Linux.Namespaces = append(s.spec.Linux.Namespaces,
				specs.LinuxNamespace{Type: specs.UserNamespace, Path: "/proc/self/ns/user"})
		}, true},
		{"a process's directory, read only", bind("/proc/1", "ro"), true},
		{"a file of a process", bind("/proc/1/status", "ro"), false},
		{"the network of a process", bind(fmt.Sprintf("/proc/%d/ns/net", os.Getppid())), false},
		{"a file of /proc", bind("/proc/meminfo", "ro"), false},
		{"host /proc/sys", bind("/proc/sys"), true},
		{"network settings", bind("/proc/sys/net"), false},
		{"a mount that makes /sys writable again", func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/sys", Type: "none", Options: []string{"remount", "rw"}})
		}, true},
		{"an overlay whose writes go to what governs the node",
			mount(specs.Mount{Type: "overlay", Options: []string{
				"lowerdir=/usr", "upperdir=/etc/cdi", "workdir=/w"}}), true},
		{"an overlay over it, which only reads", mount(specs.Mount{
			Type: "overlay", Options: []string{"lowerdir=/etc/cdi", "upperdir=/u", "workdir=/w"}}), false},
		{"an overlay over a parent of our directories", func(s *scene) {
			mount(specs.Mount{Type: "overlay", Options: []string{"lowerdir=" + s.Dir}})(s)
		}, true},
		{"host / in a user namespace", func(s *scene) { bind("/")(s); s.userNamespace() }, false},
		{"host / in a user namespace that has the node's root in it", func(s *scene) {
			bind("/")(s)
			s.userNamespace()
			s.spec.Linux.UIDMappings = []specs.LinuxIDMapping{
				{ContainerID: 1, HostID: 100000, Size: 65536}, {ContainerID: 0, HostID: 0, Size: 1}}
		}, true},
		{"host / in a user namespace of other users", func(s *scene) {
			bind("/")(s)
			s.userNamespace()
			s.spec.Linux.UIDMappings = []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}}
		}, false},
		{"host / in a joined user namespace that has the node's root in it",
			func(s *scene) { joined(s, 0); bind("/")(s) }, true},
		{"the same, and maps that say otherwise", func(s *scene) {
			joined(s, 0)
			bind("/")(s)
			s.spec.Linux.UIDMappings = others
		}, true},
		{"host / in a joined user namespace of other users", func(s *scene) {
			joined(s, 100000)
			bind("/")(s)
		}, false},
		{"the same, and maps that say otherwise, which no runtime obeys", func(s *scene) {
			joined(s, 100000)
			bind("/")(s)
			s.spec.Linux.UIDMappings = []specs.LinuxIDMapping{{ContainerID: 0, HostID: 0, Size: 1}}
		}, false},
		{"host / in a joined user namespace that tells nothing", func(s *scene) {
			joined(s, 0)
			s.node.Host.Proc = s.Path("proc")
			bind("/")(s)
		}, true},
		{"the same, as an engine that pins one describes it", func(s *scene) {
			joined(s, 100000)
			s.node.Host.Proc = s.Path("proc")
			bind("/")(s)
			s.spec.Linux.UIDMappings = others
		}, false},
		{"host / in a user namespace that is not there", func(s *scene) {
			s.spec.Linux.Namespaces = append(s.spec.Linux.Namespaces,
				specs.LinuxNamespace{Type: specs.UserNamespace, Path: "/nowhere"})
			bind("/")(s)
		}, true},
		{"host / in the node's own user namespace, joined", func(s *scene) {
			bind("/")(s)
			s.node.Host.Proc = "/proc"
			s.spec.Linux.Namespaces = append(s.spec.Linux.Namespaces,
				specs.LinuxNamespace{Type: specs.UserNamespace, Path: "/proc/self/ns/user"})
		}, true},
		{"/etc as nobody", func(s *scene) { bind("/etc")(s); s.nobody() }, false},
		{"host / as nobody, with /proc in it", func(s *scene) { bind("/")(s); s.nobody() }, true},
		{"/etc as nobody with CAP_DAC_OVERRIDE", func(s *scene) {
			bind("/etc")(s)
			s.nobody()
			s.caps("CAP_DAC_OVERRIDE")
		}, true},
		{"/etc as nobody whose image has a setuid program, perhaps",
			func(s *scene) { bind("/etc")(s); s.nobody(); s.spec.Process.NoNewPrivileges = false }, true},
		{"/etc as nobody in root's group", func(s *scene) {
			bind("/etc")(s)
			s.nobody()
			s.spec.Process.User.GID = 0
		}, true},
		{"/etc as nobody with root's group beside", func(s *scene) { bind("/etc")(s); s.nobody(5, 0) }, true},
		{"/etc as nobody with a group of no guard's", func(s *scene) {
			bind("/etc")(s)
			s.nobody(64000)
		}, false},
		{"a parent of our directories as nobody of their group", func(s *scene) {
			bind("T")(s)
			s.Must(os.Chown(s.Path("state"), 0, 64000))
			s.nobody(64000)
		}, true},
		{"a parent of our directories as nobody", func(s *scene) { bind("T")(s); s.nobody() }, false},
		{"the cgroup file system as nobody", func(s *scene) {
			bind("T/sys/fs/cgroup")(s)
			s.nobody()
		}, false},
		{"a writable cgroup mount of its own as nobody", func(s *scene) {
			mount(specs.Mount{Type: "cgroup2", Source: "cgroup"})(s)
			s.nobody()
		}, false},
		{"an ordinary volume as a user without noNewPrivileges, in root's group", func(s *scene) {
			s.bind(s.Mkdir("data"), "/x")
			s.spec.Process.User = specs.User{UID: 1000, GID: 0}
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			c.setup(s)
			r := s.find()
			way := slices.ContainsFunc(r.NodeRoot, func(w string) bool {
				return w == "mount:/x" || w == "mount:/sys"
			})
			if way != c.want || len(r.Hits) > 0 {
				t.Errorf("node-root %v, hits %v", r.NodeRoot, r.Hits)
			}
		})
	}
}

// A capability in any set can be raised to the effective one, by the process or by what it runs.
func TestACapabilityCountsInEachSet(t *testing.T) {
	admin := []string{"cap_sys_admin"} // in any case: runtimes disagree on it
	for name, sets := range map[string]specs.LinuxCapabilities{
		"bounding": {Bounding: admin}, "effective": {Effective: admin}, "permitted": {Permitted: admin},
		"inheritable": {Inheritable: admin}, "ambient": {Ambient: admin}} {
		s := newScene(t)
		s.spec.Process.Capabilities = &sets
		if r := s.find(); !r.SysAdmin || !slices.Contains(r.NodeRoot, "capability:CAP_SYS_ADMIN") {
			t.Errorf("%s: CAP_SYS_ADMIN %v, node-root %v", name, r.SysAdmin, r.NodeRoot)
		}
	}
}

// TestNamesOfACapability are those that crun takes by libcap's cap_from_name.
func TestNamesOfACapability(t *testing.T) {
	for name, want := range map[string]bool{
		"CAP_SYS_ADMIN": true, "Cap_Sys_Admin": true, "CAP_SYS_ADMIN:": true, "CAP_SYS_ADMIN.": true,
		"CAP_SYS_ADMIN ": true, "CAP_SYS_ADMIN2": true, "CAP_SYS_ADMIN-x": true,
		"CAP_SYS_ADMIN\xff": true,
		"21":                true, "21.": true, "21cap": true, "21_0": true, "025": true, "0258": true,
		"00000000000000000000000000025": true, "0x15": true, "0X15": true, "0x00015z": true,
		"0b10101": true,

		"": false, " CAP_SYS_ADMIN": false, "SYS_ADMIN": false, "CAP_SYS_ADMI": false,
		"CAP_SYS_ADMINX": false, "CAP_SYS_ADMIN_": false, "CAP_21": false, "+21": false, "-21": false,
		" 21": false, "2_1": false, "021": false, "029": false, "0x21": false, "210": false, "0": false,
		"0x": false, "29": false,
		"4294967317": false, "18446744073709551637": false, // 21 more than what fits
	} {
		s := newScene(t)
		s.caps("CAP_CHOWN", name)
		r := s.find()
		if r.SysAdmin != want || slices.Contains(r.NodeRoot, "capability:CAP_SYS_ADMIN") != want {
			t.Errorf("%q: CAP_SYS_ADMIN %v, node-root %v", name, r.SysAdmin, r.NodeRoot)
		}
	}
}

// TestWhatAMountLetsBeWritten: at its top, and to file systems that are mounted below.
func TestWhatAMountLetsBeWritten(t *testing.T) {
	for options, want := range map[string][2]bool{"rbind": {true, true}, "rbind,ro": {false, true},
		"rbind,rro": {false, false}, "bind,ro": {false, false}, "bind": {true, false},
		"bind,ro,rw": {true, false}, "bind,rw,ro": {false, false}, "rbind,rro,rw": {false, false},
		"rbind,rro,rrw": {true, true}, "bind,ro,rrw": {true, false}, "bind,rro,ro": {false, false},
		"ridmap,ro": {false, false}} {
		top, below := writable(&specs.Mount{Options: strings.Split(options, ",")})
		if got := [2]bool{top, below}; got != want {
			t.Errorf("%s: writable at the top and below: %v, want %v", options, got, want)
		}
	}
}

// A GPU is a directory of sysfs, too.
func TestWritableSysfsOfDevices(t *testing.T) {
	for source, want := range map[string]bool{"/sys/devices": true, "/sys": true, "/sys/devices/system": true,
		"/sys/bus": true, "/sys/bus/pci": true, "/sys/bus/pci/drivers": true, "/sys/bus/pci/rescan": true,
		"/sys/bus/pci/devices": true, "/sys/module": true, "/proc/bus/pci": true, "/proc/bus": true,
		"/sys/fs": false, "/sys/class": false, "/sys/kernel/mm": false, "/sys/block": false,
		"/proc/sys/net": false, "/proc/bus/input": false} {
		for _, option := range []string{"rw", "ro"} {
			s := newScene(t)
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/x", Type: "bind", Source: source, Options: []string{"bind", option}})
			if r := s.find(); slices.Contains(r.NodeRoot, "mount:/x") != (want && option == "rw") ||
				len(r.Hits) > 0 {
				t.Errorf("%s %s: node-root %v, hits %v", source, option, r.NodeRoot, r.Hits)
			}
		}
	}
}

func TestOtherWaysThatMakeRoot(t *testing.T) {
	for _, c := range []struct {
		name  string
		setup func(*scene)
		want  []string
	}{
		{"none", func(*scene) {}, nil},
		{"the node's mounts", func(s *scene) { s.spec.Linux.Namespaces = s.spec.Linux.Namespaces[:1] },
			[]string{"namespace:mount"}},
		{"another's mounts", func(s *scene) { s.spec.Linux.Namespaces[1].Path = "/proc/1/ns/mnt" },
			[]string{"namespace:mount"}},
		{"the node's processes", func(s *scene) { s.spec.Linux.Namespaces = s.spec.Linux.Namespaces[1:] },
			[]string{"namespace:pid"}},
		{"the node's processes, for a pod", func(s *scene) {
			s.spec.Linux.Namespaces = s.spec.Linux.Namespaces[1:]
			s.pod()
		}, []string{"namespace:pid"}},
		{"the node's processes, of a user without capabilities", func(s *scene) {
			s.spec.Linux.Namespaces = s.spec.Linux.Namespaces[1:]
			s.spec.Process.User = specs.User{UID: 1000, GID: 1000}
			s.spec.Process.NoNewPrivileges = true
		}, []string{"namespace:pid"}},
		{"the node's processes by joining", func(s *scene) {
			s.node.Host.Proc = "/proc"
			s.spec.Linux.Namespaces[0].Path = "/proc/self/ns/pid"
		}, []string{"namespace:pid"}},
		{"the node's processes by joining, for a pod", func(s *scene) {
			s.node.Host.Proc = "/proc"
			s.spec.Linux.Namespaces[0].Path = "/proc/self/ns/pid"
			s.pod()
		}, []string{"namespace:pid"}},
		{"another container's processes", func(s *scene) {
			s.node.Host.Proc = "/proc"
			s.spec.Linux.Namespaces[0].Path = "/proc/self/ns/net" // any that is not the node's of pids
		}, []string{"namespace:pid"}},
		{"the processes of its pod (shareProcessNamespace)", func(s *scene) {
			s.node.Host.Proc = "/proc"
			s.spec.Linux.Namespaces[0].Path = "/proc/self/ns/net"
			s.pod()
		}, nil},
		{"the node's processes in a user namespace", func(s *scene) {
			s.spec.Linux.Namespaces = s.spec.Linux.Namespaces[1:]
			s.userNamespace()
		}, nil},
		{"the node's user namespace by joining", func(s *scene) {
			s.node.Host.Proc = "/proc"
			s.caps("CAP_SYS_MODULE")
			s.spec.Linux.Namespaces = []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.UserNamespace, Path: "/proc/self/ns/user"}}
		}, []string{"namespace:mount", "capability:CAP_SYS_MODULE"}},
		{"CAP_SYS_ADMIN", func(s *scene) { s.caps("CAP_SYS_ADMIN") }, []string{"capability:CAP_SYS_ADMIN"}},
		{"CAP_SYS_ADMIN that can only be raised", func(s *scene) {
			s.spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: []string{"CAP_SYS_ADMIN"}}
		}, []string{"capability:CAP_SYS_ADMIN"}},
		{"CAP_SYS_ADMIN in a user namespace", func(s *scene) {
			s.caps("CAP_SYS_ADMIN")
			s.userNamespace()
		}, nil},
		{"what engines give everybody", func(s *scene) {
			s.caps("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_MKNOD", "CAP_NET_RAW",
				"CAP_SETUID", "CAP_SYS_CHROOT")
		}, nil},
		{"kernel modules", func(s *scene) {
			s.caps("CAP_SYS_MODULE")
		}, []string{"capability:CAP_SYS_MODULE"}},
		{"file handles", func(s *scene) {
			s.caps("CAP_DAC_READ_SEARCH")
		}, []string{"capability:CAP_DAC_READ_SEARCH"}},
		{"every disk", func(s *scene) { s.rules("deny a", "allow b *:* rwm") }, []string{"rule:1"}},
		{"every disk of a kind", func(s *scene) { s.rules("deny a", "allow b 253:* rw") },
			[]string{"rule:1"}},
		{"every disk, to read", func(s *scene) { s.rules("deny a", "allow b *:* rm") }, nil},
		{"one disk, as a volume", func(s *scene) { s.rules("deny a", "allow b 8:16 rwm") }, nil},
		{"the device mapper with CAP_SYS_ADMIN", func(s *scene) {
			s.rules("deny a", "allow c 10:236 rw")
			s.caps("CAP_SYS_ADMIN")
		}, []string{"capability:CAP_SYS_ADMIN", "rule:1"}},
		{"the device mapper without", func(s *scene) { s.rules("deny a", "allow c 10:236 rw") }, nil},
		{"all of it in a user namespace", func(s *scene) {
			s.spec.Linux.Namespaces = nil
			s.userNamespace()
			s.caps("CAP_SYS_MODULE", "CAP_SYS_PTRACE")
			s.rules("deny a", "allow b *:* rwm")
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			c.setup(s)
			if r := s.find(); !slices.Equal(r.NodeRoot, c.want) || len(r.Hits) > 0 {
				t.Errorf("node-root %q, want %q; hits %v", r.NodeRoot, c.want, r.Hits)
			}
		})
	}
}

var others = []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}}

// joined has the container join the user namespace of a process, whose root is a user of the node.
func joined(s *scene, root int) {
	s.T.Helper()
	cmd := exec.Command("sleep", "1000")
	maps := []syscall.SysProcIDMap{{ContainerID: 5, HostID: 5, Size: 1},
		{ContainerID: 0, HostID: root, Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER,
		UidMappings: maps, GidMappings: maps}
	if err := cmd.Start(); err != nil {
		s.T.Skipf("misses the right to make user namespaces: %v", err)
	}
	s.T.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	s.node.Host.Proc = "/proc"
	s.spec.Linux.Namespaces = append(s.spec.Linux.Namespaces,
		specs.LinuxNamespace{Type: specs.UserNamespace,
			Path: fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid)})
}
