package request

import (
	"errors"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// TestDescriptors: what a container is handed open, by what it is.
func TestDescriptors(t *testing.T) {
	outside := func(s *scene) { s.caller.RestoredOutside = "runc 1.1.5 does so" }
	hands := func(d host.Descriptor) func(*scene) {
		return func(s *scene) {
			if d.Number = 7; len(d.Path) > 1 && d.Path[:2] == "T/" {
				d.Path = s.Path(d.Path[2:])
			}
			s.caller.Descriptors = append(s.caller.Descriptors, d)
		}
	}
	device := func(kind, major, minor uint32) func(*scene) {
		return hands(host.Descriptor{ResolvedFile: host.ResolvedFile{
			Mode: kind | 0o600, Rdev: unix.Mkdev(major, minor), Path: "/dev/x"}})
	}
	file := func(path string) func(*scene) {
		return hands(host.Descriptor{ResolvedFile: host.ResolvedFile{Mode: unix.S_IFREG | 0o600, Path: path}})
	}
	socket := func(own, peer string) func(*scene) {
		return hands(host.Descriptor{ResolvedFile: host.ResolvedFile{Mode: unix.S_IFSOCK | 0o600},
			Socket: own, Peer: peer})
	}
	object := func(name string) func(*scene) {
		return hands(host.Descriptor{ResolvedFile: host.ResolvedFile{Mode: 0o600, Path: name}})
	}
	on := func(fileSystem int64, kind uint32, path string) func(*scene) {
		return hands(host.Descriptor{ResolvedFile: host.ResolvedFile{Mode: kind | 0o600, Path: path},
			FileSystem: fileSystem})
	}
	// moved hands in what is at a path, as O_PATH would, with a mount or a device that are by so
	// much not those at its path
	moved := func(path string, mount, dev uint64) func(*scene) {
		return func(s *scene) {
			t, err := host.Resolve(s.Path(path))
			if err != nil {
				s.T.Fatal(err)
			}
			t.Mount, t.Dev = t.Mount+mount, t.Dev+dev
			s.caller.Descriptors = append(s.caller.Descriptors, host.Descriptor{Number: 7, ResolvedFile: t})
		}
	}
	place := func(path string) func(*scene) { return moved(path, 0, 0) }
	node := func(numbers, class string) []string {
		return []string{"gpu-device-node | descriptor:7 | c " + numbers + " | node=" + class}
	}
	governs := []string{"gpu-socket | descriptor:7 | a file or socket that governs GPUs | never"}
	is := func(what string) []string { return []string{"gpu-socket | descriptor:7 | " + what + " | never"} }
	elsewhere := func(path string) []string {
		return []string{"gpu-bind-mount | descriptor:7 | " + path + " (" + grant.UnknownTarget + ") | never"}
	}
	noDRM := func(setup func(*scene)) func(*scene) {
		return func(s *scene) {
			s.node.DRM = func() (map[int]bool, error) { return nil, errors.New("it is asked") }
			setup(s)
		}
	}
	check(t, []row{
		{"a GPU", device(unix.S_IFCHR, 195, 1), node("195:1", "nvidia/1")},
		{"the control device", device(unix.S_IFCHR, 195, 255), node("195:255", "nvidiactl/255")},
		{"a device of a number that Linux gives out", device(unix.S_IFCHR, majorUVM, 0),
			node("508:0", "nvidia-uvm/0")},
		{"another device", noDRM(device(unix.S_IFCHR, 10, 200)), nil},
		{"a GPU's DRM node", device(unix.S_IFCHR, 226, 128), node("226:128", "drm/128")},
		{"another's DRM node", device(unix.S_IFCHR, 226, 129), nil},
		{"a block device of a GPU's numbers", device(unix.S_IFBLK, 195, 0), nil},
		{"a block device of a DRM node's numbers", noDRM(device(unix.S_IFBLK, 226, 0)), nil},
		{"two of them", func(s *scene) { device(unix.S_IFCHR, 195, 0)(s); device(unix.S_IFCHR, 195, 1)(s) },
			append(node("195:0", "nvidia/0"), node("195:1", "nvidia/1")...)},
		{"a file", file("/etc/passwd"), nil},
		{"a file of the ledger's", file("T/state/grants/x"), governs},
		{"a socket", socket("/run/systemd/notify", ""), nil},
		{"one without a name", socket("", ""), nil},
		{"one of ours", func(s *scene) { socket("", s.Path("run/gpuledgerd.sock"))(s) }, governs},
		{"an MPS daemon's", func(s *scene) { socket(s.mps("data/mps")+"/control", "")(s) }, governs},
		{"another one in its directory", func(s *scene) {
			s.mps("data/mps")
			socket(s.socket("data/mps/other"), "")(s)
		}, nil},
		{"what looks like an MPS daemon's", func(s *scene) {
			socket(s.deadMPS("data/mps")+"/control", "")(s)
		}, nil},
		{"udev's, which is called the same", func(s *scene) {
			s.Mkdir("data/udev")
			socket(s.socket("data/udev/control"), "")(s)
		}, nil},
		{"an MPS daemon's, by a name that is no path", func(s *scene) {
			s.T.(*testing.T).Chdir(s.mps("data/mps"))
			socket("control", "")(s)
		}, nil},
		{"an MPS daemon's that only root can have made, in another mount namespace",
			socket("/run/nvidia-mps/control", ""), governs},
		{"another program's of the name, which only root can have made",
			socket("/run/udev/control", ""), nil},
		{"another one of its directory", socket("/run/nvidia-mps/log", ""), nil},
		{"one at a usual place that everybody can make", socket("/tmp/nvidia-mps/control", ""), nil},
		{"a file of a cgroup on version 1", on(unix.CGROUP_SUPER_MAGIC, unix.S_IFREG,
			"/anywhere/cgroup.procs"), is("a cgroup")},
		{"a directory of one on version 2", on(unix.CGROUP2_SUPER_MAGIC, unix.S_IFDIR, "/"), is("a cgroup")},
		{"one by a path of the ledger's, which says less", on(unix.CGROUP_SUPER_MAGIC, unix.S_IFREG,
			"T/state/grants/x"), is("a cgroup")},
		{"a file of that name on a disk", file("/data/cgroup.procs"), nil},
		{"the memory of a process", on(unix.PROC_SUPER_MAGIC, unix.S_IFREG, "/proc/7/mem"),
			is("the memory of a process")},
		{"its environment, with a reference in it", on(unix.PROC_SUPER_MAGIC, unix.S_IFREG,
			"/proc/7/environ"), is("the memory of a process")},
		{"a file of procfs by another name", on(unix.PROC_SUPER_MAGIC, unix.S_IFREG, "/data/x"),
			is("the memory of a process")},
		{"the memory of a process that has ended", on(unix.PROC_SUPER_MAGIC, unix.S_IFREG,
			"/proc/7/mem (deleted)"), is("the memory of a process")},
		{"its state", on(unix.PROC_SUPER_MAGIC, unix.S_IFREG, "/proc/7/status"), nil},
		{"an io_uring", object("anon_inode:[io_uring]"), is("an io_uring")},
		{"a userfaultfd", object("anon_inode:[userfaultfd]"), is("the memory of a process")},
		{"a listener of a seccomp filter", object("anon_inode:seccomp notify"),
			is("the system calls of a process")},
		{"an epoll", object("anon_inode:[eventpoll]"), nil},
		{"a directory of ours", place("run"), is("T/run")},
		{"one below", func(s *scene) { s.Mkdir("state/grants"); place("state/grants")(s) },
			is("T/state/grants")},
		{"one above, which is recorded", place("."), nil},
		{"a directory of another mount than is at its path", func(s *scene) {
			s.Mkdir("data")
			moved("data", 1000, 0)(s)
		}, elsewhere("T/data")},
		{"one of another file system, on a kernel that reports no mounts", func(s *scene) {
			s.Mkdir("data")
			moved("data", 0, 1000)(s)
		}, elsewhere("T/data")},
		{"one that is gone", hands(host.Descriptor{ResolvedFile: host.ResolvedFile{
			Mode: unix.S_IFDIR | 0o700, Path: "/nowhere (deleted)"}}), elsewhere("/nowhere (deleted)")},
		{"another directory", func(s *scene) { s.Mkdir("data"); place("data")(s) }, nil},
		{"the pipe directory of an MPS daemon", func(s *scene) {
			s.mps("data/mps")
			place("data/mps")(s)
		}, is("T/data/mps")},
		{"a directory above it", func(s *scene) { s.mps("data/mps"); place("data")(s) }, nil},
		{"an MPS daemon's socket, as a path", func(s *scene) {
			s.mps("data/mps")
			place("data/mps/control")(s)
		}, is("T/data/mps/control")},
		{"another socket, as a path", func(s *scene) {
			s.Mkdir("data")
			s.socket("data/other")
			place("data/other")(s)
		}, nil},
		{"the node's devices, where a rule opens all", func(s *scene) {
			s.rules("allow a")
			place("dev")(s)
		}, []string{"privileged-gpu | rule:0 | a *:* rwm | narrow",
			"privileged-gpu | descriptor:7 | T/dev | drop"}},
		{"the node's devices, where none does", place("dev"), nil},
		{"CRIU's rules on cgroup v1", func(s *scene) {
			s.devicesOnV1()
			s.caller.RestoresRules = true
		}, []string{"gpu-device-rule | option:--manage-cgroups-mode | whatever the checkpoint has | never"}},
		{"the spec's own rules on cgroup v1", (*scene).devicesOnV1, nil},
		{"CRIU's rules on cgroup v2", func(s *scene) { s.caller.RestoresRules = true }, nil},
		{"a restore outside the cgroup", outside,
			[]string{"rules-not-enforced | restore | runc 1.1.5 does so | never"}},
		{"the same on a machine without a GPU", func(s *scene) {
			s.node.Majors = func() (map[string]int, error) { return nil, nil }
			outside(s)
		}, nil},
		{"the same where no device rule takes effect", func(s *scene) { s.unruled(); outside(s) }, nil},
	})
}

// TestDescriptorsThatMakeRoot: as a mount of the same source would, and what has no path.
func TestDescriptorsThatMakeRoot(t *testing.T) {
	directory := func(path string) func(*scene) host.Descriptor {
		return func(s *scene) host.Descriptor {
			target, err := host.Resolve(strings.Replace(path, "T", s.Dir, 1))
			s.Must(err)
			return host.Descriptor{ResolvedFile: target}
		}
	}
	procfs := func(path string) func(*scene) host.Descriptor {
		return func(s *scene) host.Descriptor {
			d := directory(path)(s)
			d.FileSystem = unix.PROC_SUPER_MAGIC
			return d
		}
	}
	a := func(kind uint32, path string) func(*scene) host.Descriptor {
		return func(*scene) host.Descriptor {
			return host.Descriptor{ResolvedFile: host.ResolvedFile{Mode: kind, Path: path}}
		}
	}
	peer := func(own, peer string) func(*scene) host.Descriptor {
		return func(*scene) host.Descriptor {
			return host.Descriptor{ResolvedFile: host.ResolvedFile{Mode: unix.S_IFSOCK}, Socket: own,
				Peer: peer}
		}
	}
	for _, c := range []struct {
		name string
		of   func(*scene) host.Descriptor
		want string
	}{
		{"the node's root", directory("/"), "descriptor:7"},
		{"a directory above ours", directory("T"), "descriptor:7"},
		{"the cgroup file system", directory("T/sys"), "descriptor:7"},
		{"another directory", directory("T/bundle"), ""},
		{"a directory of a process", procfs("/proc/1/fd"), "descriptor:7 (a process)"},
		{"a directory of the kernel's", procfs("/proc/fs"), ""},
		{"a process", a(0, "anon_inode:[pidfd]"), "descriptor:7 (a process)"},
		{"a process, on newer kernels", a(unix.S_IFREG, "anon_inode:[pidfd]"), "descriptor:7 (a process)"},
		{"what opens the node's files", a(0, "anon_inode:[fanotify]"),
			"descriptor:7 (the files that are opened on the node)"},
		{"a disk", a(unix.S_IFBLK, "/dev/vda"), "descriptor:7 (a disk)"},
		{"an engine's configuration", a(unix.S_IFREG, "/etc/containerd/config.toml"), "descriptor:7"},
		{"a runtime", a(unix.S_IFREG, "/usr/bin/crun"), "descriptor:7"},
		{"core_pattern", a(unix.S_IFREG, "/proc/sys/kernel/core_pattern"), "descriptor:7"},
		{"what takes a GPU from its driver", a(unix.S_IFREG, "/sys/bus/pci/drivers/nvidia/unbind"),
			"descriptor:7"},
		{"a connection to an engine", peer("", "/run/containerd/containerd.sock"), "descriptor:7"},
		{"an engine's own socket, as systemd hands it on", peer("/run/podman/podman.sock", ""), ""},
		{"the journal", peer("", "/run/systemd/journal/stdout"), ""},
		{"a log of the kubelet", a(unix.S_IFREG, "/var/log/pods/ns_p_u/main/0.log"), ""},
		{"a log of Docker", a(unix.S_IFREG, "/var/lib/docker/containers/c/c-json.log"), ""},
		{"a log of Podman", a(unix.S_IFREG,
			"/var/lib/containers/storage/overlay-containers/c/userdata/ctr.log"), ""},
		{"another program", a(unix.S_IFREG, "/usr/bin/true"), ""},
		{"memory", a(unix.S_IFREG, "/memfd:x (deleted)"), ""},
		{"a namespace", a(unix.S_IFREG, "mnt:[4026531840]"), ""},
		{"a BPF program", a(0, "anon_inode:bpf-prog"), ""},
		{"a perf event", a(0, "anon_inode:[perf_event]"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			d := c.of(s)
			d.Number = 7
			s.caller.Descriptors = append(s.caller.Descriptors, d)
			r := s.find()
			if s.sameAgain(r); strings.Join(r.NodeRoot, "; ") != c.want || len(r.Hits) > 0 {
				t.Errorf("%q, want %q; %+v", r.NodeRoot, c.want, r.Hits)
			}
		})
	}
}

// TestADirectoryThatIsNotAtItsPath is refused. It is not taken for what is at its path now, by
// which the container would be root.
func TestADirectoryThatIsNotAtItsPath(t *testing.T) {
	s := newScene(t)
	root, err := host.Resolve("/")
	s.Must(err)
	for mount, want := range map[uint64]string{root.Mount: "descriptor:7", root.Mount + 1000: ""} {
		root.Mount = mount
		s.caller.Descriptors = []host.Descriptor{{Number: 7, ResolvedFile: root}}
		r := s.find()
		if strings.Join(r.NodeRoot, "; ") != want || (len(r.Hits) > 0) != (want == "") {
			t.Errorf("mount %d: node-root %q, want %q; %+v", mount, r.NodeRoot, want, r.Hits)
		}
	}
}

// TestWhatAnExecIsHanded: the sources of the container's mounts are not looked at again.
func TestWhatAnExecIsHanded(t *testing.T) {
	s := newScene(t)
	s.bind(s.mknod("data", 195, 3), "/dev/nvidia3")
	s.spec.Root = &specs.Root{Path: s.Mkdir("image")}
	s.spec.Mounts = append(s.spec.Mounts, specs.Mount{Destination: "/o", Type: "overlay",
		Options: []string{"lowerdir=" + s.Mkdir("lower")}})
	s.device("/dev/nvidia0", "c", 195, 0)
	s.addRules("allow c 195:1 rw")
	s.caller.Descriptors = []host.Descriptor{
		{Number: 0, ResolvedFile: host.ResolvedFile{Mode: unix.S_IFREG, Path: s.Path("file")}},
		{Number: 3, ResolvedFile: host.ResolvedFile{Mode: unix.S_IFCHR, Rdev: unix.Mkdev(195, 1)}},
		{Number: 4, ResolvedFile: host.ResolvedFile{Mode: unix.S_IFBLK}}}
	s.node.Seen = &Seen{}
	r, err := FindHanded(s.spec, s.caller, s.node)
	s.Must(err)
	var got []string
	for _, h := range r.Hits {
		got = append(got, line(h))
	}
	want := []string{"gpu-device-rule | rule:13 | c 195:1 rw | node=nvidia/1 | -rule:c 195:1",
		"gpu-device-node | device:/dev/nvidia0 | c 195:0 | node=nvidia/0 | -device:/dev/nvidia0",
		"gpu-device-node | descriptor:3 | c 195:1 | node=nvidia/1"}
	if !slices.Equal(got, want) || !slices.Equal(r.NodeRoot, []string{"descriptor:4 (a disk)"}) {
		t.Errorf("found %q, node-root %q", got, r.NodeRoot)
	}
	for _, name := range []string{"data", "image", "lower"} {
		if _, looked := s.node.Seen.paths.Known[s.Path(name)]; looked {
			t.Errorf("%s is looked at", name)
		}
	}
}
