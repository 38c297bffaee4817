package request

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// rooted gives the container a root file system with an empty /mnt.
func (s *scene) rooted() {
	s.Mkdir("bundle/rootfs/mnt")
	s.spec.Root = &specs.Root{Path: "rootfs"}
}

// mounted puts a mount of another kind into the spec.
func (s *scene) mountType(kind, destination string, options ...string) {
	s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
		Type: kind, Source: kind, Destination: destination, Options: options})
}

// With rules that let no GPU be opened, a relative source is the bundle's and a source in the
// container's own root is what the mounts before it make it. Each is judged at every place that it
// may be.
func TestSourcesBehindOtherMounts(t *testing.T) {
	untold := func(source string) []string {
		return []string{"gpu-bind-mount | mount:/x | " + source + " (" + grant.UnknownTarget + ") | never"}
	}
	socket := func(source string) []string {
		return []string{"gpu-socket | mount:/x | " + source + " | never"}
	}
	own := func(setup func(*scene), source string) func(*scene) {
		return func(s *scene) {
			s.rooted()
			setup(s)
			s.bind(strings.Replace(source, "T", s.Dir, 1), "/x")
		}
	}
	check(t, []row{
		{"the bundle itself", own(func(*scene) {}, "."), nil},
		{"a directory of the bundle", own(func(s *scene) { s.Mkdir("bundle/src") }, "src"), nil},
		{"a file of the bundle", own(func(s *scene) { s.Touch("bundle/config.json") }, "./config.json"), nil},
		{"what the bundle lacks", own(func(*scene) {}, "src"), nil},
		{"a link in the bundle to the ledger", own(func(s *scene) { s.Link("../run", "bundle/src") }, "src"),
			socket("src")},
		{"a link in the bundle to a GPU", own(func(s *scene) {
			s.Link(s.mknod("dev/nvidia0", 195, 0), "bundle/src")
		}, "src"),
			[]string{"gpu-bind-mount | mount:/x | src (c 195:0) | node=nvidia/0 | -mount:/x"}},
		{"what only the root has by that name", own(func(s *scene) {
			s.Link(s.Path("run"), "bundle/rootfs/src")
		}, "src"), nil},
		{"with rules that open all GPUs", own(func(s *scene) { s.addRules("allow c 195:* rw") }, "src"),
			[]string{"gpu-device-rule | rule:13 | c 195:* rw | never | -rule:c 195:*"}},

		{"the own root", own(func(*scene) {}, "rootfs"), nil},
		{"a place in it that nothing covers", own(func(s *scene) { s.bind(s.Mkdir("data"), "/data") },
			"rootfs/mnt"), nil},
		{"a place that a bind mount covers", own(func(s *scene) { s.bind(s.Mkdir("data/a"), "/mnt") },
			"rootfs/mnt/a"), nil},
		{"the same by its whole path", own(func(s *scene) { s.bind(s.Mkdir("data/a"), "/mnt") },
			"T/bundle/rootfs/mnt/a"), nil},
		{"the same under another name of the bundle", own(func(s *scene) {
			s.bind(s.Mkdir("data/a"), "/mnt")
			s.Link("bundle", "b")
		}, "T/b/rootfs/mnt/a"), untold("T/b/rootfs/mnt/a")},
		{"an empty file system", own(func(s *scene) { s.mountType("tmpfs", "/mnt") }, "rootfs/mnt"), nil},
		{"a tree of mounts, as runc's tests have one", own(func(s *scene) {
			s.Mkdir("src/a/x")
			s.Mkdir("src/b/y")
			s.Mkdir("src/c/z")
			s.Link("b", "src/sym-b")
			s.bind(s.Path("src/a"), "/mnt")
			s.bind(s.Path("src/sym-b"), "/mnt/x")
			s.bind(s.Path("src/c"), "/mnt/x/y")
			s.bind(s.Path("bundle/rootfs/mnt/x"), s.Path("bundle/rootfs/mnt/x/y/z"))
		}, "T/bundle/rootfs/mnt"), nil},
		{"the last mount of a destination that begins with the root's path",
			own(func(s *scene) { s.bind(s.Path("run"), s.Path("bundle/rootfs/mnt")) }, "rootfs/mnt"),
			[]string{"gpu-socket | mount:T/bundle/rootfs/mnt | T/run | never",
				"gpu-socket | mount:/x | rootfs/mnt | never"}},

		{"the ledger below a mount that covers it", own(func(s *scene) { s.bind(s.Dir, "/mnt") },
			"rootfs/mnt/run"), socket("rootfs/mnt/run")},
		{"the ledger below a mount that another one covers",
			own(func(s *scene) { s.bind(s.Dir, "/mnt"); s.mountType("tmpfs", "/mnt") }, "rootfs/mnt/run"),
			socket("rootfs/mnt/run")},
		{"the ledger through a mount of a mount", own(func(s *scene) {
			s.bind(s.Dir, "/mnt")
			s.bind("rootfs/mnt", "/data")
		}, "rootfs/data/run"), socket("rootfs/data/run")},
		{"the ledger where a destination begins with the root's path",
			own(func(s *scene) { s.bind(s.Dir, s.Path("bundle/rootfs/mnt")) }, "rootfs/mnt/run"),
			socket("rootfs/mnt/run")},
		{"a GPU below a mount that covers it", own(func(s *scene) {
			s.mknod("dev/nvidia0", 195, 0)
			s.bind(s.Path("dev"), "/mnt")
		}, "rootfs/mnt/nvidia0"),
			[]string{"gpu-bind-mount | mount:/x | rootfs/mnt/nvidia0 (c 195:0) | node=nvidia/0 | -mount:/x"}},

		{"up again from behind a mount", own(func(s *scene) {
			s.Mkdir("data/deep/a/b")
			s.Link("deep/a/b", "data/link")
			s.bind(s.Path("data"), "/mnt")
		}, "T/bundle/rootfs/mnt/link/../../../run"), untold("T/bundle/rootfs/mnt/link/../../../run")},
		{"the same by a relative path", own(func(s *scene) { s.bind(s.Mkdir("data"), "/mnt") },
			"rootfs/mnt/link/../../../../run"),
			socket("rootfs/mnt/link/../../../../run")},
		{"up again from in front of all mounts", own(func(s *scene) { s.bind(s.Mkdir("data"), "/mnt") },
			"rootfs/../src"), nil},
		{"a link in what covers it", own(func(s *scene) {
			s.Mkdir("data")
			s.Link(s.Path("run"), "data/a")
			s.bind(s.Path("data"), "/mnt")
		}, "rootfs/mnt/a"), untold("rootfs/mnt/a")},
		{"a link on the way, which leads to nothing of ours",
			own(func(s *scene) { s.Mkdir("data/b/c"); s.Link("b", "data/a"); s.bind(s.Path("data"), "/mnt") },
				"rootfs/mnt/a/c"), untold("rootfs/mnt/a/c")},
		{"a link in the image", own(func(s *scene) {
			s.Link("/mnt", "bundle/rootfs/a")
			s.bind(s.Mkdir("data"), "/mnt")
		}, "rootfs/a"), untold("rootfs/a")},
		{"a link in the image that leads out of it, where another mount lies", own(func(s *scene) {
			s.Mkdir("data")
			s.Link(s.Path("run"), "data/a")
			s.Link(s.Mkdir("other"), "bundle/rootfs/mnt/a")
			s.bind(s.Path("data"), "/mnt")
		}, "rootfs/mnt/a"), untold("rootfs/mnt/a")},
		{"a mount whose destination is a link in the image",
			own(func(s *scene) { s.Link("mnt", "bundle/rootfs/a"); s.bind(s.Dir, "/a") }, "rootfs/mnt/run"),
			untold("rootfs/mnt/run")},
		{"a mount whose destination is a link in another mount", own(func(s *scene) {
			s.Mkdir("data")
			s.Link("../mnt", "data/a")
			s.bind(s.Path("data"), "/data")
			s.bind(s.Dir, "/data/a")
		}, "rootfs/mnt/run"), untold("rootfs/mnt/run")},
		{"a mount whose destination goes upwards", own(func(s *scene) { s.bind(s.Dir, "/a/../mnt") },
			"rootfs/mnt/run"), untold("rootfs/mnt/run")},
		{"a source that goes upwards", own(func(s *scene) { s.bind(s.Mkdir("data/a"), "/mnt") },
			"T/bundle/rootfs/mnt/a/../a"), untold("T/bundle/rootfs/mnt/a/../a")},
		{"behind /proc", own(func(*scene) {}, "rootfs/proc/self/cwd"), untold("rootfs/proc/self/cwd")},
		{"behind sysfs", own(func(*scene) {}, "rootfs/sys/devices"), untold("rootfs/sys/devices")},
		{"behind a copy of the image", own(func(s *scene) { s.mountType("tmpfs", "/mnt", "tmpcopyup") },
			"rootfs/mnt"), untold("rootfs/mnt")},
		{"behind an overlay", own(func(s *scene) { s.mountType("overlay", "/mnt", "lowerdir=/usr:/opt") },
			"rootfs/mnt/a"), untold("rootfs/mnt/a")},
		{"behind a process's link", own(func(s *scene) { s.bind("/proc/self/cwd", "/mnt") }, "rootfs/mnt"),
			append([]string{"gpu-bind-mount | mount:/mnt | /proc/self/cwd (" + grant.UnknownTarget +
				") | never"},
				untold("rootfs/mnt")...)},
		{"behind very many mounts", own(func(s *scene) {
			for i := range maxBefore {
				s.mountType("tmpfs", fmt.Sprintf("/mnt/%d", i))
			}
		}, "rootfs/mnt"), untold("rootfs/mnt")},

		{"with rules that open all GPUs, in the own root",
			own(func(s *scene) {
				s.addRules("allow c 195:* rw")
				s.bind(s.Mkdir("data/a"), "/mnt")
			}, "rootfs/mnt/a"),
			append([]string{"gpu-device-rule | rule:13 | c 195:* rw | never | -rule:c 195:*"},
				untold("rootfs/mnt/a")...)},
		{"with a rule for one GPU, which is judged by itself",
			own(func(s *scene) {
				s.addRules("allow c 195:0 rw")
				s.bind(s.Mkdir("data/a"), "/mnt")
			}, "rootfs/mnt/a"),
			[]string{"gpu-device-rule | rule:13 | c 195:0 rw | node=nvidia/0 | -rule:c 195:0"}},

		{"the host's root, at an earlier mount", func(s *scene) {
			s.spec.Root = &specs.Root{Path: "/"}
			s.mknod("dev/nvidia0", 195, 0)
			s.bind(s.Path("dev"), s.Mkdir("mnt"))
			s.bind(s.Path("mnt/nvidia0"), "/x")
		}, []string{"gpu-bind-mount | mount:/x | T/mnt/nvidia0 (c 195:0) | node=nvidia/0 | -mount:/x"}},
		{"the host's root, at the first of two earlier mounts", func(s *scene) {
			s.spec.Root = &specs.Root{Path: "/"}
			s.mknod("dev/nvidia0", 195, 0)
			s.bind(s.Path("dev"), s.Mkdir("mnt"))
			s.bind(s.Mkdir("data"), s.Mkdir("other"))
			s.bind(s.Path("mnt/nvidia0"), "/x")
		}, []string{"gpu-bind-mount | mount:/x | T/mnt/nvidia0 (c 195:0) | node=nvidia/0 | -mount:/x"}},
		{"the host's root, elsewhere", func(s *scene) {
			s.spec.Root = &specs.Root{Path: "/"}
			s.bind(s.Path("dev"), s.Mkdir("mnt"))
			s.bind(s.Mkdir("data"), "/x")
		}, nil},
	})
}

// TestRelativeSourcesWithoutABundle: NRI is not told the bundle, which is the engine's; what leads
// out of it may be anything.
func TestRelativeSourcesWithoutABundle(t *testing.T) {
	untold := func(source string) []string {
		return []string{"gpu-bind-mount | mount:/x | " + source + " (" + grant.UnknownTarget + ") | never"}
	}
	from := func(source string) func(*scene) {
		return func(s *scene) { s.caller.Container.Bundle = ""; s.bind(source, "/x") }
	}
	check(t, []row{
		{"the bundle itself", from("."), nil},
		{"a file of it", from("./config.json"), nil},
		{"through it and back", from("src/../work"), nil},
		{"out of it", from("../../../gpuledger"), untold("../../../gpuledger")},
		{"out of it by its text", from("a/../../b"), untold("a/../../b")},
		{"the root file system", from("./rootfs/link"), untold("./rootfs/link")},
		{"an overlay's layer", func(s *scene) { s.caller.Container.Bundle = ""; fileSystem("overlay", "overlay", "lowerdir=/usr")(s) }, nil},
	})
}

// TestASourceBehindOtherMountsIsRecorded: what a mount of the container's own root brings along of
// the node makes it the node's root too.
func TestASourceBehindOtherMountsIsRecorded(t *testing.T) {
	for source, want := range map[string][]string{"rootfs/mnt/socket": {"mount:/x"},
		"rootfs/mnt/other": nil} {
		s := newScene(t)
		s.rooted()
		s.Mkdir("data/other")
		s.node.Config = s.Touch("data/socket")
		s.bind(s.Path("data"), "/mnt", "ro")
		s.bind(source, "/x")
		if got := s.find().NodeRoot; !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", source, got, want)
		}
	}
}

// TestSourcesBehindOtherMountsTakeTime in proportion to the square of some mounts, however they
// cover each other.
func TestSourcesBehindOtherMountsTakeTime(t *testing.T) {
	s := newScene(t)
	s.rooted()
	for i := range maxBefore - len(s.spec.Mounts) {
		s.bind(s.Mkdir(fmt.Sprintf("data/%d", i)), "/mnt"+strings.Repeat("/a", i))
	}
	s.bind("rootfs/mnt"+strings.Repeat("/a", maxBefore), "/x")
	s.node.Seen = &Seen{}
	s.find()
	if n := len(s.node.Seen.paths.Known); n < maxBefore*maxBefore/4 || n > maxBefore*maxBefore {
		t.Errorf("%d paths were looked at", n)
	}
}
