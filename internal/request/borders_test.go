package request

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// TestSourcesAtTheBordersOfARoot: what is in the container's own root, and what only seems to be.
func TestSourcesAtTheBordersOfARoot(t *testing.T) {
	const every = "gpu-device-rule | rule:13 | c 195:* rw | never | -rule:c 195:*"
	untold := func(source string) string {
		return "gpu-bind-mount | mount:/x | " + source + " (" + grant.UnknownTarget + ") | never"
	}
	open := func(s *scene) { s.addRules("allow c 195:* rw") }
	check(t, []row{
		{"no root, a file of the bundle", func(s *scene) {
			open(s)
			s.spec.Root = &specs.Root{}
			s.Touch("bundle/src")
			s.bind("src", "/x")
		}, []string{every}},
		{"the node's root, a directory on itself", func(s *scene) {
			open(s)
			s.spec.Root = &specs.Root{Path: "/"}
			s.bind(s.Mkdir("data"), s.Path("data"))
		}, []string{every}},
		{"the node's root, behind a file system of the container's", func(s *scene) {
			open(s)
			s.spec.Root = &specs.Root{Path: "/"}
			s.mountType("tmpfs", s.Mkdir("mnt"))
			s.bind(s.Mkdir("mnt/a"), "/x")
		}, []string{every}},
		{"a path that is another device's node of the same minor, which a runtime in a user namespace binds",
			func(s *scene) {
				s.userNamespace()
				s.device(s.mknod("dev/nvidia0", 195, 0), "c", 10, 0)
			}, []string{"gpu-device-node | device:T/dev/nvidia0 | c 195:0 | node=nvidia/0 | " +
				"-device:T/dev/nvidia0"}},
		{"a path that is the node of its numbers, told once", func(s *scene) {
			s.userNamespace()
			s.device(s.mknod("dev/nvidia0", 195, 0), "c", 195, 0)
		}, []string{"gpu-device-node | device:T/dev/nvidia0 | c 195:0 | node=nvidia/0 | " +
			"-device:T/dev/nvidia0"}},
		{"its own root, up and down again", func(s *scene) {
			s.rooted()
			s.bind(s.Mkdir("data/a"), "/mnt")
			s.bind(s.Path("bundle/rootfs")+"/../rootfs/mnt/a", "/x")
		}, []string{untold("T/bundle/rootfs/../rootfs/mnt/a")}},
		{"a file that another process has open", func(s *scene) {
			s.bind(fmt.Sprintf("/proc/%d/fd/99", os.Getppid()), "/x")
		}, []string{untold(fmt.Sprintf("/proc/%d/fd/99", os.Getppid()))}},
		{"a disk of a GPU's numbers", func(s *scene) {
			s.Must(unix.Mknod(s.Path("dev/disk"), unix.S_IFBLK|0o600, int(unix.Mkdev(195, 0))))
			s.bind(s.Path("dev/disk"), "/x")
		}, nil},
		{"what is not there in a directory of the name", func(s *scene) {
			s.Mkdir("fd")
			s.bind(s.Link("fd", "link")+"/none", "/x")
		}, nil},
		{"behind a mount on a file that another process has open", func(s *scene) {
			s.spec.Root, s.spec.Mounts = &specs.Root{Path: "/"}, nil
			s.bind(s.Mkdir("data"), fmt.Sprintf("/proc/%d/fd/99", os.Getppid()))
			s.bind(s.Mkdir("data/a"), s.Mkdir("mnt"))
			s.bind(s.Path("mnt"), "/x")
		}, []string{untold("T/mnt")}},
		{"the node's root, behind a mount that lies as deep as is looked at", func(s *scene) {
			s.spec.Root = &specs.Root{Path: "/"}
			s.mknod("dev/nvidia0", 195, 0)
			s.bind(s.Path("dev"), s.Mkdir("a"+strings.Repeat("/a", maxDepth)))
			s.bind(s.Path("a"+strings.Repeat("/a", maxDepth))+"/nvidia0", "/x")
		}, []string{"gpu-bind-mount | mount:/x | T/a" + strings.Repeat("/a", maxDepth) +
			"/nvidia0 (c 195:0) | node=nvidia/0 | -mount:/x"}},
		{"as many places behind mounts as are looked at", behindAsMany(maxBefore - 1), nil},
		{"one more", behindAsMany(maxBefore), []string{untold("rootfs/mnt/a")}},
		{"behind as many mounts as are looked at", behindMounts(maxBefore), nil},
		{"behind one more", behindMounts(maxBefore + 1), []string{untold("rootfs/mnt/a")}},
		{"a setting of the kernel's that is not there", func(s *scene) {
			s.bind("/proc/sys/none", "/x")
		}, nil},
		{"a GPU through .. of what is not there", func(s *scene) {
			s.mknod("dev/nvidia0", 195, 0)
			s.bind(s.Dir+"/dev/none/../nvidia0", "/x")
		}, []string{"gpu-bind-mount | mount:/x | T/dev/none/../nvidia0 (c 195:0) | node=nvidia/0 " +
			"| -mount:/x"}},
		{"a process's directory through .. of what is not there", func(s *scene) {
			s.Link("/proc/self/cwd", "link")
			s.bind(s.Dir+"/none/../link", "/x")
		}, []string{untold("T/none/../link")}},
		{"a bind mount by its type alone", func(s *scene) {
			s.mountType("rbind", "/x")
			s.spec.Mounts[4].Source = s.Path("state")
		}, []string{"gpu-socket | mount:/x | T/state | never"}},
		{"a bind mount with another type, told once", func(s *scene) {
			fileSystem("ecryptfs", "T/state", "rbind")(s)
		}, []string{"gpu-socket | mount:/x | T/state | never"}},
	})
}

// TestPathsThatAreTooLong for the kernel lead nowhere, whatever links they begin with.
func TestPathsThatAreTooLong(t *testing.T) {
	for length, want := range map[int]bool{unix.PathMax - 1: true, unix.PathMax: false} {
		s := newScene(t)
		path := s.Link("run", "link") + "/a"
		path += strings.Repeat("a", (length-len(path))%2) + strings.Repeat("/a", (length-len(path))/2)
		if s.bind(path, "/x"); len(path) != length || len(s.find().Hits) > 0 != want {
			t.Errorf("%d bytes, which lead to run_dir, are found: %v", len(path), !want)
		}
	}
}

// behindAsMany has a source behind so many mounts at one place.
func behindAsMany(mounts int) func(*scene) {
	return func(s *scene) {
		s.rooted()
		s.spec.Mounts = nil
		for range mounts {
			s.bind(s.Mkdir("data"), "/mnt")
		}
		s.bind("rootfs/mnt/a", "/x")
	}
}

// behindMounts has a source behind one mount, after so many with that.
func behindMounts(mounts int) func(*scene) {
	return func(s *scene) {
		s.rooted()
		s.spec.Mounts = nil
		for i := range mounts - 1 {
			s.bind(s.Mkdir("data"), fmt.Sprintf("/other/%d", i))
		}
		s.bind(s.Path("data"), "/mnt")
		s.bind("rootfs/mnt/a", "/x")
	}
}

// TestRulesBesideOneForEverything: an allow of a major does not stand for its deny.
func TestRulesBesideOneForEverything(t *testing.T) {
	s := newScene(t)
	s.rules("allow a", "allow c 195:* rwm", "deny c 507:* rwm", "deny c 508:* rwm", "deny c 509:* rwm",
		"deny c 510:* rwm", "deny c 226:* rwm")
	s.wantHits("privileged-gpu | rule:0 | a *:* rwm | narrow",
		"privileged-gpu | rule:1 | c 195:* rwm | never | -rule:c 195:*")
	for n, want := range map[int64]int64{0: 0, 195: 195, -1: wildcard, -4294967101: wildcard,
		1 << 31: wildcard, 1<<32 + 195: 195, 1<<31 - 1: 1<<31 - 1} {
		if got := number(&n); got != want {
			t.Errorf("%d is read as %d, want %d", n, got, want)
		}
	}
	s.rules("allow a")
	if rule, widens, err := Widens(parseRules(t, "allow c 195:1 rw", "allow c *:* rw"), s.spec,
		s.node); rule != "" || widens || err != nil {
		t.Errorf("a GPU after all devices: %q, %v, %v", rule, widens, err)
	}
	rule, widens, err := Widens(parseRules(t, "allow a"),
		Spec{Linux: &Linux{Resources: &Resources{Devices: parseRules(t, "deny a", "allow c *:* rw")}}},
		s.node)
	if rule != "a *:* rwm" || !widens || err != nil {
		t.Errorf("all after all character devices: %q, %v, %v", rule, widens, err)
	}
	if _, err := ParseUpdate([]byte(`{"devices":[{}` + strings.Repeat(",{}", maxRules) +
		`]}`)); message(err) != "it has 4097 device rules, more than 4096" {
		t.Errorf("an update with too many rules: %v", err)
	}
	if spec, err := Parse([]byte(`{"process":{"args":["a"]}}`)); err != nil || spec.Process == nil ||
		len(spec.Process.Args) != 1 {
		t.Errorf("a spec without a part for Linux: %+v, %v", spec, err)
	}
}

// TestTheNodeIsAskedOnce of its majors and DRM nodes, also where it cannot tell.
func TestTheNodeIsAskedOnce(t *testing.T) {
	for _, answer := range []error{nil, errors.New("it cannot tell")} {
		s := newScene(t)
		majors, drm := 0, 0
		was, wasDRM := s.node.Majors, s.node.DRM
		s.node.Majors = func() (map[string]int, error) {
			majors++
			m, _ := was()
			return m, answer
		}
		s.node.DRM = func() (map[int]bool, error) { drm++; m, _ := wasDRM(); return m, nil }
		s.addRules("allow c 508:0 rw", "allow c 509:1 rw", "allow c 510:2 rw")
		s.bind(s.mknod("dev/card0", 226, 0), "/a")
		s.bind(s.mknod("dev/card1", 226, 1), "/b")
		if _, err := Find(s.spec, s.caller, s.node); !errors.Is(err, answer) || majors != 1 || drm != 1 {
			t.Errorf("%v: asked %d times for the majors and %d times for DRM", err, majors, drm)
		}
	}
}

// TestTheNodeIsNotAsked of numbers for others' devices, and not what an image has of a daemon's
// files. What it cannot tell of one thing stays untold, whatever it tells of the next.
func TestTheNodeIsNotAsked(t *testing.T) {
	s := newScene(t)
	s.rooted()
	s.mps("bundle/rootfs")
	s.node.DRM = func() (map[int]bool, error) { return nil, errors.New("it is asked") }
	s.node.Majors = func() (map[string]int, error) { return nil, errors.New("it is asked") }
	s.device("/dev/fuse", "c", 10, 229)
	s.device("/dev/none", "c", 0, 0)
	if r := s.find(); len(r.Noted)+len(r.Hits)+len(r.NodeRoot) > 0 {
		t.Errorf("%+v", r)
	}
	if rule, widens, err := Widens(parseRules(t, "allow c 10:200 rw"), s.spec, s.node); widens || err != nil {
		t.Errorf("%s widens %v, %v", rule, widens, err)
	}
	var d devices
	first := errors.New("the first")
	d.fail(first)
	if d.fail(errors.New("the second")); d.err != first {
		t.Errorf("of two errors %v is kept", d.err)
	}
	s = newScene(t)
	s.rules("allow a")
	s.node.Majors = func() (map[string]int, error) { return nil, errors.New("no majors") }
	s.node.Taken = func() (map[int]bool, error) { return nil, nil }
	if _, err := Find(s.spec, s.caller, s.node); message(err) != "no majors" {
		t.Errorf("got %v", err)
	}
}

// TestUsersOfRootsNames: user 0 is root in whichever group, and an id below a range is not in it.
func TestUsersOfRootsNames(t *testing.T) {
	s := newScene(t)
	s.bind("/etc", "/x")
	s.nobody()
	s.spec.Process.User = specs.User{UID: 0, GID: 5}
	if got := s.find().NodeRoot; len(got) != 1 || got[0] != "mount:/x" {
		t.Errorf("root of another group: %q", got)
	}
	f, err := readFacts(Spec{Process: &Process{User: specs.User{UID: 5}},
		Linux: &Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.UserNamespace}},
			UIDMappings: []specs.LinuxIDMapping{{ContainerID: 10, HostID: 0, Size: 1<<32 - 1}}}}, Caller{},
		NodeFacts{Host: host.Default(), Majors: host.Default().NVIDIAMajors})
	s.Must(err)
	if got := f.uid(); got != -1 {
		t.Errorf("a user below the range is %d", got)
	}
	for text, want := range map[string]string{"a": "a", "": "", `\a`: "a", `a\`: `a\`, `a\\b`: `a\b`} {
		if got := unescaped(text); got != want {
			t.Errorf("%s is read as %s, want %s", text, got, want)
		}
	}
}

// TestClientsOfMPSBelowSeveralMounts: the longest destination counts, and of bind mounts alone. No
// mount is found for the daemon below it, of which the kernel's list of sockets says nothing.
func TestClientsOfMPSBelowSeveralMounts(t *testing.T) {
	const variable = "CUDA_MPS_PIPE_DIRECTORY"
	parent := func(s *scene) string { s.mps("data/mps"); return s.Path("data") }
	check(t, []row{
		{"the first mount of all", func(s *scene) {
			s.spec.Mounts = nil
			s.bind(parent(s), "/x")
			s.env(variable + "=/x/mps")
		}, []string{"gpu-socket | env:" + variable + " | /x/mps | never"}},
		{"the longer one first", func(s *scene) {
			s.bind(parent(s), "/mnt/deep")
			s.bind(s.Mkdir("other"), "/mnt")
			s.env(variable + "=/mnt/deep/mps")
		}, []string{"gpu-socket | env:" + variable + " | /mnt/deep/mps | never"}},
		{"another mount that is longer", func(s *scene) {
			s.bind(parent(s), "/elsewhere/long")
			s.env(variable + "=/another/places/mps")
		}, nil},
		{"beside one that is found", func(s *scene) {
			s.bind(s.Path("run"), "/a")
			s.bind(parent(s), "/x")
			s.env(variable + "=/x/mps")
		}, []string{"gpu-socket | mount:/a | T/run | never", "gpu-socket | env:" + variable +
			" | /x/mps | never"}},
		{"at one that is found for something else", func(s *scene) {
			s.bind(parent(s), "/run/nvidia-container-devices/0")
			s.env(variable + "=/run/nvidia-container-devices/0/mps")
		}, []string{"visible-devices-outside-grant | mount:/run/nvidia-container-devices/0 | 0 | gpus=0 | " +
			"-mount:/run/nvidia-container-devices/0",
			"gpu-socket | env:" + variable + " | /run/nvidia-container-devices/0/mps | never"}},
		{"a mount of another kind", func(s *scene) {
			parent(s)
			fileSystem("nfs", "T/data")(s)
			s.env(variable + "=/x/mps")
		}, nil},
	})
}

// TestMountsBehindTwiceAsMany: the places of a source are counted, since each mount before it can
// double them.
func TestMountsBehindTwiceAsMany(t *testing.T) {
	for levels, want := range map[int][]string{4: {}, 5: {
		"gpu-bind-mount | mount:/x | rootfs/m5 (" + grant.UnknownTarget + ") | never"}} {
		s := newScene(t)
		s.rooted()
		s.Mkdir("bundle/rootfs/m0")
		for level := range levels {
			s.Mkdir(fmt.Sprintf("bundle/rootfs/m%d", level+1))
			for range 2 {
				s.bind(fmt.Sprintf("rootfs/m%d", level), fmt.Sprintf("/m%d", level+1))
			}
		}
		s.bind(fmt.Sprintf("rootfs/m%d", levels), "/x")
		s.wantHits(want...)
	}
}
