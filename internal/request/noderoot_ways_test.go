package request

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// fileSystem mounts one of another kind on /x.
func fileSystem(kind, source string, options ...string) func(*scene) {
	return func(s *scene) {
		s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
			Destination: "/x", Type: kind, Source: strings.Replace(source, "T", s.Dir, 1), Options: options})
	}
}

// TestWaysToTheNodesRoot gives all of them, in their order.
func TestWaysToTheNodesRoot(t *testing.T) {
	remount := func(destination string, options ...string) func(*scene) {
		return func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: destination, Type: "none", Options: append([]string{"remount"}, options...)})
		}
	}
	disk := func(s *scene) { s.Must(unix.Mknod(s.Path("disk"), unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0)))) }
	mapsRoot := func(s *scene) {
		s.userNamespace()
		s.spec.Linux.UIDMappings = []specs.LinuxIDMapping{{HostID: 0, Size: 1}}
	}
	namespaces := func(list ...specs.LinuxNamespace) func(*scene) {
		return func(s *scene) { s.spec.Linux.Namespaces = list }
	}
	mnt, pid := specs.LinuxNamespace{Type: specs.MountNamespace},
		specs.LinuxNamespace{Type: specs.PIDNamespace}
	for _, c := range []struct {
		name  string
		setup func(*scene)
		want  string
	}{
		{"none", func(*scene) {}, ""},
		{"a user namespace that has the node's root in it: its capabilities are its own", func(s *scene) {
			mapsRoot(s)
			s.spec.Linux.Namespaces = s.spec.Linux.Namespaces[2:]
			s.caps("CAP_SYS_ADMIN", "CAP_SYS_MODULE")
			s.bind("/", "/x")
		}, "mount:/x"},
		{"the same as nobody, who may become that root", func(s *scene) {
			mapsRoot(s)
			s.nobody()
			s.bind("/", "/x")
		}, "mount:/x"},
		{"a user namespace with an empty map of root", func(s *scene) {
			mapsRoot(s)
			s.spec.Linux.UIDMappings[0].Size = 0
			s.bind("/", "/x")
		}, ""},
		{"a user namespace, and a disk's rule", func(s *scene) {
			mapsRoot(s)
			s.addRules("allow b *:* rw")
		}, "rule:13"},
		{"capabilities", func(s *scene) {
			s.caps("CAP_SYS_MODULE", "CAP_DAC_READ_SEARCH", "CAP_SYS_ADMIN", "CAP_NET_ADMIN")
		},
			"capability:CAP_SYS_MODULE capability:CAP_DAC_READ_SEARCH capability:CAP_SYS_ADMIN"},
		{"no namespaces", namespaces(), "namespace:mount namespace:pid"},
		{"no mount namespace", namespaces(pid), "namespace:mount"},
		{"no pid namespace", namespaces(mnt), "namespace:pid"},
		{"another's mount namespace", namespaces(pid, specs.LinuxNamespace{
			Type: specs.MountNamespace, Path: "/proc/1/ns/mnt"}), "namespace:mount"},
		{"another's pid namespace", namespaces(mnt, specs.LinuxNamespace{
			Type: specs.PIDNamespace, Path: "/none"}), "namespace:pid"},
		{"its pod's pid namespace", func(s *scene) {
			s.pod()
			namespaces(mnt, specs.LinuxNamespace{Type: specs.PIDNamespace, Path: "/none"})(s)
		}, ""},
		{"the node's pid namespace, in a pod", func(s *scene) {
			s.pod()
			s.node.Host.Proc = "/proc"
			namespaces(mnt, specs.LinuxNamespace{Type: specs.PIDNamespace, Path: "/proc/self/ns/pid"})(s)
		}, "namespace:pid"},

		{"all disks", func(s *scene) { s.addRules("allow b *:* rw") }, "rule:13"},
		{"all of a major", func(s *scene) { s.addRules("allow b 8:* w") }, "rule:13"},
		{"the first of all majors", func(s *scene) { s.addRules("allow b *:0 w") }, "rule:13"},
		{"all disks, to read", func(s *scene) { s.addRules("allow b *:* r") }, ""},
		{"all disks, denied", func(s *scene) { s.addRules("deny b *:* rwm") }, ""},
		{"one disk", func(s *scene) { s.addRules("allow b 8:0 rw") }, ""},
		{"all terminals", func(s *scene) { s.addRules("allow c 136:* rw") }, ""},
		{"the device mapper", func(s *scene) { s.addRules("allow c 10:236 rw"); s.caps("CAP_SYS_ADMIN") },
			"capability:CAP_SYS_ADMIN rule:13"},
		{"the device mapper, without the capability", func(s *scene) { s.addRules("allow c 10:236 rw") }, ""},
		{"a disk of its numbers", func(s *scene) { s.addRules("allow b 10:236 rw"); s.caps("CAP_SYS_ADMIN") },
			"capability:CAP_SYS_ADMIN"},
		{"another device of its major", func(s *scene) {
			s.addRules("allow c 10:200 rw")
			s.caps("CAP_SYS_ADMIN")
		}, "capability:CAP_SYS_ADMIN"},
		{"a device of its minor", func(s *scene) { s.addRules("allow c 11:236 rw"); s.caps("CAP_SYS_ADMIN") },
			"capability:CAP_SYS_ADMIN"},

		{"the node's root as its own", func(s *scene) { s.spec.Root = &specs.Root{Path: "/"} }, "root"},
		{"a parent of the ledger as its own root", func(s *scene) {
			s.spec.Root = &specs.Root{Path: s.Dir}
		}, "root"},
		{"an image as its own root", (*scene).rooted, ""},
		{"the node's root as its own, as nobody", func(s *scene) {
			s.spec.Root = &specs.Root{Path: "/"}
			s.nobody()
		}, ""},

		{"/sys, writable again", remount("/sys", "rw"), "mount:/sys"},
		{"what is in /sys, writable again", remount("/sys/fs/cgroup"), "mount:/sys/fs/cgroup"},
		{"/proc, writable again", remount("/proc/sys", "rw"), "mount:/proc/sys"},
		{"/proc, read only once more", remount("/proc/sys", "ro"), ""},
		{"a cgroup file system, whose source is a name", fileSystem("cgroup2", "/", "ro"), ""},
		{"a disk, as a volume of blocks", func(s *scene) { disk(s); s.bind(s.Path("disk"), "/x") }, ""},
		{"a parent of the cgroups, mounted alone", func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/x", Type: "bind", Source: s.Path("sys"), Options: []string{"bind"}})
		}, ""},
		{"cgroups as nobody in root's group", func(s *scene) {
			fileSystem("cgroup2", "cgroup")(s)
			s.nobody()
			s.spec.Process.User.GID = 0
		}, "mount:/x"},
		{"cgroups as nobody with root's group beside", func(s *scene) {
			fileSystem("cgroup2", "cgroup")(s)
			s.nobody(0)
		}, "mount:/x"},
		{"a program", func(s *scene) { s.bind("/usr/local/sbin/conmon", "/x") }, "mount:/x"},
		{"an overlay over the ledger as nobody of its group", func(s *scene) {
			s.Must(os.Chown(s.Path("state"), 0, 64000))
			s.nobody(64000)
			fileSystem("overlay", "overlay", "lowerdir=T")(s)
			s.spec.Mounts[4].Options[0] = "lowerdir=" + s.Dir
		}, "mount:/x"},
		{"a parent of the ledger as nobody, in its group alone", func(s *scene) {
			s.Must(os.Chown(s.Path("state"), 0, 64000))
			s.nobody()
			s.spec.Process.User.GID = 64000
			s.bind(s.Dir, "/x")
		}, "mount:/x"},
		{"another file system as nobody of a disk's group", func(s *scene) {
			disk(s)
			fileSystem("ext4", "T/disk")(s)
			s.nobody(6)
		}, ""},
		{"the cgroups of version 2", func(s *scene) {
			s.Touch("sys/fs/cgroup/cgroup.controllers")
			s.bind(s.Path("sys/fs/cgroup"), "/x")
		}, "mount:/x"},
		{"the cgroups of version 2, read only", func(s *scene) {
			s.Touch("sys/fs/cgroup/cgroup.controllers")
			s.bind(s.Path("sys/fs/cgroup"), "/x", "ro")
		}, ""},
		{"a program as nobody", func(s *scene) { s.bind("/usr/local/sbin/conmon", "/x"); s.nobody() }, ""},
		{"a program, read only", func(s *scene) { s.bind("/usr/local/sbin/conmon", "/x", "ro") }, ""},
		{"another program beside it", func(s *scene) { s.bind("/usr/local/sbin/none-such", "/x") }, ""},
		{"a bundle of the whole node", func(s *scene) {
			s.caller.Container.Bundle = "/"
			s.bind("/run/runc", "/x")
		}, "mount:/x"},
		{"a configuration in a volume of Docker's", func(s *scene) {
			s.node.Config = "/var/lib/docker/volumes/v/_data/config.toml"
			s.bind("/var/lib/docker/volumes/v", "/x")
		}, ""},
		{"CDI specifications, mounted alone", func(s *scene) {
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/x", Type: "bind", Source: "/etc/cdi", Options: []string{"bind"}})
		}, "mount:/x"},
		{"a chain of links without an end", func(s *scene) {
			to := "data"
			for i := range 100 {
				s.Link(to, fmt.Sprintf("l%d", i))
				to = fmt.Sprintf("l%d", i)
			}
			s.bind(s.Path(to), "/x")
		}, ""},
		{"a tmpfs, whose source is a name", func(s *scene) { disk(s); fileSystem("tmpfs", "T/disk")(s) }, ""},
		{"a devtmpfs, whose source is a name", func(s *scene) {
			disk(s)
			fileSystem("devtmpfs", "T/disk")(s)
		}, ""},
		{"the real runtime, by its name", func(s *scene) {
			s.Mkdir("bin")
			s.Must(os.Chmod(s.Touch("bin/tool"), 0o755))
			s.T.(*testing.T).Setenv("PATH", s.Path("bin"))
			s.node.Policy.Runtime.Path = []string{"none-such", "tool"}
			s.bind(s.Path("bin/tool"), "/x")
		}, "mount:/x"},
		{"its own data, writable again", remount("/data", "rw"), ""},
		{"a disk of the node", func(s *scene) { disk(s); fileSystem("ext4", "T/disk")(s) }, "mount:/x"},
		{"a disk of the node, from the bundle on", func(s *scene) {
			disk(s)
			fileSystem("ext4", "../disk")(s)
		}, "mount:/x"},
		{"a disk of the node as nobody", func(s *scene) {
			disk(s)
			fileSystem("ext4", "T/disk")(s)
			s.nobody()
		}, ""},
		{"a file system in a file", func(s *scene) {
			s.Touch("image")
			fileSystem("squashfs", "T/image")(s)
		}, ""},
		{"a server's", fileSystem("nfs", "server:/export"), ""},
		{"an ordinary directory, with a tracer's capability", func(s *scene) {
			s.bind(s.Mkdir("data"), "/x")
			s.caps("CAP_SYS_PTRACE")
		}, ""},
		{"its own bundle among containerd's", func(s *scene) {
			s.caller.Container.Bundle = "/run/containerd/io.containerd.runtime.v2.task/k8s.io/c1"
			s.bind("/run/containerd/io.containerd.runtime.v2.task/k8s.io/c1/rootfs/x", "/x")
		}, ""},
		{"another's beside it", func(s *scene) {
			s.caller.Container.Bundle = "/run/containerd/io.containerd.runtime.v2.task/k8s.io/c1"
			s.bind("/run/containerd/io.containerd.runtime.v2.task/k8s.io/c11", "/x")
		}, "mount:/x"},
		{"a directory again, behind a file of it", func(s *scene) {
			s.bind(s.Touch("file"), "/a")
			s.bind(s.Dir+"/.", "/x")
		}, "mount:/x"},
		{"a parent, behind a file of a directory in it", func(s *scene) {
			s.Mkdir("data")
			s.bind(s.Touch("data/file"), "/a")
			s.bind(s.Dir+"/data/..", "/x")
		}, "mount:/x"},
		{"a directory with a slash, behind a file of it", func(s *scene) {
			s.bind(s.Touch("file"), "/a")
			s.bind(s.Dir+"/", "/x")
		}, "mount:/x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			c.setup(s)
			if got := strings.Join(s.find().NodeRoot, " "); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestFileSystemsAndTheirSources: what a mount of another kind is of, and what its options name.
func TestFileSystemsAndTheirSources(t *testing.T) {
	socket := func(value string) []string { return []string{"gpu-socket | mount:/x | " + value + " | never"} }
	check(t, []row{
		{"one of ours", fileSystem("ecryptfs", "T/state"), socket("T/state")},
		{"one of ours, from the bundle on", fileSystem("ecryptfs", "../state"), socket("../state")},
		{"one of ours, from the root on", func(s *scene) {
			s.spec.Root = &specs.Root{Path: s.Mkdir("r/o/o/t")}
			fileSystem("ecryptfs", "../../../../state")(s)
		}, socket("../../../../state")},
		{"one of ours, from a bundle on that nobody knows", func(s *scene) {
			s.caller.Container.Bundle = ""
			fileSystem("ecryptfs", "../state")(s)
		},
			[]string{"gpu-bind-mount | mount:/x | ../state (" + grant.UnknownTarget + ") | never"}},
		{"a server's, from a bundle on that nobody knows", func(s *scene) {
			s.caller.Container.Bundle = ""
			fileSystem("nfs", "server:/export")(s)
		}, nil},
		{"a layer out of a bundle that nobody knows", func(s *scene) {
			s.caller.Container.Bundle = ""
			fileSystem("overlay", "overlay", "lowerdir=../state")(s)
		},
			[]string{"gpu-bind-mount | mount:/x | lowerdir=../state (" + grant.UnknownTarget + ") | never"}},
		{"none", fileSystem("ecryptfs", ""), nil},
		{"a layer's name in an option of another kind", func(s *scene) {
			s.Link("../run", "bundle/link")
			fileSystem("nfs", "server:/export", "lowerdir=link")(s)
		}, nil},
		{"no layer, of a bundle among ours", func(s *scene) {
			s.caller.Container.Bundle = s.Mkdir("run/bundle")
			fileSystem("overlay", "overlay", "lowerdir=")(s)
		}, nil},
		{"none, of a bundle among ours", func(s *scene) {
			s.caller.Container.Bundle = s.Mkdir("run/bundle")
			fileSystem("ecryptfs", "")(s)
		}, nil},
		{"an option that is no layer", func(s *scene) {
			s.Link("../run", "bundle/link")
			fileSystem("overlay", "overlay", "xino=link")(s)
		}, nil},
		{"a layer that ends in a backslash", fileSystem("overlay", "overlay", `lowerdir=/usr\`), nil},
		{"an overlay's, which the kernel does not look at",
			fileSystem("overlay", "T/state", "lowerdir=/usr"), nil},
		{"a word of an option, which is no path", func(s *scene) {
			s.Link("../run", "bundle/link")
			fileSystem("nfs", "server:/export", "addr=link", "link")(s)
		}, nil},
		{"a layer's", func(s *scene) {
			s.Link("../run", "bundle/link")
			fileSystem("overlay", "overlay", "lowerdir=link")(s)
		}, socket("lowerdir=link")},
		{"two layers of ours, told once", fileSystem("overlay", "overlay",
			"lowerdir=/run/nvidia-mps:/tmp/nvidia-mps", "upperdir=/tmp/nvidia-mps"),
			socket("lowerdir=/run/nvidia-mps:/tmp/nvidia-mps")},
		{"a kernel's, whose source is a name", fileSystem("proc", "T/state"), nil},
		{"a devtmpfs, nothing open", fileSystem("devtmpfs", "T/state"), nil},
	})
}

// TestMountsBehindWhatCannotBeTold: each of them is found, not the first alone.
func TestMountsBehindWhatCannotBeTold(t *testing.T) {
	s := newScene(t)
	s.rooted()
	s.bind(s.Dir, "/a/../mnt")
	s.bind("rootfs/mnt/run", "/x")
	s.bind("rootfs/mnt/run", "/y")
	s.bind("rootfs/mnt/state", "/z")
	var want []string
	for _, at := range []string{"/x | rootfs/mnt/run", "/y | rootfs/mnt/run", "/z | rootfs/mnt/state"} {
		want = append(want, "gpu-bind-mount | mount:"+at+" ("+grant.UnknownTarget+") | never")
	}
	s.wantHits(want...)
}

// TestTheFirstMountIsBehindNone, also where rules open all GPUs: its source in the own root is what
// is there.
func TestTheFirstMountIsBehindNone(t *testing.T) {
	s := newScene(t)
	s.rooted()
	s.spec.Mounts = nil
	s.bind("rootfs/mnt", "/x")
	s.addRules("allow c 195:* rw")
	s.wantHits("gpu-device-rule | rule:13 | c 195:* rw | never | -rule:c 195:*")
}

// TestALongChainOfLinks: it is longer than the kernel follows in one path, and may be shorter when
// the runtime comes to it.
func TestALongChainOfLinks(t *testing.T) {
	s := newScene(t)
	to := "run"
	for i := range 41 {
		s.Link(to, fmt.Sprintf("l%d", i))
		to = fmt.Sprintf("l%d", i)
	}
	s.bind(s.Path(to), "/x")
	s.wantHits("gpu-socket | mount:/x | T/l40 | never")
}

// TestDirectoriesOfDevices: of those with GPUs' nodes in them, where a rule lets all be opened.
func TestDirectoriesOfDevices(t *testing.T) {
	every := "gpu-device-rule | rule:13 | c 195:* rw | never | -rule:c 195:*"
	of := func(dir string, major, minor uint32) func(*scene) {
		return func(s *scene) {
			s.Mkdir(dir)
			s.mknod(dir+"/node", major, minor)
			s.bind(s.Path(dir), "/x")
			s.addRules("allow c 195:* rw")
		}
	}
	check(t, []row{
		{"of sound cards", of("dev/snd", 116, 1), []string{every}},
		{"of GPUs", of("dev/nvidia-caps", majorCaps, 1), []string{every, "gpu-bind-mount | mount:/x | T/dev/nvidia-caps | drop"}},
		{"elsewhere, whoever made the node there", of("data", 195, 0), []string{every}},
		{"a file of /dev", func(s *scene) { s.bind(s.Touch("dev/file"), "/x"); s.addRules("allow c 195:* rw") }, []string{every}},
	})
}

// TestRulesAtTheBordersOfNumbers: what every reader takes for the same is kept of a container in a
// user namespace.
func TestRulesAtTheBordersOfNumbers(t *testing.T) {
	allow := func(major, minor int64) grant.DeviceRule {
		return grant.DeviceRule{Allow: true, Type: 'c', Major: major, Minor: minor, Access: "rwm"}
	}
	for text, want := range map[string]grant.DeviceRule{
		"allow c -1:229 rwm": allow(-1, 229), "allow c 10:-1 rwm": allow(10, -1),
		"allow c 2147483647:0 rwm": allow(2147483647, 0), "allow c 0:0 rwm": allow(0, 0)} {
		s := newScene(t)
		s.userNamespace()
		s.rules(text)
		if r := s.find(); !r.Unclosed || !slices.Equal(r.Rules, []grant.DeviceRule{want}) {
			t.Errorf("%s: %v %+v", text, r.Unclosed, r.Rules)
		}
	}
	for _, text := range []string{"allow c -2:229 rwm", "allow c 10:2147483648 rwm", "allow a 10:229 rwm"} {
		s := newScene(t)
		s.userNamespace()
		s.rules(text)
		if r := s.find(); r.Unclosed || r.Rules != nil {
			t.Errorf("%s: %v %+v", text, r.Unclosed, r.Rules)
		}
	}
}

// TestRulesForEverything: numbers beside one mean nothing, so that a deny of some closes not all.
func TestRulesForEverything(t *testing.T) {
	const privileged = "privileged-gpu | rule:0 | a *:* rwm | narrow"
	rules := func(texts ...string) func(*scene) { return func(s *scene) { s.rules(texts...) } }
	check(t, []row{
		{"denied again", rules("allow a", "deny a"), nil},
		{"denied of disks", rules("allow a", "deny b *:* rwm"), []string{privileged}},
		{"a GPU allowed, then a disk of its numbers denied",
			rules("deny a", "allow c 195:0 rw", "deny b 195:0 rwm"),
			[]string{"gpu-device-rule | rule:1 | c 195:0 rw | node=nvidia/0 | -rule:c 195:0"}},
		{"denied with a major", rules("allow a", "deny a 195:* rwm"), []string{privileged}},
		{"to make nodes, which the kernel does not tell from all",
			rules("allow a *:* m", "deny c 195:* rwm", "deny c 507:* rwm", "deny c 508:* rwm",
				"deny c 509:* rwm", "deny c 510:* rwm"),
			[]string{"privileged-gpu | rule:0 | a *:* m | narrow"}},
		{"denied to make nodes, at the beginning", rules("deny a *:* m", "allow c 10:200 rwm"), nil},
		{"all but GPUs, on a node whose DRM nodes are others'", func(s *scene) {
			s.node.DRM = func() (map[int]bool, error) { return map[int]bool{0: false}, nil }
			s.rules("allow a", "deny c 195:* rwm", "deny c 507:* rwm", "deny c 508:* rwm", "deny c 509:* rwm",
				"deny c 510:* rwm")
		}, nil},
		{"all but GPUs, of which some as disks", func(s *scene) {
			s.node.DRM = func() (map[int]bool, error) { return map[int]bool{0: false}, nil }
			s.rules("allow a", "deny b 195:* rwm", "deny c 507:* rwm", "deny c 508:* rwm", "deny c 509:* rwm",
				"deny c 510:* rwm")
		}, []string{privileged}},
		{"all but GPUs, of which one by its minor alone", func(s *scene) {
			s.node.DRM = func() (map[int]bool, error) { return map[int]bool{0: false}, nil }
			s.rules("allow a", "deny c 195:0 rwm", "deny c 507:* rwm", "deny c 508:* rwm", "deny c 509:* rwm",
				"deny c 510:* rwm")
		}, []string{privileged}},
		{"all DRM nodes, on a node where they are others'", func(s *scene) {
			s.node.DRM = func() (map[int]bool, error) { return map[int]bool{0: false}, nil }
			s.addRules("allow c 226:* rw")
		}, nil},
		{"GPUs allowed, then denied to be written", rules("deny a", "allow c 195:* rw", "deny c 195:* w"),
			[]string{"gpu-device-rule | rule:1 | c 195:* rw | never | -rule:c 195:*"}},
		{"GPUs allowed, then denied to be read", rules("deny a", "allow c 195:* rw", "deny c 195:* r"),
			[]string{"gpu-device-rule | rule:1 | c 195:* rw | never | -rule:c 195:*"}},
		{"a GPU allowed, then all denied", rules("deny a", "allow c 195:0 rw", "deny a"), nil},
		{"denied with a minor", rules("allow a", "deny a *:3 rwm"), []string{privileged}},
		{"allowed with numbers", rules("deny a", "allow a 10:229 rwm"),
			[]string{"privileged-gpu | rule:1 | a *:* rwm | narrow"}},
		{"a rule that is the first", rules("allow c 195:0 rw"),
			[]string{"gpu-device-rule | rule:none | the device rules do not begin by denying all | narrow",
				"gpu-device-rule | rule:0 | c 195:0 rw | node=nvidia/0 | -rule:c 195:0"}},
	})
}

// TestPrivilegeWhereNoRuleHolds is that with a node.
func TestPrivilegeWhereNoRuleHolds(t *testing.T) {
	for name, c := range map[string]struct {
		setup func(*scene)
		want  bool
	}{
		"CAP_SYS_ADMIN alone":       {func(s *scene) { s.caps("CAP_SYS_ADMIN") }, false},
		"with a node":               {func(s *scene) { s.caps("CAP_SYS_ADMIN"); s.device("/dev/nvidia0", "c", 195, 0) }, true},
		"with a disk of its number": {func(s *scene) { s.caps("CAP_SYS_ADMIN"); s.device("/dev/x", "b", 195, 0) }, false},
		"a node alone":              {func(s *scene) { s.device("/dev/nvidia0", "c", 195, 0) }, false},
	} {
		s := newScene(t)
		s.unruled()
		c.setup(s)
		if r := s.find(); r.Privileged != c.want || r.AllDevices {
			t.Errorf("%s: privileged %v, all devices %v", name, r.Privileged, r.AllDevices)
		}
	}
}

// TestAnnotationsThatOnlyLookLikePaths out of a container's cgroup.
func TestAnnotationsThatOnlyLookLikePaths(t *testing.T) {
	s := newScene(t)
	s.spec.Annotations = map[string]string{"note": "a/../b", "run.oci.systemd.subgroup": "a/b..",
		"run.oci.delegate-cgroup": "x"}
	s.wantHits()
	s.spec.Annotations["run.oci.delegate-cgroup"] = "../x"
	s.wantHits("gpu-device-rule | annotation:run.oci.delegate-cgroup | ../x | never")
}

// TestAReferenceWithoutAGrant: nothing is taken out of what is told.
func TestAReferenceWithoutAGrant(t *testing.T) {
	s := newScene(t)
	s.env("NVIDIA_VISIBLE_DEVICES=0,gpuledger.dev/grant=")
	s.wantHits("cdi-device-outside-grant | env:NVIDIA_VISIBLE_DEVICES | 0,gpuledger.dev/grant= | never | " +
		"-env:NVIDIA_VISIBLE_DEVICES")
	s = newScene(t)
	s.spec.Annotations["cdi.k8s.io/x"] = "nvidia.com/gpu=0,gpuledger.dev/gpu=1,vendor.example/nic=a"
	if r := s.find(); r.References != nil {
		t.Errorf("names of devices refer to %+v", r.References)
	}
}

// TestRecordsOfAGrant: the mounts by which an admitted container has them are told from others of
// ours.
func TestRecordsOfAGrant(t *testing.T) {
	s := newScene(t)
	const id = grant.ID("g-abcdefghijkl")
	dir := s.node.Policy.LimitsDir(id)
	for _, m := range s.node.Policy.RecordMounts(id) {
		s.Must(os.MkdirAll(dir, 0o755))
		s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
			Destination: m.ContainerPath, Type: "bind", Source: m.HostPath, Options: m.Options})
	}
	s.bind(dir, "/x")
	r := s.find()
	if len(r.Hits) != 3 {
		t.Fatalf("%+v", r.Hits)
	}
	for i, m := range s.node.Policy.RecordMounts(id) {
		if h := r.Hits[i]; h.Vector != "mount:"+m.ContainerPath || h.Value != m.HostPath ||
			h.Code != grant.GPUSocket || h.Cover != grant.CoverRecord || h.Grant != id ||
			h.Removal != (grant.Removal{Kind: grant.RemoveMount, Name: m.ContainerPath}) {
			t.Errorf("%+v", h)
		}
	}
	if r.Hits[2].Cover != grant.CoverNever {
		t.Errorf("%+v", r.Hits[2])
	}
}

// TestCardsOfNoSize in gpushare's JSON cannot be read.
func TestCardsOfNoSize(t *testing.T) {
	for text, malformed := range map[string]bool{`{"c1":{"0":0}}`: true, `{"c1":{"0":1}}`: false,
		`{"c1":{"0":1073741824}}`: false, `{"c1":{"0":1073741825}}`: true} {
		s := newScene(t)
		s.spec.Annotations["scheduler.framework.gpushare.allocation"] = text
		r := s.find()
		if len(r.Allocations) != 1 || (r.Allocations[0].Malformed != "") != malformed {
			t.Errorf("%s: %+v", text, r.Allocations)
		}
	}
}

// TestDevicesOfTheDriversMinors: the numbers of its control and modeset nodes are others' devices
// under another major.
func TestDevicesOfTheDriversMinors(t *testing.T) {
	s := newScene(t)
	for _, d := range [][2]int64{{10, 254}, {10, 255}, {10, 0}, {226, 1}} {
		s.device("/dev/x", "c", d[0], d[1])
	}
	s.wantHits()
	s.device("/dev/a", "c", 195, 253)
	s.device("/dev/b", "c", 195, 254)
	s.device("/dev/c", "c", 195, 255)
	s.wantHits("gpu-device-node | device:/dev/a | c 195:253 | node=nvidia/253 | -device:/dev/a",
		"gpu-device-node | device:/dev/b | c 195:254 | drop=nvidia-modeset/254 | -device:/dev/b",
		"gpu-device-node | device:/dev/c | c 195:255 | node=nvidiactl/255 | -device:/dev/c")
}

// TestTheLowestMajorThatLinuxGivesOut can be the driver's, and none below.
func TestTheLowestMajorThatLinuxGivesOut(t *testing.T) {
	s := newScene(t)
	s.node.Majors = func() (map[string]int, error) {
		return map[string]int{"nvidia-uvm": 234, "nvidia-caps": 233}, nil
	}
	s.device("/dev/a", "c", 234, 0)
	s.device("/dev/b", "c", 233, 0)
	s.wantHits("gpu-device-node | device:/dev/a | c 234:0 | node=nvidia-uvm/0 | -device:/dev/a")
}

// TestUpdatesOfOtherMajors: to have opened a minor of one major opens none of another.
func TestUpdatesOfOtherMajors(t *testing.T) {
	s := newScene(t)
	s.rules("deny a", "allow c 195:0 rw")
	for text, want := range map[string]string{"allow c 508:0 rw": "c 508:0 rw", "allow c 195:0 rw": "",
		"allow c 195:1 rw": "c 195:1 rw"} {
		if rule, widens, err := Widens(parseRules(t, text), s.spec, s.node); rule != want ||
			widens != (want != "") || err != nil {
			t.Errorf("%s: %q, %v, %v", text, rule, widens, err)
		}
	}
	s.node.Majors = func() (map[string]int, error) { return nil, errors.New("no /proc") }
	if rule, widens, err := Widens(parseRules(t, "allow c 508:0 rw"), s.spec, s.node); rule != "" || widens ||
		err == nil {
		t.Errorf("%q, %v, %v", rule, widens, err)
	}
}

// TestNumbersAtTheirBorders in what schedulers write.
func TestNumbersAtTheirBorders(t *testing.T) {
	for compute, want := range map[string]int{"0": 0, "1": 1, "100": 100, "101": 0, "-1": 0} {
		s := newScene(t)
		s.spec.Annotations["gpuledger.dev/compute"] = compute
		if a := s.find().Allocations; len(a) != 1 || a[0].Compute != want ||
			(a[0].Malformed == "") != (want > 0) {
			t.Errorf("compute %s: %+v", compute, a)
		}
	}
	for total, malformed := range map[string]bool{"0": true, "1": false, "1073741824": false,
		"1073741825": true} {
		s := newScene(t)
		s.spec.Annotations = annotated("ALIYUN_COM_GPU_MEM_IDX", "0", "ALIYUN_COM_GPU_MEM_DEV", total)
		s.env("ALIYUN_COM_GPU_MEM_CONTAINER=4")
		if a := s.find().Allocations; len(a) != 1 || (a[0].Malformed != "") != malformed {
			t.Errorf("a total of %s: %+v", total, a)
		}
	}
}

// TestAllBesideANameOfCDI is all.
func TestAllBesideANameOfCDI(t *testing.T) {
	s := newScene(t)
	s.env("NVIDIA_VISIBLE_DEVICES=all,nvidia.com/gpu=0")
	s.wantHits("visible-devices-all | env:NVIDIA_VISIBLE_DEVICES | all,nvidia.com/gpu=0 | " +
		"gpus=all+nvidia.com/gpu=0 | -env:NVIDIA_VISIBLE_DEVICES")
}

// TestNames: what a reference page must have.
func TestNames(t *testing.T) {
	want := "gpuledger.dev/grant GPULEDGER_GRANT ALIYUN_COM_GPU_MEM_IDX ALIYUN_COM_GPU_MEM_POD " +
		"ALIYUN_COM_GPU_MEM_DEV ALIYUN_COM_GPU_MEM_CONTAINER scheduler.framework.gpushare.allocation " +
		"gpuledger.dev/gpus GPULEDGER_GPUS gpuledger.dev/gpu GPULEDGER_GPU gpuledger.dev/memory " +
		"GPULEDGER_MEMORY gpuledger.dev/compute GPULEDGER_COMPUTE gpuledger.dev/mode GPULEDGER_MODE"
	if got := strings.Join(Names(), " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
