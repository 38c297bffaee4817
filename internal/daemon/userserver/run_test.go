package userserver

import (
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpuledger/gpuledger/internal/containers"
	"github.com/gpuledger/gpuledger/internal/daemon/daemontest"
	"github.com/gpuledger/gpuledger/internal/daemon/rootsocket"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
)

// TestProgramOf: only a process that is the caller's in all respects is moved.
func TestProgramOf(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("misses root, to start processes of others")
	}
	const caller, other = 2, "not the caller's alone"
	for name, c := range map[string]struct {
		args  []string
		attr  *syscall.SysProcAttr
		wrong string
	}{
		"the caller's":       {[]string{"--reuid=2", "--regid=2", "--clear-groups"}, nil, ""},
		"another's":          {[]string{"--reuid=5", "--regid=5", "--clear-groups"}, nil, other},
		"root's":             {[]string{"--clear-groups"}, nil, other},
		"with root's rights": {[]string{"--ruid=2", "--clear-groups"}, nil, other},
		"with another's uid": {[]string{"--euid=2", "--clear-groups"}, nil, other},
		"in a pid namespace": {[]string{"--reuid=2", "--regid=2", "--clear-groups"},
			&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}, "in a container"},
	} {
		cmd := exec.Command("setpriv", append(c.args, "sh", "-p", "-c", "echo started; read x")...)
		cmd.SysProcAttr = c.attr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(name, err)
		}
		_, _ = out.Read(make([]byte, 16)) // it has its uids
		process := &rootsocket.Process{PID: cmd.Process.Pid, UID: caller}
		of, err := programOf(host.Default(), peer{uid: caller}, process)
		switch {
		case c.wrong == "" && (err == nil || !strings.Contains(err.Error(), "it has ended")):
			// without a descriptor nothing says that it still is the process
			t.Errorf("%s: %+v, %v", name, of, err)
		case c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)):
			t.Errorf("%s: %v, want %q", name, err, c.wrong)
		}
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// TestCgroupsOfPrograms that have ended are removed, and those that cannot be removed are tried
// again. One that a user has made in the place of ours is the user's own.
func TestCgroupsOfPrograms(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("misses root, to give a directory to a user")
	}
	s := newServer(t)
	parent := t.TempDir()
	empty, used, users := parent+"/empty", parent+"/used", parent+"/users"
	daemontest.Must(t, os.Mkdir(empty, 0o755), os.MkdirAll(used+"/in", 0o755),
		os.MkdirAll(users+"/in", 0o755), os.Chown(users, ada, ada))
	s.programCgroups.add(empty, used, users, parent+"/gone")
	daemontest.Must(t, s.removeProgramCgroups(s.Node()))
	left := slices.Collect(maps.Keys(s.programCgroups.dirs))
	if _, err := os.Stat(empty); err == nil || !slices.Equal(left, []string{used}) {
		t.Errorf("%v are left, want %s", left, used)
	}
	daemontest.Must(t, os.Remove(used+"/in"), s.removeProgramCgroups(s.Node()))
	if !s.programCgroups.none() {
		t.Errorf("%v are left", s.programCgroups.dirs)
	}
}

// TestCgroupOfRootsProgram: `gpuledger run` of root has made it, without gpuledgerd, and was
// killed.
func TestCgroupOfRootsProgram(t *testing.T) {
	s := newServer(t)
	n, id := s.Node(), grant.NewID([16]byte{1})
	n.Host.Sys = t.TempDir()
	cgroup := "/gpuledger-" + string(id)
	dir := containers.CgroupDir(n.Host, cgroup)
	daemontest.Must(t, os.MkdirAll(dir, 0o755))
	bindings := []grant.Binding{{Grant: id, RuntimeRoot: n.Policy.RunDir, Cgroups: []string{cgroup},
		Container: "gpuledger-" + string(id)}}
	s.Ledger = func(*node.Node) (o grants.Overview, err error) {
		o.Grants = []grant.Grant{{ID: id, Bindings: bindings}}
		return o, nil
	}
	daemontest.Must(t, s.removeProgramCgroups(n))
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the cgroup of a program that runs is gone: %v", err)
	}
	bindings = nil
	daemontest.Must(t, s.removeProgramCgroups(n))
	if _, err := os.Stat(dir); err == nil || !s.programCgroups.none() {
		t.Errorf("left are %s and %v", dir, s.programCgroups.dirs)
	}
}
