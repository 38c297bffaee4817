package test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/test/rig"
)

// mpsNode is a node whose driver has a stand-in for NVIDIA's MPS (test/fakemps).
type mpsNode struct {
	*rig.Node
	t       *testing.T
	program string
}

func newMPSNode(t *testing.T, s rig.Setup) mpsNode {
	t.Helper()
	rig.Need(t, "gcc")
	if !strings.Contains(s.Config, "[daemon]") {
		s.Config += busy
	}
	n := mpsNode{Node: rig.NewNode(t, s), t: t}
	withDriver(t, n.Node)
	n.program = filepath.Join(n.Dir, "driver/usr/bin/nvidia-cuda-mps-control")
	build := exec.Command("go", "build", "-p", "2", "-trimpath", "-o", n.program,
		"github.com/gpuledger/gpuledger/test/fakemps")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build fakemps: %v\n%s", err, out)
	}
	must(t, os.Link(n.program, filepath.Join(filepath.Dir(n.program), grant.MPSServer)))
	n.Must("inventory", "refresh")
	t.Cleanup(n.EndMPS)
	return n
}

// eventually is rig.Eventually with more time: between a grant and its clients are a daemon's pass,
// several programs and their answers.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	rig.Within(t, 2*time.Minute, what, is)
}

// states are what gpuledgerd has written about its daemons.
func (n mpsNode) states() (all []grant.MPSDaemon) {
	files, _ := filepath.Glob(filepath.Join(n.Dir, "run/mps/*/state.json"))
	for _, file := range files {
		var m grant.MPSDaemon
		if data, err := os.ReadFile(file); err == nil && json.Unmarshal(data, &m) == nil {
			all = append(all, m)
		}
	}
	return all
}

// ready waits for that many daemons and returns them.
func (n mpsNode) ready(count int) (all []grant.MPSDaemon) {
	n.t.Helper()
	eventually(n.t, fmt.Sprintf("%d MPS daemons are ready", count), func() bool {
		all = n.states()
		return len(all) == count && !slices.ContainsFunc(all, func(m grant.MPSDaemon) bool {
			return m.Problem != ""
		})
	})
	return all
}

// readyAgain reports whether there is one daemon, ready, and it is not as before.
func (n mpsNode) readyAgain(isOther func(grant.MPSDaemon) bool) bool {
	all := n.states()
	return len(all) == 1 && all[0].Problem == "" && isOther(all[0])
}

// client is a bundle that runs a CUDA program, with its output in /tmp/out if it keeps running.
func (n mpsNode) client(id string, r grant.Reference, deeds string, edits ...rig.Edit) *rig.Bundle {
	n.t.Helper()
	b := n.Bundle(id, append([]rig.Edit{with(r), rig.Light, rig.Shell("/bin/client " + deeds)}, edits...)...)
	if path := filepath.Join(b.Dir, "rootfs/bin/client"); os.Link(n.program, path) != nil {
		n.t.Fatalf("cannot link %s", path)
	}
	return b
}

// holds starts a client that keeps running, and waits until it has what it allocates.
func (n mpsNode) holds(id string, r grant.Reference) *rig.Bundle {
	n.t.Helper()
	b := starts(n.t, n.client(id, r, "0:64 hold >/tmp/out 2>&1; echo end >>/tmp/out; "+
		"/bin/busybox sleep 1000"))
	eventually(n.t, id+" is a client", func() bool {
		return strings.Contains(clientOutput(b), "0:64 CUDA_SUCCESS\n")
	})
	return b
}

func clientOutput(b *rig.Bundle) string {
	text, _ := os.ReadFile(filepath.Join(b.Dir, "rootfs/tmp/out"))
	return string(text)
}

// wants compares a client's output.
func (n mpsNode) wants(b *rig.Bundle, want string) {
	n.t.Helper()
	if r := b.Run(); r.Code != 0 || r.Stdout != want {
		n.t.Errorf("%s: %+v\nwant\n%s", b.ID, r, want)
	}
}

// TestMPS is the life of a daemon, from the first grant to the last, with what its clients get.
func TestMPS(t *testing.T) {
	n := newMPSNode(t, rig.Setup{})
	small := n.Grant("--mode", "mps", "--memory", "2GiB", "--compute", "25", "--gpu", "0")
	early := n.client("early", small, "0:1")
	wantRefused(t, early.Create(), "mps-not-ready")
	if r := early.Explain(); r.Code != 3 || !strings.Contains(r.Stdout+r.Stderr,
		"no daemon runs for its GPUs") {
		t.Errorf("explain: %+v", r)
	}
	n.Daemon("--nri", "off")
	daemon := n.ready(1)[0]
	if daemon.Limits[daemon.GPUs[0]] != 2*grant.GiB || daemon.Threads != 25 || len(daemon.Servers) != 1 {
		t.Errorf("%+v", daemon)
	}
	for _, p := range append(daemon.Servers, daemon.Daemon) {
		if late := read(t, fmt.Sprintf("/proc/%d/timerslack_ns", p.PID)); late != "50000\n" {
			t.Errorf("process %d of the daemon is woken %s ns late, as gpuledgerd is", p.PID,
				strings.TrimSpace(late))
		}
	}
	const small25 = "mps threads=25\n0:1500 CUDA_SUCCESS\n0:548 CUDA_SUCCESS\n0:1 CUDA_ERROR_OUT_OF_MEMORY\n"
	n.wants(n.client("c1", small, "0:1500 0:548 0:1"), small25)

	large := n.Grant("--mode", "mps", "--memory", "4GiB", "--compute", "50", "--gpu", "0")
	eventually(t, "the daemon's limits have grown", func() bool {
		m := n.ready(1)[0]
		return m.Limits[m.GPUs[0]] == 4*grant.GiB && m.Threads == 50
	})
	if m := n.ready(1)[0]; m.Daemon != daemon.Daemon || m.Servers[0] != daemon.Servers[0] {
		t.Errorf("for a larger grant %+v became %+v", daemon, m)
	}
	n.wants(n.client("c2", large, "0:4096 0:1"),
		"mps threads=50\n0:4096 CUDA_SUCCESS\n0:1 CUDA_ERROR_OUT_OF_MEMORY\n")
	n.wants(n.client("c3", small, "0:1500 0:548 0:1"), small25)

	for _, r := range []grant.Reference{small, large} {
		n.Must("release", string(r.ID))
	}
	n.gone()
	if rig.Lives(daemon.Daemon.PID) {
		t.Error("the daemon is still there")
	}
	// The daemon kills it, and ends without waiting for it.
	eventually(t, "its server has ended", func() bool { return !rig.Lives(daemon.Servers[0].PID) })
	n.Grant("--mode", "exclusive", "--gpu", "0")
}

// awaited is what a create comes to that waits for its daemon. A slow machine may need longer for
// that than a create waits: then it is repeated, as by a kubelet.
func awaited(create func() rig.Result) (r rig.Result, repeated bool) {
	for end := time.Now().Add(2 * time.Minute); ; repeated = true {
		began := time.Now()
		r = create()
		if !strings.Contains(r.Stderr, "refused ("+string(grant.MPSNotReady)+")") || time.Now().After(end) ||
			time.Since(began) < node.MaxTimeout-100*time.Millisecond { // it has not waited
			return r, repeated
		}
	}
}

// TestMPSIsAdopted: a container that adopts an allocation in mode mps has no grant until it starts.
// Its create asks for the daemon and waits for it, and for larger limits of one that runs.
func TestMPSIsAdopted(t *testing.T) {
	n := newMPSNode(t, rig.Setup{Engine: "containerd", Config: adopts + busy})
	adopter := func(id, memory, compute, deeds string) *rig.Bundle {
		t.Helper()
		b := n.Bundle(id, inPod(id), written(id, "gpus", "0", "memory", memory, "mode", "mps", "compute",
			compute), rig.Annotation("gpuledger.dev/grant", "adopt"), rig.Light,
			rig.Shell("/bin/client "+deeds))
		must(t, os.Link(n.program, filepath.Join(b.Dir, "rootfs/bin/client")))
		return b
	}
	wantRefused(t, adopter("early", "2GiB", "25", "0:1").Create(), "mps-not-ready") // no gpuledgerd waits
	if wanted, _ := filepath.Glob(n.Dir + "/run/mps-wanted/*.json"); len(wanted) != 1 {
		t.Errorf("it asks for %v", wanted)
	}
	must(t, os.RemoveAll(n.Dir+"/run/mps-wanted"))
	daemon := n.Daemon("--nri", "off")
	eventually(t, "gpuledgerd runs", func() bool { return strings.Contains(daemon.Log(), "started") })
	again := false
	creates := func(b *rig.Bundle, create func() rig.Result, want string) {
		t.Helper()
		r, repeated := awaited(create)
		if repeated {
			t.Logf("%s was refused after %v, and created again", b.ID, node.MaxTimeout)
		}
		if again = again || repeated; r.Code != 0 || r.Stdout != want {
			t.Fatalf("%s: %+v\nwant\n%s", b.ID, r, want)
		}
	}
	first := adopter("first", "2GiB", "25", "0:2048 0:1")
	creates(first, first.Run, "mps threads=25\n0:2048 CUDA_SUCCESS\n0:1 CUDA_ERROR_OUT_OF_MEMORY\n")
	holds := adopter("stays", "2GiB", "25", "0:64 hold >/tmp/out 2>&1")
	creates(holds, holds.Create, "")
	succeeds(t, holds.Start())
	eventually(t, "it is a client", func() bool {
		return clientOutput(holds) == "mps threads=25\n0:64 CUDA_SUCCESS\n"
	})
	before := n.ready(1)[0]
	larger := adopter("larger", "4GiB", "50", "0:4096 0:1")
	creates(larger, larger.Run, "mps threads=50\n0:4096 CUDA_SUCCESS\n0:1 CUDA_ERROR_OUT_OF_MEMORY\n")
	if m := n.ready(1)[0]; m.Daemon != before.Daemon {
		t.Errorf("for a larger allocation %+v became %+v", before, m)
	}
	asked := func() []string {
		files, _ := filepath.Glob(n.Dir + "/run/mps-wanted/*")
		return files
	}
	if left := asked(); len(left) != 0 && !again {
		t.Errorf("what was asked for is left: %v", left)
	}
	// gpuledgerd forgets after a minute what a refused create has asked for
	eventually(t, "nothing is asked for any more", func() bool { return len(asked()) == 0 })
	if r := holds.Delete(); r.Code != 0 {
		t.Errorf("%+v", r)
	}
	n.gone()
	if g := n.Grants(); len(g) != 0 {
		t.Errorf("%+v are left", g)
	}
}

// gone waits until nothing is left of any daemon.
func (n mpsNode) gone() {
	n.t.Helper()
	eventually(n.t, "nothing is left of the MPS daemons", func() bool {
		left, _ := filepath.Glob(filepath.Join(n.Dir, "run/mps/*"))
		return len(left) == 0
	})
	if mounts, _ := os.ReadFile("/proc/self/mountinfo"); strings.Contains(string(mounts),
		filepath.Join(n.Dir, "run/mps")) {
		n.t.Error("shared memory is still mounted")
	}
}

// TestEveryTrapOfMPSHasItsTest compares the table of docs/strength.md with the existing tests.
func TestEveryTrapOfMPSHasItsTest(t *testing.T) {
	_, section, found := strings.Cut(read(t, "../docs/strength.md"),
		"\n### What MPS gets wrong without a word\n")
	if !found {
		t.Fatal("docs/strength.md has no such section")
	}
	var tests strings.Builder
	must(t, filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, "_test.go") {
			tests.WriteString(read(t, path))
		}
		return err
	}))
	traps := 0
	for _, row := range regexp.MustCompile(`(?m)^\| .* \| (`+"`.*`"+
		`) \|$`).FindAllStringSubmatch(section, -1) {
		traps++
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			function, row, isRow := strings.Cut(name[1], "/")
			if !strings.Contains(tests.String(), "\nfunc "+function+"(") ||
				isRow && !strings.Contains(tests.String(), `"`+row+`"`) {
				t.Errorf("there is no test %s", name[1])
			}
		}
	}
	if traps < 19 {
		t.Errorf("%d traps", traps)
	}
}

// TestMPSTraps: errors of NVIDIA's parts that they do not report (reference in docs/strength.md),
// one row each.
func TestMPSTraps(t *testing.T) {
	n := newMPSNode(t, rig.Setup{})
	g := n.Grant("--mode", "mps", "--memory", "2GiB", "--compute", "25", "--gpu", "1")
	n.Daemon("--nri", "off")
	n.ready(1)
	const bound = "mps threads=25\n0:2048 CUDA_SUCCESS\n0:1 CUDA_ERROR_OUT_OF_MEMORY\n"
	for name, edit := range map[string]rig.Edit{
		"a limit that names a GPU which is not there drops all limits": rig.Env(
			"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=7=1G"),
		"of two, the second": rig.Env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G",
			"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=7=1G"),
		"a pipe directory without a daemon": rig.Env("CUDA_MPS_PIPE_DIRECTORY=/nowhere"),
		"a thread percentage of its own":    rig.Env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100"),
		"a protocol of its own":             rig.Env("CUDA_MPS_PROTOCOL_VERSION=3"),
		"a partition of its own":            rig.Env("CUDA_MPS_SM_PARTITION=GPU-0/abc"),
		"shared memory of its own, or the pod's": func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/dev/shm", Type: "tmpfs", Source: "shm"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			n.wants(n.client("trap"+fmt.Sprint(len(name)), g, "0:2048 0:1", edit), bound)
		})
	}
	t.Run("a program that has lost its environment still finds the daemon", func(t *testing.T) {
		b := n.client("bare", g, "", rig.Shell("/bin/busybox env -i /bin/client 0:2048 0:1"))
		n.wants(b, bound)
	})
	t.Run("limits are a process's: this is what MPS cannot do", func(t *testing.T) {
		b := n.client("two", g, "", rig.Shell(`/bin/client 0:2048 hold >/tmp/one &
until /bin/busybox grep -q SUCCESS /tmp/one; do /bin/busybox sleep 0.05; done
/bin/client 0:2048; /bin/busybox cat /tmp/one; kill $!`))
		r := b.Run()
		if strings.Count(r.Stdout, "0:2048 CUDA_SUCCESS\n") != 2 {
			t.Errorf("two processes of one container: %+v; if they share a limit now, docs/strength.md "+
				"says otherwise", r)
		}
	})
	t.Run("a client that leaves the daemon has the whole GPU", func(t *testing.T) {
		b := n.client("away", g, "", rig.Shell("CUDA_MPS_PIPE_DIRECTORY=/nowhere /bin/client 0:99999"))
		n.wants(b, "plain CUDA, the whole GPU\n0:99999 CUDA_SUCCESS\n")
	})
	t.Run("another user than the server's", func(t *testing.T) {
		b := n.client("user", g, "0:1", func(s *specs.Spec) { s.Process.User.UID = 1000 })
		wantRefused(t, b.Create(), "mps-not-ready")
	})
	t.Run("a user namespace", func(t *testing.T) {
		b := n.client("userns", g, "0:1", func(s *specs.Spec) {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
			s.Linux.UIDMappings = []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}}
			s.Linux.GIDMappings = s.Linux.UIDMappings
		})
		wantRefused(t, b.Create(), "mps-not-ready")
	})
	t.Run("the pipe directory of another's grant", func(t *testing.T) {
		pipe := filepath.Join(grant.MPSDir(n.Dir+"/run", grant.MPSName(n.states()[0].GPUs)), "pipe")
		mount := func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: grant.PipeInContainer, Type: "bind",
				Source: pipe, Options: []string{"bind"}})
		}
		wantRefused(t, n.Bundle("none", mount).Create(), "gpu-socket")
		wantRefused(t, n.Bundle("other", mount, with(n.Grant("--memory", "1GiB", "--gpu", "0"))).Create(),
			"gpu-socket")
	})
}

// TestMPSIsNotReady: a daemon that runs and does not obey its commands gets no clients.
func TestMPSIsNotReady(t *testing.T) {
	n := newMPSNode(t, rig.Setup{})
	moods := filepath.Join(filepath.Dir(n.program), "fakemps.moods")
	mood := func(word string) {
		must(t, os.WriteFile(moods+".new", []byte(word), 0o644))
		must(t, os.Rename(moods+".new", moods))
	}
	n.Daemon("--nri", "off")
	for word, problem := range map[string]string{"deaf": "its limit on GPU",
		"initializing": "is INITIALIZING", "fault": "is FAULT", "stillborn": "cannot find a GPU"} {
		t.Run(word, func(t *testing.T) {
			mood(word)
			g := n.Grant("--mode", "mps", "--memory", "2GiB", "--gpu", "0")
			eventually(t, "it is reported: "+problem, func() bool {
				return slices.ContainsFunc(n.states(), func(m grant.MPSDaemon) bool {
					return strings.Contains(m.Problem, problem)
				})
			})
			b := n.client(word, g, "0:1")
			wantRefused(t, b.Create(), "mps-not-ready")
			mood("")
			n.ready(1)
			n.wants(b, "mps threads=100\n0:1 CUDA_SUCCESS\n")
			n.Must("release", string(g.ID))
			n.gone()
		})
	}
	t.Run("its limits are changed by a program that reaches its socket", func(t *testing.T) {
		g := n.Grant("--mode", "mps", "--memory", "2GiB", "--gpu", "0")
		dir := grant.MPSDir(n.Dir+"/run", grant.MPSName(n.ready(1)[0].GPUs))
		ask := func(command string) string {
			c := exec.Command(n.program)
			c.Env, c.Stdin = []string{"CUDA_MPS_PIPE_DIRECTORY=" + dir + "/pipe"},
				strings.NewReader(command+"\n")
			return rig.Run(c).Stdout
		}
		ask("set_default_device_pinned_mem_limit 0 9000M")
		eventually(t, "they are set again", func() bool {
			return ask("get_default_device_pinned_mem_limit 0") == "2G\n"
		})
		n.Must("release", string(g.ID))
		n.gone()
	})
}

// TestMPSUsers: with enforcement.mps_users = "all" containers of any user are clients of root's
// server, each limited to its grant. If the driver's program does not support it, or keeps its
// socket to root, no other user is a client.
func TestMPSUsers(t *testing.T) {
	n := newMPSNode(t, rig.Setup{Config: "[enforcement]\nmps_users = \"all\"\n"})
	n.Daemon("--nri", "off")
	g := n.Grant("--mode", "mps", "--memory", "2GiB", "--compute", "25", "--gpu", "0")
	daemon := n.ready(1)[0]
	if !daemon.Anybody {
		t.Errorf("%+v", daemon)
	}
	const bound = "mps threads=25\n0:2048 CUDA_SUCCESS\n0:1 CUDA_ERROR_OUT_OF_MEMORY\n"
	as := func(uid uint32) rig.Edit {
		return func(s *specs.Spec) { s.Process.User.UID, s.Process.User.GID = uid, uid }
	}
	n.wants(n.client("root", g, "0:2048 0:1"), bound)
	n.wants(n.client("user", g, "0:2048 0:1", as(1000)), bound)
	n.wants(n.client("another", g, "0:2048 0:1", as(65534)), bound)
	others := n.Grant("--mode", "mps", "--memory", "1GiB", "--compute", "10", "--gpu", "0")
	b := starts(t, n.client("stays", g, "0:64 hold >/tmp/out 2>&1; /bin/busybox sleep 1000"))
	eventually(t, "it is a client", func() bool {
		return strings.Contains(clientOutput(b), "0:64 CUDA_SUCCESS\n")
	})
	n.wants(n.client("beside", others, "0:1024 0:1", as(2000)),
		"mps threads=10\n0:1024 CUDA_SUCCESS\n0:1 CUDA_ERROR_OUT_OF_MEMORY\n")
	if m := n.ready(1)[0]; m.Daemon != daemon.Daemon || fmt.Sprint(m.Servers) != fmt.Sprint(daemon.Servers) {
		t.Errorf("for another user %+v became %+v", daemon, m)
	}
	b.End()
	for _, r := range []grant.Reference{g, others} {
		n.Must("release", string(r.ID))
	}
	n.gone()
	moods := filepath.Join(filepath.Dir(n.program), "fakemps.moods")
	for word, problem := range map[string]string{"narrow": "its control socket is open to root alone"} {
		must(t, os.WriteFile(moods, []byte(word), 0o644))
		g := n.Grant("--mode", "mps", "--memory", "2GiB", "--gpu", "0")
		eventually(t, "it is reported: "+problem, func() bool {
			return slices.ContainsFunc(n.states(), func(m grant.MPSDaemon) bool {
				return strings.Contains(m.Problem, problem)
			})
		})
		wantRefused(t, n.client(word, g, "0:1", as(1000)).Create(), "mps-not-ready")
		n.Must("release", string(g.ID))
		n.gone()
	}
}

// TestMPSSocketIsReplaced: if a client puts another socket in the daemon's place, new clients are
// refused, and it is logged. The existing clients go on: they have their connection.
func TestMPSSocketIsReplaced(t *testing.T) {
	n := newMPSNode(t, rig.Setup{})
	d := n.Daemon("--nri", "off")
	g, other := n.Grant("--mode", "mps", "--memory", "1GiB", "--gpu", "0"),
		n.Grant("--mode", "mps", "--memory", "1GiB", "--gpu", "0")
	daemon := n.ready(1)[0]
	b := starts(t, n.client("client", g, "0:64 talk >/tmp/out 2>&1; echo end >>/tmp/out; "+
		"/bin/busybox sleep 1000"))
	eventually(t, "it is a client", func() bool { return strings.Contains(clientOutput(b), "beat\n") })
	n.wants(n.client("before", other, "0:1"), "mps threads=100\n0:1 CUDA_SUCCESS\n")
	d.End(syscall.SIGKILL) // only the create itself looks
	pipe := filepath.Join(grant.MPSDir(n.Dir+"/run", grant.MPSName(daemon.GPUs)), "pipe")
	steals := func(id string) *rig.Bundle {
		thief := n.client(id, other, "", rig.Shell("cd /tmp/nvidia-mps; /bin/busybox mkdir elsewhere; "+
			"/bin/busybox mv control control_privileged elsewhere; exec /bin/nvidia-cuda-mps-control -f"),
			rig.Env("CUDA_VISIBLE_DEVICES=0"))
		must(t, os.Link(n.program, filepath.Join(thief.Dir, "rootfs/bin/nvidia-cuda-mps-control")))
		starts(t, thief)
		eventually(t, "there is another daemon in its place", func() bool {
			_, err := os.Stat(filepath.Join(pipe, "elsewhere/control_privileged"))
			_, e := os.Stat(filepath.Join(pipe, "control_privileged"))
			return err == nil && e == nil
		})
		return thief
	}
	giveBack := func(thief *rig.Bundle) {
		thief.End()
		for _, name := range []string{"control", "control_privileged"} {
			must(t, os.Rename(filepath.Join(pipe, "elsewhere", name), filepath.Join(pipe, name)))
		}
		must(t, os.Remove(filepath.Join(pipe, "elsewhere")))
	}
	thief := steals("thief")
	late := n.client("late", n.Grant("--mode", "mps", "--memory", "1GiB", "--gpu", "0"), "0:1")
	wantRefused(t, late.Create(), "mps-not-ready")
	if r := late.Explain(); !strings.Contains(r.Stdout+r.Stderr, "its control socket was replaced") {
		t.Errorf("explain: %+v", r)
	}
	d = n.Daemon("--nri", "off")
	eventually(t, "gpuledgerd logs it", func() bool {
		return strings.Contains(d.Log(), "its control socket was replaced by another")
	})
	wantRefused(t, late.Create(), "mps-not-ready")
	giveBack(thief)
	if m := n.ready(1)[0]; m.Daemon != daemon.Daemon || fmt.Sprint(m.Servers) != fmt.Sprint(daemon.Servers) {
		t.Errorf("%+v became %+v", daemon, m)
	}
	n.wants(late, "mps threads=100\n0:1 CUDA_SUCCESS\n")
	stillTalk(t, "after all", []*rig.Bundle{b})

	b.End()
	thief = steals("again")
	// as a client can, by the daemon's own socket or by a fault
	must(t, syscall.Kill(daemon.Servers[0].PID, syscall.SIGKILL))
	eventually(t, "the server's end does not make another program's socket the daemon's", func() bool {
		m := n.states()[0]
		return len(m.Servers) == 0 && m.Daemon == daemon.Daemon && m.Socket == daemon.Socket &&
			strings.Contains(m.Problem, "its control socket was replaced by another")
	})
	wantRefused(t, late.Create(), "mps-not-ready")
	giveBack(thief)
	if m := n.ready(1)[0]; m.Daemon != daemon.Daemon || fmt.Sprint(m.Servers) == fmt.Sprint(daemon.Servers) {
		t.Errorf("%+v became %+v", daemon, m)
	}
	n.wants(late, "mps threads=100\n0:1 CUDA_SUCCESS\n")
}

// TestMPSLinksOfClients: a client can create any file in its daemon's directory, while the daemon
// runs and after its end. None of them leads root's programs to another file of the node, and
// nothing of one daemon is left for the next.
func TestMPSLinksOfClients(t *testing.T) {
	n := newMPSNode(t, rig.Setup{})
	g, other := n.Grant("--mode", "mps", "--memory", "1GiB", "--gpu", "0"),
		n.Grant("--mode", "mps", "--memory", "1GiB", "--gpu", "0")
	d := n.Daemon("--nri", "off")
	was := n.ready(1)[0]
	root := fmt.Sprintf("/proc/%d/root", n.holds("client", g).Init())
	its := root + grant.PipeInContainer
	victim, precious := filepath.Join(n.Dir, "victim"), n.Write("precious", "root:x:0:0\n")
	plant := func(name, target string) { // as a client that is quicker than the program that removes it
		_ = os.RemoveAll(filepath.Join(its, name))
		_ = os.Symlink(target, filepath.Join(its, name))
	}
	plant("control_lock", victim)
	exists := func() bool { _, err := os.Lstat(victim); return err == nil }
	eventually(t, "a request to the daemon meets the link", func() bool {
		return exists() || strings.Contains(n.states()[0].Problem, "too many levels of symbolic links")
	})
	if exists() {
		t.Error("root's program has created a file of the node at a client's link")
	}
	must(t, os.Remove(filepath.Join(its, "control_lock")))
	if m := n.ready(1)[0]; m.Daemon != was.Daemon {
		t.Errorf("%+v became %+v", was, m)
	}

	plant("nvidia-cuda-mps-control.pid", precious)
	for name, dir := range map[string]string{"pipe": its, "shm": root + "/dev/shm"} {
		must(t, os.WriteFile(filepath.Join(dir, "left of "+name), nil, 0o600))
	}
	must(t, syscall.Kill(was.Daemon.PID, syscall.SIGKILL))
	eventually(t, "another one is ready", func() bool {
		plant("nvidia-cuda-mps-control.pid", precious)
		return n.readyAgain(func(m grant.MPSDaemon) bool { return m.Daemon != was.Daemon })
	})
	if text := read(t, precious); text != "root:x:0:0\n" {
		t.Errorf("the next daemon has written %q at a client's link", text)
	}
	dir := grant.MPSDir(n.Dir+"/run", grant.MPSName(was.GPUs))
	for _, name := range []string{"pipe", "shm"} {
		if _, err := os.Lstat(filepath.Join(dir, name, "left of "+name)); err == nil {
			t.Errorf("the next daemon has the %s of the one before it", name)
		}
		if at := rig.Run(exec.Command("findmnt", "--noheadings", "--output", "TARGET", "--mountpoint",
			filepath.Join(dir, name))).Stdout; strings.Count(at, "\n") != 1 {
			t.Errorf("%s is mounted at\n%s", name, at)
		}
	}
	must(t, os.WriteFile(filepath.Join(its, "late"), nil, 0o600),
		os.WriteFile(filepath.Join(root, "dev/shm/late"), nil, 0o600))
	for _, name := range []string{"pipe", "shm"} {
		if _, err := os.Lstat(filepath.Join(dir, name, "late")); err == nil {
			t.Errorf("a container of the daemon before writes to the %s of this one", name)
		}
	}
	n.wants(n.client("next", other, "0:1"), "mps threads=100\n0:1 CUDA_SUCCESS\n")
	pid := n.ready(1)[0].Daemon.PID
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	eventually(t, "the end of the next is logged too, with the client of the first", func() bool {
		return strings.Contains(d.Log(), fmt.Sprintf("the MPS daemon (process %d) has ended", pid))
	})
	if strings.Contains(d.Log(), "[client client]") {
		t.Error("a container is logged twice")
	}
}

// TestMPSOutlivesGpuledgerd: gpuledgerd is killed, stopped and started again under 20 clients in
// containers. It affects neither them nor their daemons.
func TestMPSOutlivesGpuledgerd(t *testing.T) {
	n := newMPSNode(t, rig.Setup{})
	d := n.Daemon("--nri", "off")
	var clients []*rig.Bundle
	var grants []grant.Reference
	for i := range 20 {
		grants = append(grants, n.Grant("--mode", "mps", "--memory", "1GiB", "--compute", "5",
			"--gpu", fmt.Sprint(i%2)))
	}
	n.ready(2)
	for i, g := range grants {
		clients = append(clients, n.holds(fmt.Sprintf("c%d", i), g))
	}
	before := n.processes()
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		d.End(signal)
		d = n.Daemon("--nri", "off")
		n.forget()
		if after := n.processes(); after != before {
			t.Errorf("after %v of gpuledgerd the daemons are\n%s, and were\n%s", signal, after, before)
		}
	}
	for _, b := range clients {
		if strings.Contains(clientOutput(b), "end") || !rig.Lives(b.Init()) {
			t.Errorf("%s is disturbed: %s", b.ID, clientOutput(b))
		}
	}
	for i, b := range clients {
		b.End()
		n.Must("release", string(grants[i].ID))
	}
	n.gone()
}

// TestMPSDies: the end of a daemon or a server is logged with the containers that lose their
// context; new clients wait for the next one.
func TestMPSDies(t *testing.T) {
	n := newMPSNode(t, rig.Setup{})
	g, other := n.Grant("--mode", "mps", "--memory", "1GiB", "--gpu", "0"),
		n.Grant("--mode", "mps", "--memory", "1GiB", "--gpu", "0")
	d := n.Daemon("--nri", "off")
	for what, victim := range map[string]func(grant.MPSDaemon) int{
		"daemon": func(m grant.MPSDaemon) int { return m.Daemon.PID },
		"server": func(m grant.MPSDaemon) int { return m.Servers[0].PID },
	} {
		t.Run(what, func(t *testing.T) {
			m := n.ready(1)[0]
			b := n.holds("lost-"+what, g)
			pid := victim(m)
			must(t, syscall.Kill(pid, syscall.SIGKILL))
			eventually(t, "its end is logged, with the container", func() bool {
				return strings.Contains(d.Log(), fmt.Sprintf("the MPS %s (process %d) has ended", what,
					pid)) && strings.Contains(d.Log(), "these containers lost their contexts: [lost-"+what+
					"]")
			})
			eventually(t, "the client has lost its context", func() bool {
				return strings.Contains(clientOutput(b), "lost: ")
			})
			eventually(t, "another one is ready", func() bool {
				return n.readyAgain(func(m grant.MPSDaemon) bool { return victim(m) != pid })
			})
			n.wants(n.client("next-"+what, other, "0:1"), "mps threads=100\n0:1 CUDA_SUCCESS\n")
			b.End()
		})
	}
	t.Run("and gpuledgerd with it", func(t *testing.T) {
		d.End(syscall.SIGKILL)
		m := n.states()[0]
		must(t, syscall.Kill(m.Daemon.PID, syscall.SIGKILL))
		eventually(t, "it has ended", func() bool { return !rig.Lives(m.Daemon.PID) })
		b := n.client("waiting", other, "0:1")
		wantRefused(t, b.Create(), "mps-not-ready") // not recorded yet: the kernel was read
		n.Daemon("--nri", "off")
		eventually(t, "another one is ready", func() bool {
			return n.readyAgain(func(next grant.MPSDaemon) bool { return next.Daemon != m.Daemon })
		})
		n.wants(b, "mps threads=100\n0:1 CUDA_SUCCESS\n")
	})
}

// TestMPSDrains: a daemon whose last grant was released stays as long as it has clients.
func TestMPSDrains(t *testing.T) {
	n := newMPSNode(t, rig.Setup{})
	d := n.Daemon("--nri", "off")
	g := n.Grant("--mode", "mps", "--memory", "1GiB", "--gpu", "0")
	daemon := n.ready(1)[0]
	b := n.holds("c", g)
	n.Must("release", "--force", string(g.ID))
	eventually(t, "it is logged that it waits", func() bool {
		return strings.Contains(d.Log(), "so it stays until they end")
	})
	again := n.Grant("--mode", "mps", "--memory", "2GiB", "--gpus", "2")
	eventually(t, "another daemon waits for it", func() bool {
		return strings.Contains(d.Log(), "is not gone yet")
	})
	wantRefused(t, n.client("waits", again, "0:1").Create(), "mps-not-ready")
	if strings.Contains(clientOutput(b), "end") || !rig.Lives(daemon.Daemon.PID) {
		t.Errorf("the client is disturbed: %s", clientOutput(b))
	}
	b.End()
	eventually(t, "it has ended", func() bool { return !rig.Lives(daemon.Daemon.PID) })
	n.ready(1)
	n.wants(n.client("both", again, "0:1024 0:1 1:1024 1:1"),
		"mps threads=100\n0:1024 CUDA_SUCCESS\n0:1 CUDA_ERROR_OUT_OF_MEMORY\n1:1024 CUDA_SUCCESS\n1:1 "+
			"CUDA_ERROR_OUT_OF_MEMORY\n")
	if r := n.CLI("grant", "--mode", "mps", "--memory", "1GiB", "--gpu", "0"); r.Code != 5 ||
		!strings.Contains(r.Stderr, "is served by an MPS daemon over 2 GPUs, for "+string(again.ID)) {
		t.Errorf("one of its GPUs alone: %+v", r)
	}
	beside := n.Grant("--mode", "mps", "--memory", "2GiB", "--gpus", "2", "--compute", "50")
	n.refuses(grant.NoCapacity, "has 50% of its compute free", "--mode", "mps", "--memory", "2GiB", "--gpus",
		"2", "--compute", "51")
	n.wants(n.client("beside", beside, "0:1024 1:1024"),
		"mps threads=50\n0:1024 CUDA_SUCCESS\n1:1024 CUDA_SUCCESS\n")
}
