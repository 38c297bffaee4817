package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// ownDev gives the test a /dev of its own with the nodes of two GPUs, closed to users.
func ownDev(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	must(t, unix.Mount("dev", dir, "tmpfs", 0, "mode=755"))
	for _, name := range []string{"null", "zero", "random", "urandom", "tty"} {
		var st unix.Stat_t
		must(t, unix.Stat("/dev/"+name, &st))
		must(t, unix.Mknod(filepath.Join(dir, name), unix.S_IFCHR|0o666, int(st.Rdev)),
			os.Chmod(filepath.Join(dir, name), 0o666))
	}
	for name, minor := range map[string]uint32{"nvidia0": 0, "nvidia1": 1, "nvidiactl": 255} {
		must(t, unix.Mknod(filepath.Join(dir, name), unix.S_IFCHR|0o660, int(unix.Mkdev(195, minor))),
			os.Chmod(filepath.Join(dir, name), 0o660))
	}
	must(t, unix.Mount(dir, "/dev", "", unix.MS_BIND, ""))
	t.Cleanup(func() {
		_ = unix.Unmount("/dev", unix.MNT_DETACH)
		_ = unix.Unmount(dir, unix.MNT_DETACH)
	})
}

// openedBy is what a user's open of a node gives, also in a user namespace as of a rootless engine.
func openedBy(uid uint32, path string, before ...string) string {
	cmd := exec.Command("/bin/sh", "-c", strings.Join(append(before, "cat "+path), " "))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, _ := cmd.CombinedOutput()
	_, why, _ := strings.Cut(string(out), path+": ")
	return strings.TrimSpace(why)
}

const (
	letIn  = "No such device or address" // the kernel lets it open the node, and no driver is behind it
	closed = "Permission denied"
)

// TestUsersNodes: gpuledgerd opens the nodes of a user's grant to that user, until it is released.
func TestUsersNodes(t *testing.T) {
	ownDev(t)
	n := rig.NewNode(t, rig.Setup{Config: "[enforcement]\nuser_nodes = \"acl\"\n" +
		"[daemon]\nlisten = \"\"\ninterval = \"100ms\"\n"})
	d := n.Daemon("--nri", "off")
	g := n.Grant("--memory", "1GiB", "--gpu", "1", "--user", "60001")
	if why := openedBy(0, "/dev/nvidia1"); why != letIn {
		t.Skipf("the device cgroup of this machine keeps root from the node (%s): "+
			"access lists of nodes are not seen", why)
	}
	rig.Eventually(t, "the user opens its GPU", func() bool {
		return openedBy(60001, "/dev/nvidia1") == letIn
	})
	for path, want := range map[string]string{"/dev/nvidia0": closed, "/dev/nvidiactl": letIn} {
		if got := openedBy(60001, path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	if got := openedBy(60002, "/dev/nvidia1"); got != closed {
		t.Errorf("another user: %s", got)
	}
	if got := openedBy(60001, "/dev/nvidia1", "unshare -Ur"); got != letIn {
		t.Errorf("in a user namespace: %s", got)
	}
	pausedNodes(t, n)
	d.End(syscall.SIGKILL)
	n.Must("release", string(g.ID))
	n.Daemon("--nri", "off")
	rig.Eventually(t, "the node is closed after a kill", func() bool {
		return openedBy(60001, "/dev/nvidia1") == closed
	})
}

// TestAUsersProgramUsesTheUsersGrant: where grants open nodes, gpuledgerd counts what a program of
// the user takes to the user's grant. Only what is beyond that is taken from others.
func TestAUsersProgramUsesTheUsersGrant(t *testing.T) {
	ownDev(t)
	n := rig.NewNode(t, rig.Setup{Config: strings.Replace(watches, "[daemon]", "[enforcement]\n"+
		"user_nodes = \"acl\"\n[daemon]", 1)})
	n.Daemon("--nri", "off")
	id := n.Grant("--memory", "4GiB", "--gpu", "0", "--user", "60001").ID
	g := gpusOf(t, n)
	g.runs(nodeProcess(t, 60001), 0, 6*grant.GiB)
	g.writeUse()
	rig.Eventually(t, "the use beyond the grant is found", func() bool {
		return len(findings(t, n, "found", "over-grant")) == 1
	})
	if f := findings(t, n, "found", "over-grant")[0]; f.Grant != string(id) || f.Bytes != 2*grant.GiB {
		t.Errorf("%+v, want 2 GiB of grant %s", f, id)
	}
	if all := findings(t, n, "found", "outside-ledger"); len(all) > 0 {
		t.Errorf("what is granted counts as outside the ledger: %+v", all)
	}
	if r := n.CLI("grant", "--memory", "9GiB", "--gpu", "0", "--ttl", "1h"); r.Code != 0 {
		t.Errorf("another user's grant does not fit beside it: %+v", r)
	}
}

// pausedNodes: `gpuledger disable` refuses nothing, so it takes no user's access to a node away,
// and a grant opens nodes as before. It says that the kernel still keeps others out, and what opens
// the nodes to all.
func pausedNodes(t *testing.T, n *rig.Node) {
	t.Helper()
	if out := n.Must("disable", "--until-enabled"); !strings.Contains(out, "device nodes stay as") {
		t.Errorf("disable prints %q, want what happens to device nodes", out)
	}
	g := n.Grant("--memory", "1GiB", "--gpu", "0", "--user", "60001")
	rig.Eventually(t, "a grant opens its GPU while refusals are disabled", func() bool {
		return openedBy(60001, "/dev/nvidia0") == letIn
	})
	for user, want := range map[uint32]string{60001: letIn, 60002: closed} {
		if got := openedBy(user, "/dev/nvidia1"); got != want {
			t.Errorf("while refusals are disabled, user %d: %s, want %s", user, got, want)
		}
	}
	for _, mode := range []os.FileMode{0o666, 0o660} {
		want := map[os.FileMode]string{0o666: letIn, 0o660: closed}[mode]
		for _, name := range []string{"nvidia0", "nvidia1", "nvidiactl"} {
			must(t, os.Chmod("/dev/"+name, mode))
		}
		if got := openedBy(60002, "/dev/nvidia1"); got != want {
			t.Errorf("of mode %o, another user: %s, want %s", mode, got, want)
		}
		if got := openedBy(60001, "/dev/nvidia1"); got != letIn {
			t.Errorf("of mode %o, the user of the grant: %s, want %s", mode, got, letIn)
		}
	}
	n.Must("release", string(g.ID))
	n.Must("enable")
}
