package test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/test/rig"
)

// tenantProgram builds testdata/tenant.c, once beside the binaries.
func tenantProgram(t *testing.T) string {
	t.Helper()
	path := filepath.Join(filepath.Dir(filepath.Dir(rig.Binary(t, "gpuledger"))), "tenant")
	tenantBuild.Lock()
	defer tenantBuild.Unlock()
	if !exists(path) {
		if out, err := exec.Command("gcc", "-O1", "-Wall", "-static", "-pthread", "-o", path,
			"testdata/tenant.c").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return path
}

var tenantBuild sync.Mutex

// runsTenant is the edit that makes a container run testdata/tenant.c, which is put into its image.
func runsTenant(t *testing.T, words ...string) rig.Edit {
	program := tenantProgram(t)
	return func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Type: "bind", Source: program, Destination: "/tenant",
			Options: []string{"bind", "ro"}})
		s.Process.Args = append([]string{"/tenant"}, words...)
	}
}

// user makes the container's process one of the node's users, without a capability.
func user(uid uint32) rig.Edit {
	return func(s *specs.Spec) {
		s.Process.User = specs.User{UID: uid, GID: uid}
		s.Process.Capabilities, s.Process.NoNewPrivileges = nil, true
	}
}

// without removes private namespaces from a container.
func without(kinds ...specs.LinuxNamespaceType) rig.Edit {
	return func(s *specs.Spec) {
		kept := s.Linux.Namespaces[:0]
		for _, ns := range s.Linux.Namespaces {
			if !strings.Contains(joined(kinds), string(ns.Type)) {
				kept = append(kept, ns)
			}
		}
		s.Linux.Namespaces = kept
	}
}

func joined(kinds []specs.LinuxNamespaceType) string {
	var text []string
	for _, kind := range kinds {
		text = append(text, string(kind))
	}
	return strings.Join(text, " ")
}

func bindAt(source, destination string) rig.Edit {
	return mount(specs.Mount{Type: "bind", Source: source, Destination: destination,
		Options: []string{"rbind"}})
}

// TestNoTenantClosesADirectory: what a tenant makes in the shape of an MPS daemon's pipe directory,
// and listens on, gets no other container refused that mounts the directory, a parent or the
// socket. A daemon of the node's root beside it still does.
func TestNoTenantClosesADirectory(t *testing.T) {
	shortPaths(t)
	eachRuntime(t, func(t *testing.T, runtime string) {
		for name, tenants := range map[string][]rig.Edit{
			"a user":                               {user(1000)},
			"a user on the node's network":         {user(1000), without(specs.NetworkNamespace)},
			"root":                                 {},
			"root on the node's network":           {without(specs.NetworkNamespace)},
			"root on it, and with the node's pids": {without(specs.NetworkNamespace, specs.PIDNamespace)},
			"root, by a child that has ended":      {without(specs.NetworkNamespace, specs.PIDNamespace)},
		} {
			t.Run(name, func(t *testing.T) {
				n := rig.NewNode(t, rig.Setup{Runtime: runtime})
				must(t, os.Chmod(n.Dir, 0o755)) // as the kubelet's directory
				shared := n.Dir + "/kubelet"
				volume := shared + "/pods/0000/v"
				must(t, os.MkdirAll(volume, 0o777), os.Chmod(volume, 0o777))
				word := "listen"
				if strings.Contains(name, "child") {
					word = "beget"
				}
				words := runsTenant(t, word, volume+"/control", "ready", volume+"/control_lock", "wait")
				starts(t, n.Bundle("tenant", append(tenants, words, bindAt(volume, volume))...))
				rig.Eventually(t, "the tenant listens", func() bool {
					return exists(volume + "/control_lock")
				})
				for id, source := range map[string]string{"parent": shared, "volume": volume,
					"socket": volume + "/control"} {
					wantUntouched(t, n.Bundle(id, bindAt(source, "/mnt"), rig.Shell("exit 0")))
				}
				wantUntouched(t, n.Bundle("client", bindAt(volume, "/mnt"),
					rig.Env("CUDA_MPS_PIPE_DIRECTORY=/mnt"), rig.Shell("exit 0")))
				if audit := read(t, n.Dir+"/audit.jsonl"); !strings.Contains(audit,
					"mount:/mnt has what may be an MPS daemon's socket in "+volume) {
					t.Errorf("it is not recorded:\n%s", audit)
				}
				must(t, os.Mkdir(shared+"/mps", 0o755))
				listen(t, shared+"/mps/control")
				must(t, os.WriteFile(shared+"/mps/control_lock", nil, 0o644))
				wantRefused(t, n.Bundle("daemon", bindAt(shared, "/mnt")).Create(), "gpu-socket")
			})
		}
	})
}

// TestAPrivilegedDaemonIsTheNodes: as that of NVIDIA's device plugin, in a container with private
// namespaces.
func TestAPrivilegedDaemonIsTheNodes(t *testing.T) {
	shortPaths(t)
	n := rig.NewNode(t, rig.Setup{})
	volume := n.Dir + "/mps"
	must(t, os.Mkdir(volume, 0o755))
	b := n.Bundle("daemon", rig.Privileged, runsTenant(t, "listen", "/mps/control", "ready",
		"/mps/control_lock", "wait"), bindAt(volume, "/mps"))
	if r := b.RealCreate(); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	if r := rig.Run(n.Real("start", b.ID)); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	rig.Eventually(t, "the daemon listens", func() bool { return exists(volume + "/control_lock") })
	wantRefused(t, n.Bundle("client", bindAt(volume, "/mnt")).Create(), "gpu-socket")
	wantRefused(t, n.Bundle("socket", bindAt(volume+"/control", "/tmp/x"),
		rig.Env("CUDA_MPS_PIPE_DIRECTORY=/tmp")).Create(), "gpu-socket")
}

// TestNoUserOfTheNodeClosesTmp: every user can create the usual path of MPS. Only a container that
// mounts the path itself requests it.
func TestNoUserOfTheNodeClosesTmp(t *testing.T) {
	shortPaths(t)
	n := rig.NewNode(t, rig.Setup{})
	must(t, exec.Command("cp", tenantProgram(t), rig.Binary(t, "gpuledger-runtime"), n.Dir).Run())
	n.Bin = n.Dir // the others lie below /tmp
	const pipe = "/tmp/nvidia-mps"
	rig.Mount(t, "tmpfs", "/tmp", "tmpfs", 0, "mode=1777")
	must(t, os.Mkdir(pipe, 0o755), os.Chown(pipe, 1000, 1000))
	cmd := exec.Command(n.Dir+"/tenant", "user", "1000", "listen", pipe+"/control", "ready",
		pipe+"/control_lock", "wait")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	rig.Eventually(t, "the user listens", func() bool { return exists(pipe + "/control_lock") })
	wantUntouched(t, n.Bundle("tmp", bindAt("/tmp", "/host/tmp"), rig.Shell("exit 0")))
	wantRefused(t, n.Bundle("itself", bindAt(pipe, "/mnt")).Create(), "gpu-socket")
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	must(t, os.Remove(pipe+"/control"))
	listen(t, pipe+"/control")
	wantRefused(t, n.Bundle("daemon", bindAt("/tmp", "/host/tmp")).Create(), "gpu-socket")
}

// wantUntouched wants a container to start as its engine wrote it, without output.
func wantUntouched(t *testing.T, b *rig.Bundle) {
	t.Helper()
	before := b.Config()
	if r := b.Run(); r.Code != 0 || r.Stderr != "" || !bytes.Equal(b.Config(), before) {
		t.Errorf("%s: %+v, its spec untouched: %v", b.ID, r, bytes.Equal(b.Config(), before))
	}
	b.Delete()
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
