package request

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/hostpath"
	"github.com/gpuledger/gpuledger/internal/hostpath/hostpathtest"
)

// TestAMountThatNamesNoGPU costs no memory.
func TestAMountThatNamesNoGPU(t *testing.T) {
	m, found := specs.Mount{Destination: "/var/run/secrets/kubernetes.io/serviceaccount/of/a/pod"},
		vectorResult{}
	if n := testing.AllocsPerRun(10, func() { volumeDevice(&m, &found) }); n > 0 {
		t.Errorf("%.0f allocations for a mount that names no GPU", n)
	}
}

// TestDaemonsThatWereSeenHold for a container: they are not looked for a second time.
func TestDaemonsThatWereSeenHold(t *testing.T) {
	s := newScene(t)
	s.node.Seen = &Seen{daemons: []pipe{{dir: "/p"}}}
	if f := s.facts(); f.pipes.directories()[0].dir != "/p" {
		t.Error("it looks anew")
	}
}

// TestWhatCannotBeToldFails: an error of the disk's hides what is there.
func TestWhatCannotBeToldFails(t *testing.T) {
	for name, setup := range map[string]func(*scene){
		"a mount's source":              func(s *scene) { s.bind("/broken", "/x") },
		"a mount's source, among sound": func(s *scene) { s.bind("/broken", "/x"); s.bind(s.Mkdir("data"), "/y") },
		"an overlay's layer":            fileSystem("overlay", "overlay", "lowerdir=/broken"),
		"a device's path":               func(s *scene) { s.userNamespace(); s.device("/broken", "c", 1, 3) },
	} {
		s := newScene(t)
		setup(s)
		s.broken("/broken")
		if _, err := Find(s.spec, s.caller, s.node); !errors.Is(err, unix.EIO) ||
			!strings.Contains(message(err), "cannot tell what device /broken is: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	s := newScene(t)
	s.rooted()
	s.bind(s.Mkdir("data"), "/broken")
	s.bind(s.Path("data"), "/mnt")
	s.bind("rootfs/mnt/a", "/x")
	s.broken(s.Path("bundle/rootfs/broken"))
	if found := s.find().Hits; len(found) != 1 || found[0].Value != "rootfs/mnt/a ("+grant.UnknownTarget+")" {
		t.Errorf("behind a mount of which it cannot be told where it lies: %v", found)
	}
	s = newScene(t)
	s.bind(s.mknod("dev/null", 1, 3), "/x")
	s.node.DRM = func() (map[int]bool, error) { return nil, errors.New("no sysfs") }
	s.wantHits() // it is no GPU's, whatever sysfs says
}

// broken has the scene's node answer with an error of its disk at a path.
func (s *scene) broken(path string) {
	seen := &Seen{}
	s.node.Seen = seen
	s.facts()
	seen.paths.Known[path] = hostpath.Place{ResolvedFile: host.ResolvedFile{Path: path}, Err: unix.EIO}
}

// TestOneMountIsToldOnce, however runtimes read its source.
func TestOneMountIsToldOnce(t *testing.T) {
	mounted := func(source string, setup func(*scene)) func(*scene) {
		return func(s *scene) { s.rooted(); setup(s); s.bind(source, "/x") }
	}
	every := "gpu-device-rule | rule:13 | c 195:* rw | never | -rule:c 195:*"
	check(t, []row{
		{"one of ours", mounted("./../run", func(*scene) {}),
			[]string{"gpu-socket | mount:/x | ./../run | never"}},
		{"one that leads elsewhere", mounted("./rootfs/proc/self/cwd", func(*scene) {}),
			[]string{"gpu-bind-mount | mount:/x | ./rootfs/proc/self/cwd (" + grant.UnknownTarget +
				") | never"}},
		{"a GPU's node", mounted("./../dev/nvidia0", func(s *scene) { s.mknod("dev/nvidia0", 195, 0) }),
			[]string{"gpu-bind-mount | mount:/x | ./../dev/nvidia0 (c 195:0) | node=nvidia/0 | -mount:/x"}},
		{"a directory of nodes that no rule opens, and behind a link one of ours",
			mounted("a/../../dev", func(s *scene) {
				s.Mkdir("data/deep/a")
				s.Link("../data/deep/a", "bundle/a")
				s.Link("../run", "data/dev")
			}), []string{"gpu-socket | mount:/x | a/../../dev | never"}},
		{"a directory of nodes", mounted("./../dev", func(s *scene) { s.addRules("allow c 195:* rw") }),
			[]string{every, "gpu-bind-mount | mount:/x | ./../dev | drop"}},
		{"an absolute source without a bundle", func(s *scene) {
			s.caller.Container.Bundle = ""
			s.bind(s.Mkdir("data"), "/x")
		}, nil},
	})
}

// TestSourcesOfTheRuntimesOwn: a file that it has open, and what is reached from one.
func TestSourcesOfTheRuntimesOwn(t *testing.T) {
	never := func(source string) []string {
		return []string{"gpu-bind-mount | mount:/x | " + source + " (" + grant.UnknownTarget + ") | never"}
	}
	bind := func(source string) func(*scene) { return func(s *scene) { s.bind(source, "/x") } }
	check(t, []row{
		{"a file", bind("/proc/self/fd/99"), never("/proc/self/fd/99")},
		{"through one", bind("/proc/self/fd/99/../x"), never("/proc/self/fd/99/../x")},
		{"through one to what is there", bind("/proc/self/fd/99/../../status"), never("/proc/self/fd/99/../../status")},
		{"through one to where it works", bind("/proc/self/fd/99/../../cwd"), never("/proc/self/fd/99/../../cwd")},
		{"through one to what is not there", bind("/proc/self/fd/99/../../none"), never("/proc/self/fd/99/../../none")},
		{"its state, which is no file of its own", bind("/proc/self/status"), nil},
	})
}

// TestAFileIsNoDirectoryOfSockets: for mounts of files alone the kernel's list of them is not read.
func TestAFileIsNoDirectoryOfSockets(t *testing.T) {
	for _, kind := range []string{"file", "device", "directory"} {
		s := newScene(t)
		s.node.Seen = &Seen{}
		s.Touch("file")
		s.mknod("device", 1, 3)
		s.Mkdir("directory")
		s.bind(s.Path(kind), "/x")
		if s.find(); (s.node.Seen.daemons == nil) != (kind != "directory") {
			t.Errorf("for a %s it has asked: %v", kind, s.node.Seen.daemons != nil)
		}
	}
}

// TestBehindFileSystemsOfOtherKinds: where one of them could bring a link along, or the image's
// files, nobody can tell what lies behind.
func TestBehindFileSystemsOfOtherKinds(t *testing.T) {
	untold := []string{"gpu-bind-mount | mount:/x | rootfs/data/a (" + grant.UnknownTarget + ") | never"}
	behind := func(kind, on string, options ...string) func(*scene) {
		return func(s *scene) {
			s.rooted()
			s.mountType(kind, on, options...)
			s.bind(s.Mkdir("data"), on+"/a")
			s.bind("rootfs/data/a", "/x")
		}
	}
	check(t, []row{
		{"an overlay", behind("overlay", "/mnt", "lowerdir=/usr"), untold},
		{"a copy of the image", behind("tmpfs", "/mnt", "tmpcopyup"), untold},
		{"an empty one", behind("tmpfs", "/mnt"), nil},
		{"a proc", behind("proc", "/mnt"), untold},
		{"a bind mount with the type of an empty one", func(s *scene) {
			s.rooted()
			s.mountType("tmpfs", "/mnt", "rbind")
			s.spec.Mounts[4].Source = s.Dir
			s.bind("rootfs/mnt/run", "/x")
		}, []string{"gpu-socket | mount:/x | rootfs/mnt/run | never"}},
		{"a sysfs", behind("sysfs", "/mnt"), nil},
	})
}

// TestTheNodesRootWithOpenRules: what no mount covers is what is there.
func TestTheNodesRootWithOpenRules(t *testing.T) {
	s := newScene(t)
	s.spec.Root = &specs.Root{Path: "/"}
	s.bind(s.Mkdir("other"), s.Mkdir("mnt"))
	s.bind(s.Mkdir("data"), "/x")
	s.addRules("allow c 195:* rw")
	s.wantHits("gpu-device-rule | rule:13 | c 195:* rw | never | -rule:c 195:*")
}

// TestWhatIsMountedElsewhereToo by somebody else than the kubelet: other mounts of a source, and
// what is mounted in it.
func TestWhatIsMountedElsewhereToo(t *testing.T) {
	hostpathtest.OwnMounts(t, "/var/lib", "/run")
	plain := func(s *scene, source string, options ...string) {
		s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
			Destination: "/x", Type: "bind", Source: source, Options: options})
	}
	s := newScene(t)
	s.Must(errors.Join(os.MkdirAll("/run/nvidia-mps", 0o755),
		unix.Mknod("/run/nvidia-mps/control", unix.S_IFSOCK|0o666, 0)))
	s.listens() // in this network namespace nobody does
	s.bind("/run", "/x")
	s.env("CUDA_MPS_PIPE_DIRECTORY=/x/nvidia-mps")
	s.wantHits("gpu-socket | env:CUDA_MPS_PIPE_DIRECTORY | /x/nvidia-mps | never")
	if got := s.find().NodeRoot; !slices.Contains(got, "mount:/x with the MPS daemon of /run/nvidia-mps") {
		t.Errorf("a daemon of another network namespace: %q", got)
	}
	s.Must(os.RemoveAll("/run/nvidia-mps"))
	s = newScene(t)
	s.Mkdir("data")
	s.socket("data/other")
	l, err := net.Listen("unix", "/run/control")
	s.Must(errors.Join(err, os.WriteFile("/run/control_lock", nil, 0o600)))
	s.bind("/run", "/x")
	s.wantHits()
	if got := s.find().NodeRoot; !slices.Contains(got, "mount:/x with the MPS daemon of /run") {
		t.Errorf("a daemon in /run itself: %q", got)
	}
	s.Must(errors.Join(l.Close(), os.Remove("/run/control_lock")))
	for _, c := range []struct {
		name        string
		setup       func(*scene)
		hits, noted []string
		root        bool
	}{
		{"run_dir in a volume, which is mounted alone", func(s *scene) {
			s.Mkdir("data/inner")
			s.Mount(s.Path("data"), subPath, "")
			s.Mount(s.Path("run"), subPath+"/inner", "")
			plain(s, subPath, "bind")
		}, nil, nil, false},
		{"a socket that governs, on a file system of its own", func(s *scene) {
			s.node.Config = s.Mount("tmpfs", s.Path("own"), "tmpfs") + "/socket"
			l, err := net.Listen("unix", s.node.Config)
			s.Must(err)
			s.T.Cleanup(func() { _ = l.Close() })
			plain(s, s.Mount(s.node.Config, subPath, ""), "bind")
		}, nil, nil, true},
		{"an MPS daemon's directory on a file system of its own, by its own path", func(s *scene) {
			s.Mount("tmpfs", s.Path("own"), "tmpfs")
			plain(s, s.daemon("own"), "bind")
		}, []string{"gpu-socket | mount:/x | T/own | never"}, nil, false},
		{"root's usual one, on a file system of its own, with nobody that is seen to listen", func(s *scene) {
			s.Must(os.MkdirAll("/run/nvidia-mps", 0o755))
			s.Mount("tmpfs", "/run/nvidia-mps", "tmpfs")
			s.Must(errors.Join(unix.Mknod("/run/nvidia-mps/control", unix.S_IFSOCK|0o666, 0),
				os.WriteFile("/run/nvidia-mps/control_lock", nil, 0o600)))
			plain(s, s.Mount("/run/nvidia-mps", subPath, ""), "bind")
		}, []string{"gpu-socket | mount:/x | " + subPath + " (which is /run/nvidia-mps) | never"},
			[]string{"mount:/x has what may be an MPS daemon's socket in " + subPath}, false},
		{"a file system on which one listens", func(s *scene) {
			s.Mount("tmpfs", s.Path("own"), "tmpfs")
			s.daemon("own/mps")
			plain(s, s.Path("own"), "bind")
		}, []string{"gpu-socket | mount:/x | T/own | never"}, nil, false},
		{"a file system on which nobody listens", func(s *scene) {
			s.Mount("tmpfs", s.Path("own"), "tmpfs")
			s.listens(s.deadMPS("own/mps") + "/control")
			plain(s, s.Path("own"), "bind")
		}, nil, []string{"mount:/x has what may be an MPS daemon's socket in T/own/mps"}, false},
		{"a file system on which another program listens", func(s *scene) {
			s.Mount("tmpfs", s.Path("own"), "tmpfs")
			s.Mkdir("own/udev")
			s.listens(s.socket("own/udev/control"))
			plain(s, s.Path("own"), "bind")
		}, nil, nil, false},
		{"a file system that lacks what the list says", func(s *scene) {
			s.Mount("tmpfs", s.Path("own"), "tmpfs")
			s.listens(s.Path("own/mps/control"))
			plain(s, s.Path("own"), "bind")
		}, nil, nil, false},
		{"a parent of it, which may bring it along", func(s *scene) {
			s.Mount("tmpfs", s.Path("data/own"), "tmpfs")
			s.daemon("data/own")
			plain(s, s.Path("data"), "rbind")
		}, nil, []string{"mount:/x has what may be an MPS daemon's socket in T/data/own"}, false},
		{"a parent of it that looks like another's", func(s *scene) {
			s.deadMPS("data")
			s.Mount("tmpfs", s.Path("data/own"), "tmpfs")
			s.daemon("data/own")
			plain(s, s.Path("data"), "rbind")
		}, nil, []string{"mount:/x has what may be an MPS daemon's socket in T/data/own"}, false},
		{"anybody's directory, which is mounted in run_dir", func(s *scene) {
			s.Mount(s.Mkdir("data"), s.Path("run/inner"), "")
			plain(s, s.Mount(s.Path("data"), subPath, ""), "bind")
		}, []string{"gpu-socket | mount:/x | " + subPath + " (which is T/run/inner) | never"}, nil, false},
		{"a directory beside the pods', which is mounted at /run", func(s *scene) {
			s.Must(os.MkdirAll("/var/lib/x/ledger", 0o755))
			s.Must(os.MkdirAll("/var/lib/kubelet/pods", 0o755))
			s.Mount("/var/lib/x", "/run", "")
			s.node.Policy.RunDir = "/run/ledger"
			plain(s, "/var/lib/x/ledger", "bind")
		}, []string{"gpu-socket | mount:/x | /var/lib/x/ledger (which is /run/ledger) | never"}, nil, true},
		{"the same by two readings of a path, told once", func(s *scene) {
			s.Mount(s.Mkdir("data"), s.Path("run/inner"), "")
			plain(s, "./"+strings.Repeat("../", 20)+s.Mount(s.Path("data"), subPath, "")[1:], "bind")
		}, []string{"gpu-socket | mount:/x | ./" + strings.Repeat("../", 20) + subPath[1:] +
			" (which is T/run/inner) | never"}, nil, false},
		{"a directory of the ledger's that is mounted in another one, told once", func(s *scene) {
			s.Mount(s.Mkdir("state/a"), s.Path("run/inner"), "")
			plain(s, s.Mount(s.Path("state/a"), subPath, ""), "bind")
		}, []string{"gpu-socket | mount:/x | " + subPath + " (which is T/state/a) | never"}, nil, false},
		{"a pod's directory, in which run_dir is mounted, as nobody", func(s *scene) {
			s.Mount(s.Path("run"), subPath, "")
			s.nobody()
			plain(s, pod, "rbind")
		}, nil, nil, false},
		{"a root file system that is a daemon's directory", func(s *scene) {
			s.spec.Root = &specs.Root{Path: s.Mount(s.daemon("data/mps"), subPath, "")}
		}, []string{"gpu-socket | root | " + subPath + " | never"}, nil, false},
		{"a root file system, of which a directory is mounted in run_dir", func(s *scene) {
			s.Mkdir("data/inner")
			s.spec.Root = &specs.Root{Path: s.Mount(s.Path("data"), subPath, "")}
			s.Mount(s.Path("data/inner"), s.Path("run/inner"), "")
		}, nil, nil, false},
		{"a file system of its own that is nowhere else", func(s *scene) {
			plain(s, s.Mount("tmpfs", s.Path("own"), "tmpfs"), "bind")
		}, nil, nil, false},
	} {
		s := newScene(t)
		c.setup(s)
		if got := s.hits(); !slices.Equal(got, c.hits) {
			t.Errorf("%s: found\n  %s\nwant\n  %s", c.name, strings.Join(got, "\n  "),
				strings.Join(c.hits, "\n  "))
		}
		r := s.find()
		for i, text := range r.Noted {
			r.Noted[i] = strings.ReplaceAll(text, s.Dir, "T")
		}
		if slices.Contains(r.NodeRoot, "mount:/x") != c.root || !slices.Equal(r.Noted, c.noted) {
			t.Errorf("%s: node-root %q, noted %q", c.name, r.NodeRoot, r.Noted)
		}
		s.Unmount()
	}
}

// TestRecursiveMounts, and which directories are those of gpuledgerd's MPS daemons.
func TestRecursiveMounts(t *testing.T) {
	for options, want := range map[string]bool{"rbind": true, "ridmap": true, "ridmap=uids=0-0-1": true,
		"bind": false, "idmap": false, "": false, "ro,rbind": true} {
		if recursive(&specs.Mount{Options: strings.Split(options, ",")}) != want {
			t.Errorf("%q is recursive: %v", options, !want)
		}
	}
	s := newScene(t)
	f := s.facts()
	if !f.isPrivate("/var/lib/kubelet/pods/u") || !f.isPrivate(s.Path("bundle/x")) ||
		f.isPrivate(s.Path("data")) {
		t.Error("a pod's directory and the bundle are the container's own, and nothing else")
	}
	mps := grant.MPSDir(s.node.Policy.RunDir, "")
	for path, want := range map[string]bool{mps + "/a/pipe": true, mps + "/a/shm": false,
		mps + "/a/b/pipe": false, mps + "/pipe": false, "/elsewhere/a/pipe": false} {
		if f.pipes.ofOurDaemon(path) != want {
			t.Errorf("%s is a daemon's of ours: %v", path, !want)
		}
	}
}

// TestClientsOfMPS: a place that is no daemon's, or is not named by the container, is found by
// nothing.
func TestClientsOfMPS(t *testing.T) {
	const variable = "CUDA_MPS_PIPE_DIRECTORY"
	check(t, []row{
		{"a directory without a socket", func(s *scene) {
			s.bind(s.Mkdir("data"), "/x")
			s.env(variable + "=/x")
		}, nil},
		{"a daemon's in the place of the root, of which nothing is said",
			func(s *scene) { s.mps("data/mps"); s.bind(s.Path("data"), "/") }, nil},
		{"the same, said", func(s *scene) {
			s.mps("data/mps")
			s.bind(s.Path("data"), "/")
			s.env(variable + "=/mps")
		}, []string{"gpu-socket | env:" + variable + " | /mps | never"}},
		{"udev's socket, which is called the same", func(s *scene) {
			s.Mkdir("data/udev")
			s.socket("data/udev/control")
			s.bind(s.Path("data"), "/x")
			s.env(variable + "=/x/udev")
		}, nil},
		{"a link through what is not there", func(s *scene) {
			s.mps("data/mps")
			s.Link("none/../mps", "data/link")
			s.bind(s.Path("data"), "/x")
			s.env(variable + "=/x/link")
		}, nil},
		{"another socket beside a daemon's", func(s *scene) {
			s.daemon("data/mps")
			s.bind(s.socket("data/mps/other"), "/x")
		}, nil},
		{"a socket that nobody listens on, above a daemon", func(s *scene) {
			s.deadMPS("data/mps")
			s.daemon("data/mps/deep")
			s.bind(s.Path("data/mps/control"), "/x")
		}, nil},
		{"a usual place that everybody can make, when its parent is mounted", func(s *scene) {
			was := mpsDefaults
			s.T.(*testing.T).Cleanup(func() { mpsDefaults = was })
			s.Mkdir("data/mps")
			mpsDefaults = []string{filepath.Dir(s.socket("data/mps/control"))}
			s.listens()
			s.bind(s.Path("data"), "/x")
		}, nil},
	})
}
