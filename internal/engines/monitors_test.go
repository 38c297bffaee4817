package engines

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/gpuledger/gpuledger/internal/filetree"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// monitor is a process that stands for an engine's monitor.
type monitor struct {
	program string
	args    []string
	dir     string
	flags   uintptr
	user    uint32
}

func (m monitor) start(t *testing.T) int {
	t.Helper()
	cmd := exec.Command(m.program, append([]string{"-c", "while :; do sleep 1; done"}, m.args...)...)
	cmd.Dir = m.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: m.flags, Setpgid: true, Pdeathsig: syscall.SIGKILL,
		Credential: &syscall.Credential{Uid: m.user, Gid: m.user}}
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// TestMonitors: a monitor counts if it is the engine's, on the node, and its container needs what
// configure made. No other process keeps anybody from an undo by taking a monitor's name.
func TestMonitors(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("misses root, to make namespaces and to be another user")
	}
	dir := t.TempDir()
	must(t, os.Chmod(filepath.Dir(dir), 0o755)) // for the user without root
	shell, err := os.ReadFile("/bin/sh")
	must(t, err)
	conmon, shim, links := dir+"/conmon", dir+"/containerd-shim-runc-v2", dir+"/links"
	must(t, os.WriteFile(conmon, shell, 0o755), os.WriteFile(shim, shell, 0o755), os.Mkdir(links, 0o755),
		os.Symlink("/bin/sh", links+"/conmon"), os.Symlink("/bin/sh", links+"/containerd-shim"))
	file := func(path, text string) {
		must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644))
	}

	const link = "/opt/x/gpuledger-runtime.of-this-test"
	podmans := []string{"--", "-r", link, "-x"}
	crios := func(pod, handler string) []string {
		file(dir+"/"+pod+"/userdata/config.json",
			`{"annotations": {"io.kubernetes.cri-o.RuntimeHandler": "`+handler+`"}}`)
		container := dir + "/" + pod + "-container/userdata"
		file(container+"/config.json", `{"annotations": {"io.kubernetes.cri-o.SandboxID": "`+pod+`",
			"io.kubernetes.cri-o.RuntimeHandler": "gpuledger"}}`)
		return []string{"--", "-b", container, "-r", link}
	}
	bundle := func(name, runtime string) string {
		file(dir+"/"+name+"/bundle/runtime", runtime)
		return dir + "/" + name + "/bundle"
	}
	gone := bundle("gone", link)
	file(dir+"/gone/beside/runtime", link)

	for _, row := range []struct {
		engine        grant.Engine
		count, others []monitor
	}{
		{grant.Podman, []monitor{{program: conmon, args: podmans},
			{program: conmon, args: podmans, flags: syscall.CLONE_NEWNS},
			{program: conmon, args: podmans, user: 65534}}, []monitor{
			{program: conmon, args: []string{"--", "-r", "/usr/bin/crun"}},
			{program: conmon, args: podmans, flags: syscall.CLONE_NEWPID}}},
		{grant.CRIO, []monitor{{program: conmon, args: crios("class", Handler)}}, []monitor{
			{program: conmon, args: crios("default", "")},
			{program: conmon, args: podmans},
			{program: conmon, args: crios("another", Handler), user: 65534},
			{program: links + "/conmon", args: crios("named", Handler)},
			{program: conmon, args: crios("inside", Handler), flags: syscall.CLONE_NEWNS}}},
		{grant.Containerd, []monitor{{program: shim, dir: bundle("ours", link)}, {program: shim, dir: gone}},
			[]monitor{{program: shim, dir: bundle("runc", "/usr/bin/runc")}, {program: shim, dir: dir},
				{program: shim, dir: bundle("elsewhere", "/usr/bin/gpuledger-runtime.of-this-test")},
				{program: shim, dir: bundle("users", link), user: 65534},
				{program: links + "/containerd-shim", dir: bundle("named", link)},
				{program: shim, dir: bundle("inside", link), flags: syscall.CLONE_NEWNS}}},
	} {
		var want, all []int
		for _, m := range row.count {
			want = append(want, m.start(t))
		}
		all = append(all, want...)
		for _, m := range row.others {
			all = append(all, m.start(t))
		}
		for _, pid := range all {
			executed(t, pid)
		}
		if row.engine == grant.Containerd {
			must(t, os.RemoveAll(gone))
		}
		slices.Sort(want)
		in, got := Installation{Engine: row.engine, System: filetree.System{Root: "/"}}, []int{}
		for _, p := range in.Monitors(link) {
			got = append(got, p.PID)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: the monitors are %v, want %v", row.engine, got, want)
		}
	}
}

// executed waits until a process that was started has executed its program.
func executed(t *testing.T, pid int) {
	t.Helper()
	eventually(t, "a process has executed its program", func() bool {
		line := arguments(pid)
		return len(line) > 1 && line[1] == "-c"
	})
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestAUsersProcessIsNoDaemon, also one that the kernel shows as root's, because the user may not
// read its program.
func TestAUsersProcessIsNoDaemon(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("misses root, to be another user")
	}
	dir := t.TempDir()
	must(t, os.Chmod(filepath.Dir(dir), 0o755))
	shell, err := os.ReadFile("/bin/sh")
	must(t, err)
	const name = "a-test-daemon"
	readable, hidden := dir+"/readable/"+name, dir+"/hidden/"+name
	for path, mode := range map[string]os.FileMode{readable: 0o755, hidden: 0o711} {
		must(t, os.Mkdir(filepath.Dir(path), 0o755), os.WriteFile(path, shell, mode))
	}
	want := monitor{program: hidden}.start(t)
	for _, pid := range []int{want, monitor{program: readable, user: 65534}.start(t),
		monitor{program: hidden, user: 65534}.start(t)} {
		executed(t, pid)
	}
	if got := processes(name, "mnt"); !slices.Equal(got, []int{want}) {
		t.Errorf("%v, want %d alone", got, want)
	}
}

// TestAMonitorBelowAnotherProcessOfItsName counts: a user can be the parent of monitors whose own
// have ended (PR_SET_CHILD_SUBREAPER), and take their name.
func TestAMonitorBelowAnotherProcessOfItsName(t *testing.T) {
	dir := t.TempDir()
	shell, err := os.ReadFile("/bin/sh")
	must(t, err, os.WriteFile(dir+"/conmon", shell, 0o755))
	const link = "/opt/x/gpuledger-runtime.of-another-test"
	// The dot keeps the parent's own arguments from ending with the link.
	cmd := exec.Command(dir+"/conmon", "-c", `"$0" -c 'while :; do sleep 1; done' -- -r "${1%.}" & wait`,
		dir+"/conmon", link+".")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	defer func() { _, _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL), cmd.Wait() }()
	in := Installation{Engine: grant.Podman, System: filetree.System{Root: "/"}}
	eventually(t, "there is one monitor", func() bool { return len(in.Monitors(link)) == 1 })
}
