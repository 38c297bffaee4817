package test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// TestContainerd tells the story through a real containerd, whose shim calls the wrapper in runc's
// place.
func TestContainerd(t *testing.T) {
	rig.Need(t, "containerd", "ctr", "containerd-shim-runc-v2")
	n := rig.NewNode(t, rig.Setup{Engine: "containerd"})
	c := n.Containerd()

	t.Run("a container without a GPU starts", func(t *testing.T) {
		if r := c.Run("plain", []string{"--rm"}, "/bin/busybox", "echo", "here"); r.Code != 0 ||
			r.Stdout != "here\n" {
			t.Errorf("got %+v", r)
		}
	})

	t.Run("a refusal reaches ctr's user with code, reason and hint", func(t *testing.T) {
		r := c.Run("all", []string{"--rm", "--env", "NVIDIA_VISIBLE_DEVICES=all"},
			"/bin/busybox", "echo", "here")
		if r.Code == 0 || strings.Contains(r.Stdout, "here") {
			t.Errorf("it was not refused: %+v", r)
		}
		for _, want := range []string{"OCI runtime create failed: gpuledger: refused (visible-devices-all): ",
			`container "all" asks for all GPUs through NVIDIA_VISIBLE_DEVICES`, "hint: "} {
			if !strings.Contains(r.Stderr, want) {
				t.Errorf("ctr prints %q, want %q in it", r.Stderr, want)
			}
		}
		isRefusedBy(t, c.Run("forged", []string{"--rm", "--annotation",
			"gpuledger.dev/grant=g-aaaaaaaaaaaa.0123456789abcdef0123456789abcdef"}, "/bin/busybox", "true"),
			grant.GrantNotFound)
		isRefusedBy(t, c.Run("privileged", []string{"--rm", "--privileged"}, "/bin/busybox", "true"),
			grant.PrivilegedGPU)
	})

	for what, option := range map[string]func(grant.Reference) []string{
		"annotation":  func(g grant.Reference) []string { return []string{"--annotation", "gpuledger.dev/grant=" + g.String()} },
		"environment": func(g grant.Reference) []string { return []string{"--env", "GPULEDGER_GRANT=" + g.String()} },
	} {
		t.Run("a grant named by "+what+" gives exactly its devices", func(t *testing.T) {
			g := n.Grant("--memory", "4GiB", "--gpu", "1")
			r := c.Run("granted-by-"+what, append([]string{"--rm"}, option(g)...),
				"/bin/busybox", "sh", "-c", probe)
			want := "No such file or directory\nNo such device or address\nNo such device or " +
				"address\nOperation not permitted\n"
			if r.Code != 0 || r.Stdout != want {
				t.Errorf("opening GPU 0, GPU 1, nvidiactl and a node of its own made for another GPU: "+
					"%+v, want\n%s", r, want)
			}
			wantState(t, n, g.ID, "it has ended", grant.Free)
			n.Must("release", string(g.ID))
		})
	}

	t.Run("kill and delete free the grant", func(t *testing.T) {
		g := n.Grant("--memory", "4GiB", "--gpu", "0")
		runs(t, c, "first", g)
		wantState(t, n, g.ID, "the task runs", grant.Bound)
		isRefusedBy(t, c.Run("second", detached(g), "/bin/busybox", "sleep", "1000"), grant.GrantInUse)
		r := c.Ctr("tasks", "exec", "--exec-id", "look", "first", "/bin/busybox", "cat", "/dev/nvidia0")
		if !strings.Contains(r.Stderr, "No such device or address") {
			t.Errorf("a process that joins opens the granted GPU: %+v, want ENXIO", r)
		}
		succeeds(t, c.Ctr("tasks", "kill", "--signal", "KILL", "first"))
		becomesFree(t, n, g.ID)
		removes(t, c, "first")
		runs(t, c, "first", g) // the same id again
		succeeds(t, c.Ctr("tasks", "kill", "--signal", "KILL", "first"))
		becomesFree(t, n, g.ID)
		removes(t, c, "first")
	})

	t.Run("a crash of containerd changes nothing", func(t *testing.T) {
		g := n.Grant("--memory", "4GiB", "--gpu", "0")
		runs(t, c, "a", g)
		c.Kill()
		wantState(t, n, g.ID, "containerd is dead, its container is not", grant.Bound)
		c.Start()
		isRefusedBy(t, c.Run("b", detached(g), "/bin/busybox", "sleep", "1000"), grant.GrantInUse)
		c.Kill()
		_ = syscall.Kill(pidOf(t, n, g.ID), syscall.SIGKILL)
		becomesFree(t, n, g.ID) // no program of gpuledger is there to notice
		c.Start()
		removes(t, c, "a")
		runs(t, c, "b", g)
		wantState(t, n, g.ID, "its next container runs", grant.Bound)
	})
	n.CheckSound("at the end")
}

// isRefusedBy wants a refusal in an engine's output for its user.
func isRefusedBy(t *testing.T, r rig.Result, code grant.Code) {
	t.Helper()
	if r.Code == 0 || !strings.Contains(r.Stderr, "gpuledger: refused ("+string(code)+")") {
		t.Errorf("got %+v, want a refusal for %s", r, code)
	}
}

func detached(g grant.Reference) []string {
	return []string{"--detach", "--null-io", "--annotation", "gpuledger.dev/grant=" + g.String()}
}

// runs starts a container that stays. It replaces what a refused container of the same id has left.
func runs(t *testing.T, c *rig.Containerd, id string, g grant.Reference) {
	t.Helper()
	_ = c.Ctr("containers", "delete", id)
	succeeds(t, c.Run(id, detached(g), "/bin/busybox", "sleep", "1000"))
}

// removes deletes a container whose task was killed. The status of a task's delete is that of the
// task.
func removes(t *testing.T, c *rig.Containerd, id string) {
	t.Helper()
	rig.Eventually(t, "the task is deleted", func() bool {
		_ = c.Ctr("tasks", "delete", id)
		return c.Ctr("containers", "delete", id).Code == 0
	})
}

func succeeds(t *testing.T, r rig.Result) {
	t.Helper()
	if r.Code != 0 {
		t.Fatalf("%+v", r)
	}
}

// pidOf is the init process of the only container that uses the grant.
func pidOf(t *testing.T, n *rig.Node, id grant.ID) int {
	t.Helper()
	for _, g := range n.Grants() {
		if g.ID == id && len(g.Bindings) == 1 && g.Bindings[0].PID > 1 {
			return g.Bindings[0].PID
		}
	}
	t.Fatalf("grant %s has no container with a pid: %+v", id, n.Grants())
	return 0
}
