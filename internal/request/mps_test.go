package request

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/hostpath/hostpathtest"
)

// mps makes the pipe directory of an MPS daemon, with its socket, on which this process listens.
func (s *scene) mps(dir string) string {
	s.Mkdir(dir)
	s.socket(dir + "/" + controlSocket)
	s.Touch(dir + "/" + mpsFiles[0])
	return s.Path(dir)
}

// deadMPS makes one on whose socket nobody listens.
func (s *scene) deadMPS(dir string) string {
	s.Mkdir(dir)
	s.Must(unix.Mknod(s.Path(dir+"/"+controlSocket), unix.S_IFSOCK|0o666, 0))
	s.Touch(dir + "/" + mpsFiles[0])
	return s.Path(dir)
}

// socket listens at a path of any length: bind(2) takes 108 bytes.
func (s *scene) socket(name string) string {
	s.T.Helper()
	dir, err := os.Open(s.Path(filepath.Dir(name)))
	s.Must(err)
	defer dir.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix",
		Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(name))})
	s.Must(err)
	l.SetUnlinkOnClose(false)
	s.T.Cleanup(func() { _ = l.Close() })
	for _, process := range []string{"self", strconv.Itoa(os.Getpid())} {
		if err := os.Symlink("/proc/"+strconv.Itoa(os.Getpid()),
			s.Path("proc/"+process)); !errors.Is(err, fs.ErrExist) {
			s.Must(err)
		}
	}
	return s.Path(name)
}

const listens, bound = "00010000", "00000000"

// listens writes the kernel's list of sockets, as /proc/net/unix has it.
func (s *scene) listens(paths ...string) { s.sockets(listens, paths...) }

func (s *scene) sockets(flags string, paths ...string) {
	s.Mkdir("proc/net")
	text := "Num       RefCount Protocol Flags    Type St Inode Path\n0000000000000000: 00000002 00000000 " +
		"00010000 0001 01 20000 @/abstract/control\n0000000000000000: 00000003 00000000 00000000 " +
		"0001 03 20001\n"
	for _, path := range paths {
		text += "0000000000000000: 00000002 00000000 " + flags + " 0001 01 20002 " + path + "\n"
	}
	s.Must(os.WriteFile(s.Path("proc/net/unix"), []byte(text), 0o644))
}

// daemon is a pipe directory on whose socket a process listens.
func (s *scene) daemon(dir string) string {
	s.listens(s.mps(dir) + "/control")
	return s.Path(dir)
}

func TestMountsOfMPSDaemons(t *testing.T) {
	socket := func(vector, value string) []string {
		return []string{"gpu-socket | " + vector + " | " + value + " | never"}
	}
	mounted := func(source string) []string { return socket("mount:/x", source) }
	check(t, []row{
		{"a pipe directory", func(s *scene) { s.bind(s.daemon("data/mps"), "/x") }, mounted("T/data/mps")},
		{"a pipe directory, read only: a socket answers all the same",
			func(s *scene) { s.bind(s.daemon("data/mps"), "/x", "ro") }, mounted("T/data/mps")},
		{"the usual place, though nothing is there", func(s *scene) { s.bind("/tmp/nvidia-mps", "/x") },
			mounted("/tmp/nvidia-mps")},
		{"the usual place of version 3, by its old path", func(s *scene) {
			s.bind("/var/run/nvidia-mps/control", "/x")
		}, mounted("/var/run/nvidia-mps/control")},
		{"the usual place of NVIDIA's device plugin", func(s *scene) {
			s.bind("/run/nvidia/mps/nvidia.com/gpu/pipe", "/x")
		}, mounted("/run/nvidia/mps/nvidia.com/gpu/pipe")},
		{"what is called alike", func(s *scene) { s.bind("/tmp/nvidia-mps-logs", "/x") }, nil},
		{"udev's socket, which is called the same", func(s *scene) {
			s.Mkdir("data/udev")
			s.listens(s.socket("data/udev/control"))
			s.bind(s.Path("data/udev"), "/x")
		}, nil},
		{"files of a daemon's names, made by a neighbour", func(s *scene) {
			s.Mkdir("data/mps")
			s.listens(s.Touch("data/mps/control"))
			s.Touch("data/mps/control_lock")
			s.bind(s.Path("data/mps"), "/x")
		}, nil},
		{"the same below a mount", func(s *scene) {
			s.Mkdir("data/mps")
			s.listens(s.Touch("data/mps/control"))
			s.Touch("data/mps/control_lock")
			s.bind(s.Path("data"), "/x")
		}, nil},
		{"a link to a daemon's socket, made by a neighbour", func(s *scene) {
			s.daemon("mps")
			s.Mkdir("data")
			s.Link("../mps/control", "data/control")
			s.Touch("data/control_lock")
			s.bind(s.Path("data"), "/x")
		}, nil},
		{"a socket on which nobody listens", func(s *scene) {
			s.sockets(bound, s.deadMPS("data/mps")+"/control")
			s.bind(s.Path("data/mps"), "/x")
		}, nil},
		{"a socket that nobody has", func(s *scene) {
			s.listens()
			s.bind(s.deadMPS("data/mps"), "/x")
		}, nil},
		{"a file like that, mounted itself", func(s *scene) {
			s.listens()
			s.bind(s.deadMPS("data/mps")+"/control", "/x")
		}, nil},
		{"a daemon in another network namespace", func(s *scene) {
			s.listens()
			s.bind(s.mps("data/mps"), "/x")
		}, mounted("T/data/mps")},
		{"a name in the list that a dead socket has", func(s *scene) {
			s.listens(s.deadMPS("data/mps") + "/control")
			s.bind(s.Path("data"), "/x")
		}, nil},
		{"a usual place that a link leads to, when its parent is mounted", func(s *scene) {
			was := mpsDefaults
			s.T.(*testing.T).Cleanup(func() { mpsDefaults = was })
			s.Mkdir("data/mps")
			s.socket("data/mps/control")
			mpsDefaults = []string{s.Link("data/mps", "nvidia-mps")}
			s.listens(mpsDefaults[0] + "/control")
			s.bind(s.Path("data"), "/x")
		}, mounted("T/data")},
		{"a file at a usual place", func(s *scene) {
			was := mpsDefaults
			s.T.(*testing.T).Cleanup(func() { mpsDefaults = was })
			mpsDefaults = []string{s.Mkdir("nvidia-mps")}
			s.bind(s.Touch("nvidia-mps/log"), "/x")
		}, mounted("T/nvidia-mps/log")},
		{"its control socket", func(s *scene) { s.bind(s.daemon("data/mps")+"/control", "/x") },
			mounted("T/data/mps/control")},
		{"its log", func(s *scene) { s.daemon("data/mps"); s.bind(s.Touch("data/mps/log"), "/x") }, nil},
		{"a link to it", func(s *scene) { s.daemon("data/mps"); s.bind(s.Link("data/mps", "link"), "/x") },
			mounted("T/link")},
		{"a parent, while a daemon listens", func(s *scene) {
			s.listens(s.mps("data/a/b/mps") + "/control")
			s.bind(s.Path("data"), "/x")
		}, mounted("T/data")},
		{"a link to a parent", func(s *scene) {
			s.listens(s.mps("data/a/mps") + "/control")
			s.bind(s.Link("data", "link"), "/x")
		}, mounted("T/link")},
		{"a parent, of a daemon that was told a link", func(s *scene) {
			s.mps("data/a/mps")
			s.listens(s.Link("data/a/mps", "pipe") + "/control")
			s.bind(s.Path("data"), "/x")
		}, mounted("T/data")},
		{"a parent of two, once", func(s *scene) {
			s.listens(s.mps("data/a")+"/control", s.mps("data/b")+"/control")
			s.bind(s.Path("data"), "/x")
		}, mounted("T/data")},
		{"a parent of the socket's name", func(s *scene) {
			s.listens(s.mps("data/control/mps") + "/control")
			s.bind(s.Path("data/control"), "/x")
		}, mounted("T/data/control")},
		{"a parent that the engine has made for it", func(s *scene) {
			s.listens(s.mps("bundle/a/mps") + "/control")
			s.bind(s.Path("bundle/a"), "/x")
		}, nil},
		{"a directory beside it", func(s *scene) {
			s.listens(s.mps("data/mps") + "/control")
			s.bind(s.Mkdir("data/other"), "/x")
		}, nil},
		{"a directory whose name only begins alike", func(s *scene) {
			s.listens(s.mps("data/mps") + "/control")
			s.bind(s.Mkdir("data/mpsx"), "/x")
		}, nil},
		{"a parent, when the daemon has gone", func(s *scene) {
			s.listens(s.Mkdir("data/mps") + "/control")
			s.bind(s.Path("data"), "/x")
		}, nil},
		{"a parent of another program's socket of the name", func(s *scene) {
			s.Mkdir("data/x")
			s.listens(s.socket("data/x/control"))
			s.bind(s.Path("data"), "/x")
		}, nil},
		{"a host directory, no daemon at all", func(s *scene) {
			s.listens()
			s.bind(s.Mkdir("tmp"), "/tmp")
		}, nil},
		{"a host directory, and no list of sockets", func(s *scene) { s.bind(s.Mkdir("tmp"), "/tmp") }, nil},
		{"host / is an agent's: recorded", func(s *scene) {
			s.listens(s.mps("data/mps") + "/control")
			s.bind("/", "/x")
		}, nil},
		{"an overlay over a parent", func(s *scene) {
			s.listens(s.mps("data/a/mps") + "/control")
			s.spec.Mounts = append(s.spec.Mounts, specs.Mount{
				Destination: "/x", Type: "overlay", Options: []string{
					"lowerdir=" + s.Path("data") + ":/usr"}})
		}, mounted("lowerdir=T/data:/usr")},
		{"a root file system that holds one", func(s *scene) {
			s.listens(s.mps("data/a/mps") + "/control")
			s.spec.Root = &specs.Root{Path: s.Path("data")}
		}, socket("root", "T/data")},

		{"the client's variable below a mount", func(s *scene) {
			s.mps("data/a/mps")
			s.bind(s.Path("data"), "/mnt")
			s.env("CUDA_MPS_PIPE_DIRECTORY=/mnt//a/./mps/")
		}, socket("env:CUDA_MPS_PIPE_DIRECTORY", "/mnt//a/./mps/")},
		{"the client's variable at a mount that is found itself", func(s *scene) {
			s.bind(s.daemon("data/mps"), "/x")
			s.env("CUDA_MPS_PIPE_DIRECTORY=/x")
		}, mounted("T/data/mps")},
		{"the client's variable below the last of two mounts at one place", func(s *scene) {
			s.mps("data/mps")
			s.bind(s.Mkdir("other"), "/mnt")
			s.bind(s.Path("data"), "/mnt")
			s.env("CUDA_MPS_PIPE_DIRECTORY=/mnt/mps")
		}, socket("env:CUDA_MPS_PIPE_DIRECTORY", "/mnt/mps")},
		{"the client's variable below a mount, with nothing there", func(s *scene) {
			s.bind(s.Mkdir("data"), "/mnt")
			s.env("CUDA_MPS_PIPE_DIRECTORY=/mnt/mps")
		}, nil},
		{"the client's variable in the image", func(s *scene) {
			s.bind(s.Mkdir("data"), "/mnt")
			s.env("CUDA_MPS_PIPE_DIRECTORY=/mntx/mps")
		}, nil},
		{"the client's variable, empty", func(s *scene) {
			s.bind(s.Mkdir("data"), "/mnt")
			s.env("CUDA_MPS_PIPE_DIRECTORY=")
		}, nil},
		{"a path of a hundred thousand directories over a thousand mounts", func(s *scene) {
			for range 1000 {
				s.bind(s.Dir+"/bundle"+strings.Repeat("/b", 1000), "/mnt")
			}
			s.env("CUDA_MPS_PIPE_DIRECTORY=/mnt" + strings.Repeat("/a", 100_000))
		}, nil},
	})
}

// TestADaemonOfOurs: its directory is on a mount of its own, and who mounts a parent gets it all
// the same.
func TestADaemonOfOurs(t *testing.T) {
	hostpathtest.OwnMounts(t)
	found := []string{"gpu-socket | mount:/x | T/data | never"}
	for _, c := range []struct {
		run, link, dir string // run_dir, or the link to it that is configured; the daemon's
		told           string // what it was told
		want           []string
	}{
		{"data/run", "", "data/run/mps/0a1b2c3d4e5f/pipe", "data/run/mps/0a1b2c3d4e5f/pipe", found},
		{"data/run", "var", "data/run/mps/0a1b2c3d4e5f/pipe", "var/mps/0a1b2c3d4e5f/pipe", found},
		{"data/run", "var", "data/run/mps/0a1b2c3d4e5f/pipe", "data/run/mps/0a1b2c3d4e5f/pipe", found},
		{"data/run", "", "data/other/0a1b2c3d4e5f/pipe", "data/other/0a1b2c3d4e5f/pipe", nil}, // on a mount of somebody's: it is not looked at
		{"data/run", "var", "data/other/0a1b2c3d4e5f/pipe", "data/other/0a1b2c3d4e5f/pipe", nil},
	} {
		s := newScene(t)
		s.Mkdir(c.run)
		if s.node.Policy.RunDir = s.Path(c.run); c.link != "" {
			s.node.Policy.RunDir = s.Link(c.run, c.link)
		}
		s.Must(unix.Mount("tmpfs", s.Mkdir(c.dir), "tmpfs", 0, "size=64k"))
		s.deadMPS(c.dir) // which of the node's processes listens is not asked there
		s.listens(s.Path(c.told) + "/control")
		s.bind(s.Path("data"), "/x")
		t.Log(c)
		s.wantHits(c.want...)
		s.Must(unix.Unmount(s.Path(c.dir), 0))
	}
}

func TestAnMPSDaemonBelowTheNodesRootIsRecorded(t *testing.T) {
	s := newScene(t)
	s.listens(s.mps("data/mps") + "/control")
	s.spec.Process.User.UID = 65534
	s.bind("/", "/host", "ro")
	if r := s.find(); !slices.Contains(r.NodeRoot, "mount:/host with the MPS daemon of "+s.Path("data/mps")) {
		t.Errorf("node-root %q", r.NodeRoot)
	}
}

// What looks like a daemon's, with nobody seen to listen, is recorded and changes nothing.
func TestWhatLooksLikeAnMPSDaemonIsRecorded(t *testing.T) {
	for name, c := range map[string]struct {
		setup func(*scene)
		want  bool
	}{
		"a socket beside a daemon's file": {func(s *scene) { s.bind(s.deadMPS("data/mps"), "/x") }, true},
		"the socket itself": {func(s *scene) {
			s.bind(s.deadMPS("data/mps")+"/control", "/x")
		}, true},
		"one on which nobody listens": {func(s *scene) {
			s.sockets(bound, s.deadMPS("data/mps")+"/control")
			s.bind(s.Path("data/mps"), "/x")
		}, true},
		"files alone": {func(s *scene) {
			s.bind(s.Mkdir("data/mps"), "/x")
			s.Touch("data/mps/control")
			s.Touch("data/mps/control_lock")
		}, false},
		"a daemon": {func(s *scene) { s.bind(s.daemon("data/mps"), "/x") }, false},
		"an ordinary directory": {func(s *scene) {
			s.daemon("data/mps")
			s.bind(s.Mkdir("data/other"), "/x")
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			c.setup(s)
			r := s.find()
			want := []string{"mount:/x has what may be an MPS daemon's socket in " + s.Path("data/mps")}
			if c.want != slices.Equal(r.Noted, want) || !c.want && r.Noted != nil || len(r.NodeRoot) > 0 {
				t.Errorf("noted %q, node-root %q", r.Noted, r.NodeRoot)
			}
		})
	}
	for _, variable := range []string{"", "CUDA_MPS_PIPE_DIRECTORY=", "CUDA_MPS_PIPE_DIRECTORY=/",
		"CUDA_MPS_PIPE_DIRECTORY=/other"} {
		s := newScene(t)
		s.env(variable)
		s.bind(s.deadMPS("data/mps"), "/")
		s.Mkdir("data/mps/other")
		want := []string{"mount:/ has what may be an MPS daemon's socket in " + s.Path("data/mps"),
			"env:CUDA_MPS_PIPE_DIRECTORY leads to what may be an MPS daemon's socket in " +
				s.Path("data/mps")}
		if variable != "CUDA_MPS_PIPE_DIRECTORY=/" {
			want = want[:1]
		}
		if r := s.find(); !slices.Equal(r.Noted, want) || len(r.Hits) > 0 {
			t.Errorf("%q: noted %q, hits %v", variable, r.Noted, r.Hits)
		}
	}
}

// A client's settings are its own without a grant, and go with one.
func TestClientSettingsOfMPSAreDropped(t *testing.T) {
	s := newScene(t)
	s.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100",
		"CUDA_MPS_CLIENT_PRIORITY=0", "CUDA_VISIBLE_DEVICES=0", "CUDA_MPS_CLIENT_PRIORITY=1")
	r := s.find()
	var names []string
	for _, d := range r.Dropped {
		names = append(names, d.String())
	}
	if want := []string{"env:CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "env:CUDA_MPS_CLIENT_PRIORITY",
		"env:CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"}; !slices.Equal(names, want) || len(r.Hits) > 0 {
		t.Errorf("dropped %q, hits %v", names, r.Hits)
	}
}

// TestServiceLinksAreNoClientSettings: the kubelet sets them for a Service of any name.
func TestServiceLinksAreNoClientSettings(t *testing.T) {
	s := newScene(t)
	for _, service := range []string{"CUDA_MPS", "CUDA_MPS_EXPORTER"} {
		for _, end := range []string{"SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP_1", "PORT",
			"PORT_80_TCP", "PORT_80_TCP_PROTO", "PORT_80_TCP_PORT", "PORT_80_TCP_ADDR",
			"PORT_53_UDP", "PORT_5_SCTP_ADDR"} {
			s.env(service + "_" + end + "=x")
		}
	}
	if r := s.find(); r.Dropped != nil {
		t.Errorf("dropped %v", r.Dropped)
	}
	for _, name := range []string{"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY",
		"CUDA_MPS_CLIENT_PRIORITY",
		"CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING", "CUDA_MPS_SM_PARTITION", "CUDA_MPS_",
		"CUDA_MPS_X_ADDR", "CUDA_MPS_X_TCP", "CUDA_MPS_PORT_TCP", "CUDA_MPS_PORT_8X_TCP", "CUDA_MPS_X_80_TCP",
		"CUDA_MPS_PORT_80_HTTP", "CUDA_MPS_REPORT", "CUDA_MPS_SERVICE"} {
		s := newScene(t)
		s.env(name + "=x")
		if r := s.find(); len(r.Dropped) != 1 {
			t.Errorf("%s: dropped %v", name, r.Dropped)
		}
	}
}
