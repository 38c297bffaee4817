package test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// install makes the node's driver one of this version, with the server's program in a directory of
// programs, and takes the inventory again.
func (n mpsNode) install(version, serverDir string) {
	n.t.Helper()
	lib := filepath.Join(n.Dir, "driver/usr/lib64")
	for file, soname := range standIns {
		of := strings.ReplaceAll(file, "999.1", version)
		must(n.t, os.Rename(filepath.Join(lib, file), filepath.Join(lib, of)),
			os.Remove(filepath.Join(lib, soname)), os.Symlink(of, filepath.Join(lib, soname)))
	}
	server := filepath.Join(n.Dir, "driver", serverDir, grant.MPSServer)
	must(n.t, os.MkdirAll(filepath.Dir(server), 0o755),
		os.Rename(filepath.Join(filepath.Dir(n.program), grant.MPSServer), server))
	n.Must("inventory", "refresh")
}

// badly makes the stand-in behave in a way of its own.
func (n mpsNode) badly(word string) {
	n.t.Helper()
	must(n.t, os.WriteFile(filepath.Join(filepath.Dir(n.program), "fakemps.moods"), []byte(word), 0o644))
}

// cannot checks that no grant in mode mps is given, and why.
func (n mpsNode) cannot(why string) {
	n.t.Helper()
	r := n.CLI("grant", "--mode", "mps", "--memory", "1GiB")
	if r.Code != 3 || !strings.Contains(r.Stderr, "refused (mps-not-ready): cannot grant in mode mps: this "+
		"node cannot run MPS, because "+why+"\n") {
		n.t.Errorf("%+v", r)
	}
}

// says waits until gpuledgerd has written down a problem of a daemon.
func (n mpsNode) says(problem string) {
	n.t.Helper()
	eventually(n.t, "it is said: "+problem, func() bool {
		return slices.ContainsFunc(n.states(), func(m grant.MPSDaemon) bool {
			return strings.Contains(m.Problem, problem)
		})
	})
}

// TestMPSOfDrivers: with each driver whose MPS can hold clients to their memory, clients start and
// have it, whatever commands the driver does not know and however it prints a limit. With an older
// one no grant is given.
func TestMPSOfDrivers(t *testing.T) {
	for _, version := range []string{"535.183.01", "550.54.15", "580.65.06"} {
		t.Run(version, func(t *testing.T) {
			n := newMPSNode(t, rig.Setup{})
			n.install(version, "usr/bin")
			n.Daemon("--nri", "off")
			for i, size := range []string{"512", "1536", "16160"} {
				g := n.Grant("--mode", "mps", "--memory", size+"MiB", "--compute", "25", "--gpu", "0")
				n.ready(1)
				n.wants(n.client(fmt.Sprint("c", i), g, "0:"+size+" 0:1"), "mps threads=25\n0:"+size+
					" CUDA_SUCCESS\n0:1 CUDA_ERROR_OUT_OF_MEMORY\n")
				n.Must("release", string(g.ID))
				n.gone()
			}
		})
	}
	t.Run("470.256.02", func(t *testing.T) {
		n := newMPSNode(t, rig.Setup{})
		n.install("470.256.02", "usr/bin")
		n.cannot("driver 470.256.02 does not limit the memory of MPS clients, as driver 495 and newer do")
	})
}

// TestMPSUsersOfDrivers: a driver that does not know the multi-user server is named, with one that
// does.
func TestMPSUsersOfDrivers(t *testing.T) {
	for version, problem := range map[string]string{
		"535.183.01": "driver 535.183.01 does not know -multiuser-server, which enforcement.mps_users = " +
			"\"all\" needs; driver 580 does",
		"550.54.15": "driver 550.54.15 does not know -multiuser-server",
		"565.57.01": "this driver does not know -multiuser-server, and driver 580 does", // it is tried
	} {
		t.Run(version, func(t *testing.T) {
			n := newMPSNode(t, rig.Setup{Config: "[enforcement]\nmps_users = \"all\"\n"})
			n.install(version, "usr/bin")
			n.Daemon("--nri", "off")
			g := n.Grant("--mode", "mps", "--memory", "2GiB", "--gpu", "0")
			n.says(problem)
			b := n.client("user", g, "0:1", func(s *specs.Spec) { s.Process.User.UID = 1000 })
			wantRefused(t, b.Create(), "mps-not-ready")
			n.Must("release", string(g.ID))
			n.gone()
		})
	}
}

// TestMPSServerElsewhere: the server's program is found where the driver's files have it, as in
// Debian's layout.
func TestMPSServerElsewhere(t *testing.T) {
	for _, dir := range []string{"usr/sbin", "usr/local/bin"} {
		t.Run(dir, func(t *testing.T) {
			n := newMPSNode(t, rig.Setup{})
			n.install("550.54.15", dir)
			n.Daemon("--nri", "off")
			g := n.Grant("--mode", "mps", "--memory", "2GiB", "--gpu", "0")
			n.ready(1)
			n.wants(n.client("c", g, "0:1"), "mps threads=100\n0:1 CUDA_SUCCESS\n")
			n.Must("release", string(g.ID))
			n.gone()
		})
	}
	t.Run("nowhere", func(t *testing.T) {
		n := newMPSNode(t, rig.Setup{})
		must(t, os.Remove(filepath.Join(filepath.Dir(n.program), grant.MPSServer)))
		n.Must("inventory", "refresh")
		n.cannot("the driver's files in the inventory have no nvidia-cuda-mps-server")
	})
}

// TestMPSBelowAForeignRoot: the C library of a driver root is not the node's, and its loader's
// neither. NVIDIA's programs get the driver's libraries from there, and no others.
func TestMPSBelowAForeignRoot(t *testing.T) {
	n := newMPSNode(t, rig.Setup{})
	build := exec.Command("go", "build", "-p", "2", "-trimpath", "-o", n.program,
		"github.com/gpuledger/gpuledger/test/fakemps")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build fakemps with the C library: %v\n%s", err, out)
	}
	if out, _ := exec.Command("ldd", n.program).CombinedOutput(); !strings.Contains(string(out),
		"libc.so.6") {
		t.Fatalf("the stand-in does not need a C library:\n%s", out)
	}
	server := filepath.Join(filepath.Dir(n.program), grant.MPSServer)
	must(t, os.Remove(server), os.Link(n.program, server))
	lib := filepath.Join(n.Dir, "driver/usr/lib64")
	for _, soname := range []string{"libc.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2"} {
		compile(t, "-shared", "-fPIC", "-nostdlib", "-Wl,-soname,"+soname, "-o", filepath.Join(lib, soname),
			n.Write("foreign.c", "int foreign;"))
	}
	n.Must("inventory", "refresh")
	n.Daemon("--nri", "off")
	n.Grant("--mode", "mps", "--memory", "1GiB", "--gpu", "0")
	m := n.ready(1)[0]
	for _, p := range append(m.Servers, m.Daemon) {
		dir := variable(t, p.PID, "LD_LIBRARY_PATH")
		if got, want := linksIn(t, dir), map[string]string{
			"libcuda.so": lib + "/libcuda.so.999.1", "libcuda.so.1": lib + "/libcuda.so.999.1",
			"libcuda.so.999.1":          lib + "/libcuda.so.999.1",
			"libnvidia-ml.so.1":         lib + "/libnvidia-ml.so.999.1",
			"libnvidia-ml.so.999.1":     lib + "/libnvidia-ml.so.999.1",
			"libnvidia-encode.so.1":     lib + "/libnvidia-encode.so.999.1",
			"libnvidia-encode.so.999.1": lib + "/libnvidia-encode.so.999.1",
		}; !containsAll(got, want) || strings.Contains(fmt.Sprint(got), "libc.so") ||
			strings.Contains(fmt.Sprint(got), "ld-linux") {
			t.Errorf("process %d looks for libraries in %s: %v", p.PID, dir, got)
		}
	}
}

// variable is a variable of a process's environment.
func variable(t *testing.T, pid int, name string) string {
	t.Helper()
	for entry := range strings.SplitSeq(read(t, fmt.Sprintf("/proc/%d/environ", pid)), "\x00") {
		if value, is := strings.CutPrefix(entry, name+"="); is {
			return value
		}
	}
	return ""
}

func linksIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	links := map[string]string{}
	for _, e := range entries {
		links[e.Name()], _ = os.Readlink(filepath.Join(dir, e.Name()))
	}
	return links
}

// containsAll reports whether the second map is part of the first.
func containsAll(all, part map[string]string) bool {
	for name := range maps.Keys(part) {
		if all[name] != part[name] {
			return false
		}
	}
	return true
}

// TestMPSReasons: what a log says of a failure is told, though other lines follow it.
func TestMPSReasons(t *testing.T) {
	n := newMPSNode(t, rig.Setup{})
	n.Daemon("--nri", "off")
	for word, problem := range map[string]string{
		"failing":   "it has not started its server yet: [Server", // and the next line:
		"stillborn": "Failed to initialize: cannot find a GPU",
		"blind":     "it printed no reason, as NVIDIA's program does if it finds no GPU",
		"foreign":   "it names process 1 as its server, and has not started that process",
	} {
		t.Run(word, func(t *testing.T) {
			n.badly(word)
			g := n.Grant("--mode", "mps", "--memory", "2GiB", "--gpu", "0")
			n.says(problem)
			if word == "failing" {
				n.says("Failed to start : invalid argument")
			}
			wantRefused(t, n.client(word, g, "0:1").Create(), "mps-not-ready")
			n.badly("")
			n.ready(1)
			n.Must("release", string(g.ID))
			n.gone()
		})
	}
}

// TestMPSSocketOfRootIsReplaced: a client that puts a socket where root's programs look first has
// new clients refused, and gpuledgerd asks it nothing.
func TestMPSSocketOfRootIsReplaced(t *testing.T) {
	n := newMPSNode(t, rig.Setup{})
	d := n.Daemon("--nri", "off")
	other := n.Grant("--mode", "mps", "--memory", "1GiB", "--gpu", "0")
	late := n.client("late", n.Grant("--mode", "mps", "--memory", "1GiB", "--gpu", "0"), "0:1")
	daemon := n.ready(1)[0]
	d.End(syscall.SIGKILL) // nobody but the create itself looks
	pipe := filepath.Join(grant.MPSDir(n.Dir+"/run", grant.MPSName(daemon.GPUs)), "pipe")
	thief := n.client("thief", other, "", rig.Shell("cd /tmp/nvidia-mps; /bin/busybox mkdir elsewhere; "+
		"/bin/busybox mv control control_privileged elsewhere; exec /bin/nvidia-cuda-mps-control -f"),
		rig.Env("CUDA_VISIBLE_DEVICES=0"))
	must(t, os.Link(n.program, filepath.Join(thief.Dir, "rootfs/bin/nvidia-cuda-mps-control")))
	starts(t, thief)
	eventually(t, "there is another socket in its place", func() bool {
		_, err := os.Stat(filepath.Join(pipe, "elsewhere/control_privileged"))
		_, e := os.Stat(filepath.Join(pipe, "control_privileged"))
		return err == nil && e == nil
	})
	must(t, os.Rename(pipe+"/elsewhere/control", pipe+"/control")) // this one is the daemon's
	wantRefused(t, late.Create(), "mps-not-ready")
	d = n.Daemon("--nri", "off")
	eventually(t, "gpuledgerd says so", func() bool {
		return strings.Contains(d.Log(), "its control socket for root was replaced by another")
	})
	wantRefused(t, late.Create(), "mps-not-ready")
	thief.End()
	must(t, os.Rename(pipe+"/elsewhere/control_privileged", pipe+"/control_privileged"))
	if m := n.ready(1)[0]; m.Daemon != daemon.Daemon {
		t.Errorf("%+v became %+v", daemon, m)
	}
	n.wants(late, "mps threads=100\n0:1 CUDA_SUCCESS\n")
}

// TestMPSInTheNodesNamespaces: the pod of ACK's page on MPS has hostIPC and hostPID, so its engine
// mounts the node's shared memory. With a grant in mode mps it is a client as others are, with the
// daemon's shared memory, behind the wrapper and with the hook alone.
func TestMPSInTheNodesNamespaces(t *testing.T) {
	n := newMPSNode(t, rig.Setup{})
	n.Daemon("--nri", "off")
	g := n.Grant("--mode", "mps", "--memory", "2GiB", "--compute", "25", "--gpu", "0")
	n.ready(1)
	hostIPCAndPID := func(s *specs.Spec) {
		s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(ns specs.LinuxNamespace) bool {
			return ns.Type == specs.IPCNamespace || ns.Type == specs.PIDNamespace
		})
		s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool {
			return m.Destination == "/dev/shm" || m.Destination == "/dev/mqueue"
		})
		s.Mounts = append(s.Mounts,
			specs.Mount{Destination: "/dev/shm", Type: "bind", Source: "/dev/shm",
				Options: []string{"rbind", "ro"}})
	}
	const want = "mps threads=25\n0:2048 CUDA_SUCCESS\n0:1 CUDA_ERROR_OUT_OF_MEMORY\n"
	n.wants(n.client("wrapper", g, "0:2048 0:1", hostIPCAndPID), want)
	if strength := n.Grants()[0].Strength; strength != grant.StrengthServer {
		t.Errorf("its strength is %q", strength)
	}
	b := n.client("hook", g, "0:2048 0:1", hostIPCAndPID, n.Hooked)
	if got := b.RealRun(); got.Stdout != want || got.Code != 0 {
		t.Errorf("with the hook alone: %+v", got)
	}
	own := n.client("own", g, "0:1", hostIPCAndPID, n.Hooked, func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/tmp/nvidia-mps", Type: "bind", Source: n.Dir,
			Options: []string{"rbind"}})
	})
	isRefusedByHook(t, own.RealRun(), grant.InjectionImpossible)
}
