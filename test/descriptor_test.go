package test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/watch"
	"github.com/gpuledger/gpuledger/test/rig"
)

// nodeAt makes a descriptor of a device node without opening its driver, which does not exist here:
// only the descriptor's target matters.
func nodeAt(t *testing.T, dir string, major, minor int) *os.File {
	t.Helper()
	path := fmt.Sprintf("%s/c-%d-%d", dir, major, minor)
	mknod(t, path, major, minor)
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	must(t, err)
	f := os.NewFile(uintptr(fd), path)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// handed runs the wrapper with files as its descriptors from 3 on.
func handed(n *rig.Node, files []*os.File, env string, args ...string) rig.Result {
	cmd := n.Wrapper(args...)
	cmd.ExtraFiles = files
	if env != "" {
		cmd.Env = append(cmd.Environ(), env)
	}
	return rig.Run(cmd)
}

// TestDescriptorsThatReachAContainer: every way in which a descriptor is passed at create, run and
// exec.
func TestDescriptorsThatReachAContainer(t *testing.T) {
	eachRuntime(t, func(t *testing.T, runtime string) {
		n := rig.NewNode(t, rig.Setup{Runtime: runtime})
		gpu, other, control, null := nodeAt(t, n.Dir, 195, 0), nodeAt(t, n.Dir, 195, 1),
			nodeAt(t, n.Dir, 195, 255), nodeAt(t, n.Dir, 1, 3)
		tty := nodeAt(t, n.Dir, 4, 0)
		file, err := os.Create(n.Dir + "/file")
		must(t, err)
		ours, err := os.Open(n.Dir + "/state")
		must(t, err)
		both, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		socket, peer := os.NewFile(uintptr(both[0]), "socket"), os.NewFile(uintptr(both[1]), "socket")
		t.Cleanup(func() { _ = file.Close(); _ = ours.Close(); _ = socket.Close(); _ = peer.Close() })
		listeners := 0
		create := func(name string, files []*os.File, env string, edits []rig.Edit,
			options ...string) (rig.Result, *rig.Bundle) {
			listeners++
			b := n.Bundle(fmt.Sprintf("c%d", listeners), append(edits, rig.Light)...)
			return handed(n, files, env, append(append([]string{"create"}, options...), "--bundle",
				b.Dir, b.ID)...), b
		}
		for name, c := range map[string]struct {
			files   []*os.File
			env     string
			options []string
			code    string
		}{
			"preserved":                              {[]*os.File{gpu}, "", []string{"--preserve-fds", "1"}, "gpu-device-node"},
			"preserved, with =":                      {[]*os.File{gpu}, "", []string{"--preserve-fds=1"}, "gpu-device-node"},
			"the last of many":                       {[]*os.File{file, null, socket, gpu}, "", []string{"--preserve-fds=4"}, "gpu-device-node"},
			"preserved, of a thousand":               {[]*os.File{file, gpu}, "", []string{"--preserve-fds", "2000"}, "gpu-device-node"},
			"GPUs' common node":                      {[]*os.File{control}, "", []string{"--preserve-fds=1"}, "gpu-device-node"},
			"behind a listening socket":              {[]*os.File{socket, gpu}, "LISTEN_FDS=1", []string{"--preserve-fds=1"}, "gpu-device-node"},
			"as a listening socket":                  {[]*os.File{gpu}, "LISTEN_FDS=1", nil, "gpu-device-node"},
			"a directory of gpuledger":               {[]*os.File{ours}, "", []string{"--preserve-fds=1"}, "gpu-socket"},
			"no listening socket":                    {nil, "LISTEN_FDS=4", nil, ""},
			"inherited, and not handed on":           {[]*os.File{gpu, other}, "", nil, ""},
			"behind those that are handed on":        {[]*os.File{file, gpu}, "", []string{"--preserve-fds=1"}, ""},
			"a file, a socket and devices of no GPU": {[]*os.File{file, socket, null, tty}, "", []string{"--preserve-fds=4"}, ""},
		} {
			t.Run(name, func(t *testing.T) {
				r, b := create(name, c.files, c.env, nil, c.options...)
				defer b.End()
				if c.code != "" {
					wantRefused(t, r, c.code)
				} else if r.Code != 0 || r.Stderr != "" {
					t.Errorf("%+v", r)
				}
			})
		}
		t.Run("as standard input", func(t *testing.T) {
			for _, stream := range []int{0, 1, 2} {
				b := n.Bundle(fmt.Sprintf("stdio%d", stream), rig.Light)
				cmd := n.Wrapper("run", "--bundle", b.Dir, b.ID)
				log := n.Dir + "/log"
				cmd.Args = append(cmd.Args[:1], append([]string{"--log", log}, cmd.Args[1:]...)...)
				switch stream {
				case 0:
					cmd.Stdin = gpu
				case 1:
					cmd.Stdout = gpu
				case 2:
					cmd.Stderr = gpu
				}
				err := cmd.Run()
				if text := read(t, log); err == nil || !strings.Contains(text, "refused (gpu-device-node)") ||
					!strings.Contains(text, fmt.Sprintf("descriptor %d", stream)) {
					t.Errorf("stream %d: %v: %s", stream, err, text)
				}
				must(t, os.Remove(log))
			}
		})
		t.Run("with a grant", func(t *testing.T) {
			g := n.Grant("--memory", "1GiB", "--gpu", "0")
			r, b := create("its own", []*os.File{gpu, control}, "", []rig.Edit{with(g)}, "--preserve-fds=2")
			if r.Code != 0 {
				t.Fatalf("its grant's GPU: %+v", r)
			}
			must(t, rigStart(b))
			execs := func(id, name, code string, file *os.File) {
				t.Helper()
				r := handed(n, []*os.File{file}, "", "exec", "--preserve-fds=1", id, "/bin/busybox", "true")
				if code != "" {
					wantRefused(t, r, code)
				} else if r.Code != 0 {
					t.Errorf("exec with %s: %+v", name, r)
				}
			}
			execs(b.ID, "its grant's GPU", "", gpu)
			execs(b.ID, "a file", "", file)
			execs(b.ID, "the other GPU", "gpu-device-node", other)
			execs(b.ID, "a directory of gpuledger", "gpu-socket", ours)
			b.End()
			r, b = create("other's", []*os.File{other}, "", []rig.Edit{with(g)}, "--preserve-fds=1")
			wantRefused(t, r, "gpu-device-node")
			b.End()
			plain := starts(t, n.Bundle("plain", rig.Light))
			execs(plain.ID, "a GPU", "gpu-device-node", gpu)
			execs(plain.ID, "nothing of a GPU", "", null)
			plain.End()
		})
		t.Run("the socket of an MPS daemon", func(t *testing.T) {
			must(t, os.Mkdir(n.Dir+"/mps", 0o755), os.WriteFile(n.Dir+"/mps/control_lock", nil, 0o644))
			listen(t, n.Dir+"/mps/control")
			c, err := net.Dial("unix", n.Dir+"/mps/control")
			must(t, err)
			defer c.Close()
			f, err := c.(*net.UnixConn).File()
			must(t, err)
			defer f.Close()
			for _, f := range []*os.File{f, openAt(t, n.Dir+"/mps/control", unix.O_PATH),
				openAt(t, n.Dir+"/mps", unix.O_PATH), openAt(t, n.Dir+"/mps", unix.O_RDONLY)} {
				r, b := create("mps", []*os.File{f}, "", nil, "--preserve-fds=1")
				wantRefused(t, r, "gpu-socket")
				b.End()
			}
		})
	})
}

func openAt(t *testing.T, path string, flags int) *os.File {
	t.Helper()
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	return fileOf(t, path, fd, err)
}

func fileOf(t *testing.T, name string, fd int, err error) *os.File {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// dialled is a connection to a socket that listens at a path.
func dialled(t *testing.T, path string) *os.File {
	t.Helper()
	c, err := net.Dial("unix", path)
	must(t, err)
	defer c.Close()
	f, err := c.(*net.UnixConn).File()
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// TestWhatADescriptorReaches: what else a descriptor gives its holder. Engines and systemd pass
// harmless ones.
func TestWhatADescriptorReaches(t *testing.T) { eachRuntime(t, testWhatADescriptorReaches) }

func testWhatADescriptorReaches(t *testing.T, runtime string) {
	n := rig.NewNode(t, rig.Setup{Runtime: runtime})
	must(t, unix.Mkfifo(n.Dir+"/fifo", 0o600), os.WriteFile(n.Dir+"/log", nil, 0o644),
		os.WriteFile(n.Dir+"/gone", nil, 0o644), os.Mkdir(n.Dir+"/socket", 0o755))
	gone := openAt(t, n.Dir+"/gone", unix.O_RDWR)
	must(t, os.Remove(n.Dir+"/gone"))
	listen(t, n.Dir+"/socket/notify")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: n.Dir + "/socket/activation", Net: "unix"})
	must(t, err)
	server, err := l.File()
	must(t, err)
	t.Cleanup(func() { _ = server.Close(); _ = l.Close() })
	object := func(name string, number, a, b, c uintptr) *os.File {
		fd, _, err := unix.Syscall(number, a, b, c)
		if err != 0 {
			t.Logf("no %s: %v", name, err)
			return nil
		}
		return fileOf(t, name, int(fd), nil)
	}
	var ring [120]byte // struct io_uring_params
	state, clone := []byte(n.Dir+"/state\x00"), uintptr(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	for name, c := range map[string]struct {
		file           *os.File
		code, recorded string
	}{
		"a fifo":                 {openAt(t, n.Dir+"/fifo", unix.O_RDWR), "", ""},
		"a log":                  {openAt(t, n.Dir+"/log", unix.O_WRONLY|unix.O_APPEND), "", ""},
		"a file that is removed": {gone, "", ""}, "a directory": {
			openAt(t, n.Dir+"/socket", unix.O_RDONLY), "", ""},
		"a terminal":                  {openAt(t, "/dev/ptmx", unix.O_RDWR), "", ""},
		"a socket to be activated by": {server, "", ""}, "a connection to a socket": {
			dialled(t, n.Dir+"/socket/notify"), "", ""},
		"a namespace": {openAt(t, "/proc/self/ns/mnt", unix.O_RDONLY), "", ""},
		"a link":      {openAt(t, "/proc/self/exe", unix.O_PATH|unix.O_NOFOLLOW), "", ""},
		"memory": {object("memfd", unix.SYS_MEMFD_CREATE,
			uintptr(unsafe.Pointer(&state[0])), unix.MFD_CLOEXEC, 0), "", ""},
		"an epoll": {object("epoll", unix.SYS_EPOLL_CREATE1, unix.EPOLL_CLOEXEC, 0, 0),
			"", ""},
		"an eventfd": {object("eventfd", unix.SYS_EVENTFD2, 0, unix.EFD_CLOEXEC, 0), "",
			""},
		"a process": {object("pidfd", unix.SYS_PIDFD_OPEN, uintptr(os.Getpid()), 0, 0),
			"", "node-root by descriptor:3 (a process)"},
		"its directory": {openAt(t, "/proc/self/fd", unix.O_RDONLY), "",
			"node-root by descriptor:3 (a process)"},
		"its memory":      {openAt(t, "/proc/self/mem", unix.O_RDWR), "gpu-socket", ""},
		"its environment": {openAt(t, "/proc/self/environ", unix.O_RDONLY), "gpu-socket", ""},
		"an io_uring": {object("io_uring", unix.SYS_IO_URING_SETUP, 1,
			uintptr(unsafe.Pointer(&ring)), 0), "gpu-socket", ""},
		"a userfaultfd": {object("userfaultfd", unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0),
			"gpu-socket", ""},
		"fanotify": {object("fanotify", unix.SYS_FANOTIFY_INIT,
			unix.FAN_CLOEXEC|unix.FAN_CLASS_NOTIF, unix.O_RDONLY, 0),
			"", "node-root by descriptor:3 (the files that are opened on the node)"},
		"the node":         {openAt(t, "/", unix.O_RDONLY), "", "node-root by descriptor:3"},
		"above the ledger": {openAt(t, n.Dir, unix.O_PATH), "", "node-root by descriptor:3"},
		"the ledger":       {openAt(t, n.Dir+"/state", unix.O_RDONLY), "gpu-socket", ""},
		"a mount of it that is nowhere": {object("open_tree", unix.SYS_OPEN_TREE,
			0, uintptr(unsafe.Pointer(&state[0])), clone), "gpu-bind-mount", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if c.file == nil {
				t.Skip("this kernel makes none here: what it leads to is not tested")
			}
			_ = os.Remove(n.Dir + "/audit.jsonl")
			b := n.Bundle(strings.ReplaceAll(name, " ", "-"), rig.Light)
			defer b.End()
			r := handed(n, []*os.File{c.file}, "", "create", "--preserve-fds=1", "--bundle", b.Dir, b.ID)
			if c.code != "" {
				wantRefused(t, r, c.code)
				return
			}
			log, _ := os.ReadFile(n.Dir + "/audit.jsonl")
			if r.Code != 0 || r.Stderr != "" || strings.Contains(string(log),
				"node-root") != (c.recorded != "") || !strings.Contains(string(log), c.recorded) {
				t.Errorf("%+v, recorded %s", r, log)
			}
		})
	}
}

func rigStart(b *rig.Bundle) error {
	if r := b.Start(); r.Code != 0 {
		return fmt.Errorf("%+v", r)
	}
	return nil
}

// TestRuntimesPassDescriptorsOn: without the wrapper the runtimes do pass descriptors on, so that
// the tests above prove something.
func TestRuntimesPassDescriptorsOn(t *testing.T) {
	eachRuntime(t, func(t *testing.T, runtime string) {
		n := rig.NewNode(t, rig.Setup{Runtime: runtime})
		gpu := nodeAt(t, n.Dir, 195, 0)
		for name, c := range map[string]struct {
			listen  bool
			options []string
			want    string
		}{
			"preserved": {false, []string{"--preserve-fds=1"}, "3: c 195:0"},
			"listening": {true, nil, "3: c 195:0"}, "not handed on": {false, nil, "3: Bad file descriptor"},
		} {
			b := n.Bundle(strings.ReplaceAll(name, " ", ""), rig.Light, runsTenant(t, "fd", "3"))
			script := `exec "$@"`
			if c.listen {
				script = `export LISTEN_FDS=1 LISTEN_PID=$$; exec "$@"`
			}
			real := n.Real(append(append([]string{"run"}, c.options...), "--bundle", b.Dir, b.ID)...)
			cmd := exec.Command("/bin/sh", append([]string{"-c", script, "sh"}, real.Args...)...)
			cmd.Env, cmd.ExtraFiles = real.Env, []*os.File{gpu}
			if r := rig.Run(cmd); r.Code != 0 || strings.TrimSpace(r.Stdout) != c.want {
				t.Errorf("%s: %+v, want %q", name, r, c.want)
			}
			b.RealDelete()
		}
	})
}

// receivers are the ways by which a container without a grant gets a descriptor of one with a
// grant, once both run.
var receivers = map[string]func(t *testing.T, n *rig.Node, holder *rig.Bundle, shared string) *rig.Bundle{
	"by SCM_RIGHTS": func(t *testing.T, n *rig.Node, holder *rig.Bundle, shared string) *rig.Bundle {
		return n.Bundle("receiver", rig.Light, runsTenant(t, "take", "/shared/s", "ready", "/shared/got",
			"wait"), bindAt(shared, "/shared"))
	},
	"by SCM_RIGHTS, kept by another thread than the first": func(t *testing.T, n *rig.Node,
		holder *rig.Bundle, shared string) *rig.Bundle {
		return n.Bundle("receiver", rig.Light, runsTenant(t, "take", "/shared/s", "thread", "ready",
			"/shared/got", "wait"), bindAt(shared, "/shared"))
	},
	"by pidfd_getfd": func(t *testing.T, n *rig.Node, holder *rig.Bundle, shared string) *rig.Bundle {
		return n.Bundle(strings.Repeat("ab", 32), rig.Light, rig.NodePIDs,
			runsTenant(t, "pull", fmt.Sprint(holder.Init()), "3", "ready", "/shared/got", "wait"),
			bindAt(shared, "/shared"))
	},
}

// TestAGPUThatAnotherContainerHoldsIsNotFree: the holder of an exclusive grant passes its open GPU
// to a container without one, and ends. This machine has no driver: /dev/full stands for the GPU's
// node.
func TestAGPUThatAnotherContainerHoldsIsNotFree(t *testing.T) {
	shortPaths(t)
	eachRuntime(t, func(t *testing.T, runtime string) {
		for name, receiver := range receivers {
			t.Run(name, func(t *testing.T) {
				n := rig.NewNode(t, rig.Setup{Runtime: runtime})
				shared := n.Dir + "/shared"
				must(t, os.Mkdir(shared, 0o777))
				g := n.Grant("--mode", "exclusive", "--gpu", "0")
				holder := starts(t, n.Bundle("holder", with(g), rig.Light,
					runsTenant(t, "open", "/dev/full", "send", "/shared/s", "wait"),
					bindAt(shared, "/shared")))
				rig.Eventually(t, "the holder has its GPU", func() bool { return exists(shared + "/s") })
				s := starts(t, receiver(t, n, holder, shared))
				rig.Eventually(t, "the other container has it too", func() bool {
					return exists(shared + "/got")
				})
				decoy := starts(t, n.Bundle("decoy", rig.Light,
					runsTenant(t, "open", "/dev/null", "place", "/dev/full", "wait")))

				r := watchFindings(t, n)
				if len(r.Findings) != 1 || r.Findings[0].Kind != grant.OutsideLedger ||
					r.Findings[0].User.Container != s.ID {
					t.Fatalf("while the holder runs: %+v", r.Findings)
				}
				// for its runtime it has ended when its first thread has
				pid := r.Findings[0].User.Processes[0].PID
				if t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) }); pid <= 1 {
					t.Fatal(pid)
				}
				holder.End()
				becomesFree(t, n, g.ID)
				watchFindings(t, n)
				next := n.Bundle("next", with(g), rig.Light)
				refused := next.Create()
				wantRefused(t, refused, "grant-in-use")
				if strings.Contains(refused.Stderr, s.ID) {
					t.Errorf("the tenant's text names the holder: %s", refused.Stderr)
				}
				if r := n.CLI("grant", "--update", string(g.ID), "--ttl", "1h"); r.Code != 0 {
					t.Errorf("the grant cannot be changed: %+v", r)
				}
				n.Must("release", string(g.ID))
				if r := n.CLI("grant", "--mode", "exclusive", "--gpu", "0"); r.Code != 5 {
					t.Errorf("another exclusive grant: %+v", r)
				}
				shares := n.Grant("--memory", "1GiB", "--gpu", "0")
				starts(t, n.Bundle("shares", with(shares), rig.Light)).End()
				n.Must("release", string(shares.ID))
				must(t, unix.Kill(pid, unix.SIGKILL))
				rig.Eventually(t, "the other container has ended", func() bool {
					return len(threadsOf(pid)) < 2
				})
				s.End()
				if r := watchFindings(t, n); len(r.Findings) != 0 {
					t.Errorf("the other container has ended: %+v", r.Findings)
				}
				g = n.Grant("--mode", "exclusive", "--gpu", "0")
				starts(t, n.Bundle("last", with(g), rig.Light)).End()
				decoy.End()
			})
		}
	})
}

// watchFindings is what the watch finds, and records, of a node on which no process computes.
func watchFindings(t *testing.T, n *rig.Node) watch.Comparison {
	t.Helper()
	opened := node.Open(n.Config, host.Default())
	o, err := grants.Read(opened)
	must(t, err)
	open, _ := watch.OpenGPUs(opened.Host, map[uint64]string{unix.Mkdev(1, 7): o.Inventory.GPUs[0].UUID})
	census := watch.ProcessTable{Host: opened.Host}
	defer census.Close()
	pids := watch.InitPIDs(o.Grants)
	for _, processes := range open {
		for _, p := range processes {
			pids = append(pids, p.PID)
		}
	}
	var sample grant.Sample
	for _, g := range o.Inventory.GPUs {
		sample.GPUs = append(sample.GPUs, grant.Usage{UUID: g.UUID, Index: g.Index,
			Health: grant.Healthy, Total: g.Memory})
	}
	r := watch.Compare(watch.Input{Sample: sample, Processes: census.Lookup(pids), Grants: o.Grants,
		Inventory: o.Inventory, Open: open})
	must(t, opened.Ledger.SetFound(ledger.Found{Outside: r.Outside(), Held: r.Held()}))
	return r
}

// TestACheckpointBringsNoDeviceRules: on cgroup v1, CRIU writes the device rules of its images,
// which were never judged, if its configuration makes it restore the properties of the container's
// own cgroup. CRIU itself does not run here: the runtime behind the wrapper does nothing.
func TestACheckpointBringsNoDeviceRules(t *testing.T) {
	for _, layout := range []rig.Layout{rig.V1, rig.V2} {
		t.Run(string(layout), func(t *testing.T) {
			if rig.Under(t, layout) {
				return
			}
			n := rig.NewNode(t, rig.Setup{})
			setRuntime(t, n, stub(t, n, "runc version 1.5.2"))
			for i, c := range []struct {
				options string
				brings  bool
			}{
				{"", false}, {"--manage-cgroups-mode soft", false}, {"--manage-cgroups-mode=ignore", false},
				{"--manage-cgroups-mode full", true}, {"--manage-cgroups-mode=strict", true},
			} {
				b := n.Bundle(fmt.Sprintf("c%d", i), rig.Light)
				args := append([]string{"restore", "--image-path", n.Dir + "/images"},
					strings.Fields(c.options)...)
				r := rig.Run(n.Wrapper(append(args, "--bundle", b.Dir, b.ID)...))
				if c.brings && layout == rig.V1 {
					wantRefused(t, r, "gpu-device-rule")
				} else if r.Code != 0 || r.Stderr != "" {
					t.Errorf("%s: %+v", c.options, r)
				}
			}
		})
	}
}

// stub makes a runtime that prints a version, and otherwise does nothing. It returns its path.
func stub(t *testing.T, n *rig.Node, version string) string {
	t.Helper()
	path := n.Write("stub", "#!/bin/sh\n[ \"$1\" != --version ] || echo "+version+"\n")
	must(t, os.Chmod(path, 0o755))
	return path
}

// TestARestoredContainerStaysInItsCgroup: older runtimes let CRIU move the processes of a restored
// container into the cgroup that its checkpoint names, which has no device rules. Without a GPU on
// the node nothing is lost. CRIU itself does not run here.
func TestARestoredContainerStaysInItsCgroup(t *testing.T) {
	for _, layout := range []rig.Layout{rig.V1, rig.V2} {
		t.Run(string(layout), func(t *testing.T) {
			if rig.Under(t, layout) {
				return
			}
			n := rig.NewNode(t, rig.Setup{})
			restores := func(options ...string) rig.Result {
				b := n.Bundle("c", rig.Light)
				defer b.End()
				return rig.Run(n.Wrapper(append(append(options, "restore", "--image-path", n.Dir+"/images"),
					"--bundle", b.Dir, b.ID)...))
			}
			for _, c := range []struct {
				version, options string
				v1, v2           bool // it is refused there
			}{
				{"runc version 1.1.5", "", false, true}, {"runc version 1.2.0", "", false, false},
				{"crun version 1.8.1", "--systemd-cgroup", true, true},
				{"crun version 1.21", "--systemd-cgroup", false, false},
				{"something else", "", true, true},
			} {
				setRuntime(t, n, stub(t, n, c.version))
				r := restores(strings.Fields(c.options)...)
				if layout == rig.V1 && c.v1 || layout == rig.V2 && c.v2 {
					wantRefused(t, r, "rules-not-enforced")
					if !strings.Contains(r.Stderr, "or newer is needed") {
						t.Errorf("%s: it does not say which version is needed: %s", c.version, r.Stderr)
					}
				} else if r.Code != 0 || r.Stderr != "" {
					t.Errorf("%s: %+v", c.version, r)
				}
			}

			setRuntime(t, n, stub(t, n, "crun version 1.8.1"))
			hooked := restoredByHook(t, n)
			if hooked.Code == 0 || !strings.Contains(hooked.Stderr, "refused (rules-not-enforced)") {
				t.Errorf("by the hook: %+v", hooked)
			}
			config := read(t, n.Config)
			n.Config = n.Write("report.toml", config+"\n[policy]\nmode = \"report\"\n")
			if r := restores(); r.Code != 0 ||
				!strings.Contains(r.Stderr, "would be refused (rules-not-enforced)") {
				t.Errorf("in report mode: %+v", r)
			}
			n.Config = n.Write("none.toml", strings.Replace(config, `source = "simulated"`,
				`source = "nvml"`, 1))
			must(t, os.Remove(n.Dir+"/state/inventory.json"))
			rig.Mount(t, "tmpfs", "/sys/bus/pci/devices", "tmpfs", 0, "")
			if r := restores(); r.Code != 0 || r.Stderr != "" {
				t.Errorf("on a node without a GPU: %+v", r)
			}
			if r := restoredByHook(t, n); r.Code != 0 || r.Stderr != "" {
				t.Errorf("by the hook, on a node without a GPU: %+v", r)
			}
		})
	}
}

// restoredByHook calls the hook as a runtime does that restores a container. The runtime is a shell
// that runs a script of the name "restore".
func restoredByHook(t *testing.T, n *rig.Node) rig.Result {
	t.Helper()
	b := n.Bundle("hooked", rig.Light)
	defer b.End()
	n.Write("restore", rig.Binary(t, "gpuledger-hook")+" createRuntime; exit $?\n")
	cmd := exec.Command("/bin/sh", "restore", "--bundle", b.Dir, b.ID)
	cmd.Dir, cmd.Env = n.Dir, append(os.Environ(), "GPULEDGER_CONFIG="+n.Config)
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"ociVersion":"1.0.2","id":%q,"status":"creating",`+
		`"pid":%d,"bundle":%q}`, b.ID, os.Getpid(), b.Dir))
	return rig.Run(cmd)
}

// TestOpenCgroupsMoveProcesses: without the wrapper, a process that has a file of a holder's cgroup
// open moves itself there and opens its GPU. With the wrapper, no such file is passed in.
func TestOpenCgroupsMoveProcesses(t *testing.T) {
	eachRuntime(t, func(t *testing.T, runtime string) {
		n := rig.NewNode(t, rig.Setup{Runtime: runtime})
		g := n.Grant("--mode", "exclusive", "--gpu", "0")
		holder := starts(t, n.Bundle("holder", with(g)))
		work := starts(t, n.Bundle("work"))
		dir := deviceCgroup(t, holder.Init())
		for _, c := range []struct{ open, script string }{
			{dir + "/cgroup.procs", "echo 0 >&3\n"}, {dir + "/tasks", "echo 0 >&3\n"},
			{dir, "echo 0 >/proc/self/fd/3/cgroup.procs\n"},
		} {
			if !exists(c.open) {
				continue // version 2 has no tasks
			}
			run := func(cmd *exec.Cmd) rig.Result {
				flags := os.O_WRONLY
				if c.open == dir {
					flags = os.O_RDONLY
				}
				f, err := os.OpenFile(c.open, flags, 0)
				must(t, err)
				defer f.Close()
				cmd.ExtraFiles = []*os.File{f}
				return rig.Run(cmd)
			}
			words := []string{"exec", "--preserve-fds", "1", "work", "/bin/busybox", "sh", "-c",
				c.script + opensGPU}
			alone := run(n.Real(words...))
			t.Logf("%s alone, %s: %+v", runtime, filepath.Base(c.open), alone)
			if !strings.Contains(alone.Stdout, "c 195:0 open") {
				t.Errorf("%s alone: with %s open nothing is shown: %+v", runtime, c.open, alone)
			}
			wantRefused(t, run(n.Wrapper(words...)), "gpu-socket")
			b := n.Bundle("new", rig.Light)
			wantRefused(t, run(n.Wrapper("create", "--preserve-fds=1", "--bundle", b.Dir, b.ID)),
				"gpu-socket")
			b.End()
		}
		opensItsGPU(t, n, holder, "at the end")
		work.End()
		holder.End()
	})
}
