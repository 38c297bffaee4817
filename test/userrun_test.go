package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// session is a cgroup as that of a user's login, in the hierarchy in which programs are known.
func session(t *testing.T) string {
	t.Helper()
	root := "/sys/fs/cgroup"
	for _, v1 := range []string{"devices", "unified"} {
		if _, err := os.Stat(filepath.Join(root, v1, "cgroup.procs")); err == nil {
			root = filepath.Join(root, v1)
			break
		}
	}
	dir, err := os.MkdirTemp(root, "session-")
	must(t, err, os.Chmod(dir, 0o755))
	t.Cleanup(func() {
		rig.Eventually(t, "the session's cgroups can be removed", func() bool {
			for _, cgroup := range append(programsIn(dir), dir) {
				killAll(cgroup) // each time: it may be starting others, or be just moved in
				_ = os.Remove(cgroup)
			}
			_, err := os.Stat(dir)
			return os.IsNotExist(err)
		})
	})
	return dir
}

func killAll(cgroup string) {
	procs, _ := os.ReadFile(filepath.Join(cgroup, "cgroup.procs"))
	for _, text := range strings.Fields(string(procs)) {
		pid, _ := strconv.Atoi(text)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// runsIn is a user's `gpuledger run` in a session.
func runsIn(n *rig.Node, session string, uid uint32, args ...string) *exec.Cmd {
	run := commandOf(n, uid, append([]string{"run"}, args...)...)
	script := fmt.Sprintf(`echo 0 >%s/cgroup.procs && exec setpriv --reuid=%d --regid=%d --clear-groups "$@"`,
		session, uid, uid)
	cmd := n.Command("/bin/sh", append([]string{"-c", script, "sh"}, run.Args...)...)
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// programsIn are the cgroups of programs in a session.
func programsIn(session string) []string {
	dirs, _ := filepath.Glob(session + "/gpuledger-g-*")
	return dirs
}

// TestUsersRun: a user's program has a grant within the quota as long as it runs, in the user's own
// session.
func TestUsersRun(t *testing.T) {
	for _, layout := range []rig.Layout{rig.V1, rig.V2} {
		t.Run(string(layout), func(t *testing.T) {
			if !rig.Under(t, layout) {
				usersRun(t)
			}
		})
	}
}

func usersRun(t *testing.T) {
	rig.Need(t, "setpriv")
	n, d := usersNode(t, quotas)
	s := session(t)
	run := func(uid uint32, args ...string) rig.Result { return rig.Run(runsIn(n, s, uid, args...)) }
	ended := func() {
		t.Helper()
		rig.Eventually(t, "nothing is left", func() bool { return len(n.Grants())+len(programsIn(s)) == 0 })
	}
	script := fmt.Sprintf(`echo $CUDA_VISIBLE_DEVICES $(id -u) "$@"; cat /proc/self/cgroup; ls -ld %s/gpuledger-g-*;
(echo 0 >%s/cgroup.procs) 2>&1; exit 7`, s, s)
	r := endsWith(t, run(ada, "--memory", "4GiB", "--", "/bin/sh", "-c", script, "sh", "--memory", "a b"), 7,
		fmt.Sprintf(" %d --memory a b\n", ada), "/"+filepath.Base(s)+"/gpuledger-g-", " root root ",
		"ermission denied", "to bearer of bin: 4GiB on GPU 0", "until ", "strength none",
		"nothing enforces it on the program")
	if !strings.HasPrefix(r.Stdout, "GPU-") {
		t.Errorf("it has no GPU: %s", r.Stdout)
	}
	ended()
	// what the user's shell says of GPUs is replaced
	visible := runsIn(n, s, ada, "--memory", "4GiB", "--", "/usr/bin/printenv", "CUDA_VISIBLE_DEVICES",
		"NVIDIA_VISIBLE_DEVICES")
	visible.Env = append(visible.Env, "CUDA_VISIBLE_DEVICES=99", "NVIDIA_VISIBLE_DEVICES=all")
	uuid, _, _ := strings.Cut(r.Stdout, " ")
	if r := rig.Run(visible); r.Stdout != uuid+"\n"+uuid+"\n" {
		t.Errorf("%+v, want %s twice", r, uuid)
	}
	ended()
	// what is refused leaves nothing
	for name, c := range map[string]struct {
		uid  uint32
		args []string
		code int
		says string
	}{
		"more than the quota":      {ada, []string{"--memory", "9GiB", "--", "/bin/true"}, 3, "is 8GiB in all"},
		"without a quota":          {eve, []string{"--memory", "1GiB", "--", "/bin/true"}, 3, "has no quota"},
		"another mode":             {ada, []string{"--mode", "exclusive", "--", "/bin/true"}, 3, "modes [limit]"},
		"a mode for containers":    {bob, []string{"--mode", "mps", "--memory", "1GiB", "--", "true"}, 2, "mps"},
		"more than is free":        {bob, []string{"--memory", "16161MiB", "--", "/bin/true"}, 5, "no-capacity"},
		"for another user":         {ada, []string{"--memory", "1GiB", "--user", "5", "--", "true"}, 2, "root's"},
		"no program":               {ada, []string{"--memory", "1GiB"}, 2, "want a program"},
		"one that is not there":    {ada, []string{"--memory", "1GiB", "--", "not-there"}, 1, "not-there"},
		"one that cannot be run":   {ada, []string{"--memory", "1GiB", "--", "/proc/version"}, 1, "/proc/version"},
		"a time to wait of naught": {ada, []string{"--wait", "0s", "--", "true"}, 2, "--wait"},
	} {
		t.Run(name, func(t *testing.T) { endsWith(t, run(c.uid, c.args...), c.code, c.says) })
	}
	ended()
	// a signal is the program's, and what it started goes on with the grant
	started := filepath.Join(filepath.Dir(filepath.Dir(usersSocket(n))), "started")
	must(t, os.WriteFile(started, nil, 0o666), os.Chmod(started, 0o666))
	cmd := runsIn(n, s, ada, "--memory", "4GiB", "--", "/bin/sh", "-c",
		"setsid sleep 1000 & echo $! >"+started+"; exec sleep 1000")
	must(t, cmd.Start())
	rig.Eventually(t, "it runs", func() bool { text, _ := os.ReadFile(started); return len(text) > 1 })
	held := n.Grants()
	if len(held) != 1 || held[0].State != grant.Bound || held[0].User != ada || len(held[0].Bindings) != 1 {
		t.Fatalf("%+v", held)
	}
	endsWith(t, as(n, ada, "grant", "--memory", "5GiB"), 3, "4GiB of it is granted")
	id := string(held[0].ID)
	endsWith(t, as(n, bob, "grant", "--update", id, "--memory", "1GiB"), 4, "you have no grant")
	endsWith(t, as(n, ada, "grant", "--update", id, "--memory", "5GiB"), 0, "5GiB on GPU 0")
	n.CheckSound("while it runs")
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	if s := cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signal() != syscall.SIGKILL {
		t.Errorf("%v, want the signal", s)
	}
	if held := n.Grants(); len(held) != 1 || len(programsIn(s)) != 1 {
		t.Errorf("a process goes on, and the ledger counts %+v in %v", held, programsIn(s))
	}
	// also over a restart of gpuledgerd
	d.End(syscall.SIGKILL)
	endsWith(t, run(ada, "--memory", "1GiB", "--", "true"), 1, "cannot ask gpuledgerd on",
		"does gpuledgerd run")
	again := func() {
		t.Helper()
		_ = os.Remove(filepath.Join(n.Dir, "gpuledgerd.log"))
		d = n.Daemon("--nri", "off")
		rig.Eventually(t, "it serves users again", func() bool {
			return strings.Contains(d.Log(), "serving the users")
		})
	}
	again()
	time.Sleep(300 * time.Millisecond) // some passes
	killAll(programsIn(s)[0])
	ended()
	// of one that ended meanwhile nothing is left either
	must(t, os.WriteFile(started, nil, 0o666))
	cmd = runsIn(n, s, ada, "--memory", "4GiB", "--", "/bin/sh", "-c", "echo >"+started+"; exec sleep 1000")
	must(t, cmd.Start())
	rig.Eventually(t, "it runs", func() bool { text, _ := os.ReadFile(started); return len(text) > 0 })
	d.End(syscall.SIGKILL)
	killAll(programsIn(s)[0])
	_ = cmd.Wait()
	again()
	ended()
	n.CheckSound("at the end")
}

// TestUsersRunWaits: --wait waits in the queue, for a user and for root, and what is interrupted or
// killed meanwhile has nothing.
func TestUsersRunWaits(t *testing.T) {
	rig.Need(t, "setpriv")
	n, d := usersNode(t, "[[quota]]\nuser = \"*\"\n")
	s := session(t)
	full := n.Grant("--memory", "16000MiB", "--gpu", "0")
	starting := func(uid uint32, args ...string) *waiting {
		t.Helper()
		args = append([]string{"--memory", "15000MiB", "--gpu", "0", "--wait", "10m", "--"}, args...)
		w := &waiting{cmd: runsIn(n, s, uid, args...), out: &lockedBuffer{}, end: make(chan error, 1)}
		w.cmd.Stdout, w.cmd.Stderr = w.out, w.out
		must(t, w.cmd.Start())
		go func() { w.end <- w.cmd.Wait() }()
		rig.Eventually(t, "it waits", func() bool { return strings.Contains(w.out.String(), "waiting, ") })
		return w
	}
	killed, interrupted := starting(ada, "/bin/echo", "ran"), starting(ada, "/bin/echo", "ran")
	first := starting(bob, "/bin/sh", "-c", "echo ran; exit 3")
	roots := starting(0, "/bin/sh", "-c", "echo ran; exit 4")
	must(t, killed.cmd.Process.Kill())
	<-killed.end
	must(t, interrupted.cmd.Process.Signal(syscall.SIGTERM)) // SIGINT is ignored behind a shell's "&"
	if <-interrupted.end; interrupted.cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("interrupted: %s", interrupted.out)
	}
	d.End(syscall.SIGKILL)
	for _, w := range []*waiting{first, roots} {
		rig.Eventually(t, "it is told", func() bool {
			return strings.Contains(w.out.String(), "gpuledgerd is gone")
		})
	}
	n.Daemon("--nri", "off")
	rig.Eventually(t, "both wait again", func() bool {
		return strings.HasSuffix(strings.TrimSpace(first.out.String()), "of 2")
	})
	n.Must("release", string(full.ID))
	for w, code := range map[*waiting]int{first: 3, roots: 4} {
		if <-w.end; w.cmd.ProcessState.ExitCode() != code || !strings.Contains(w.out.String(), "\nran\n") {
			t.Errorf("status %d, want %d: %s", w.cmd.ProcessState.ExitCode(), code, w.out)
		}
	}
	if strings.Contains(killed.out.String()+interrupted.out.String(), "\nran\n") {
		t.Error("what was ended while it waited has run")
	}
	rig.Eventually(t, "nothing is left", func() bool { return len(n.Grants())+len(programsIn(s)) == 0 })
	n.CheckSound("at the end")
}

// TestUsersRunIsFinished: gpuledgerd is killed between the grant and the move. The request that is
// sent again finds the grant, and its program is moved then.
func TestUsersRunIsFinished(t *testing.T) {
	rig.Need(t, "setpriv")
	n, d := usersNodeOf(t, rig.Setup{Config: quotas, Tags: []string{"failpoint"}})
	s := session(t)
	for _, point := range []string{"grants/tree", "ledger/bind-written"} {
		d.End(syscall.SIGKILL)
		_ = os.Remove(filepath.Join(n.Dir, "gpuledgerd.log"))
		d = n.Dying(point).Daemon("--nri", "off")
		rig.Eventually(t, "it serves users", func() bool {
			return strings.Contains(d.Log(), "serving the users")
		})
		cmd, out := runsIn(n, s, ada, "--memory", "8GiB", "--wait", "10m", "--", "cat", "/proc/self/cgroup"),
			&lockedBuffer{}
		cmd.Stdout, cmd.Stderr = out, out
		must(t, cmd.Start())
		rig.Eventually(t, "gpuledgerd dies", func() bool {
			return strings.Contains(out.String(), "is gone")
		})
		d.End(syscall.SIGKILL)
		d = n.Daemon("--nri", "off")
		err := cmd.Wait()
		if err != nil || strings.Count(out.String(), filepath.Base(s)+"/gpuledger-g-") != 1 {
			t.Errorf("%s: %v: %s", point, err, out)
		}
		holdsNothing(t, n)
		n.CheckSound(point)
	}
}

// TestUsersRunOpensItsNodes before the program starts, whenever the next pass of gpuledgerd is, and
// closes them when it has ended.
func TestUsersRunOpensItsNodes(t *testing.T) {
	rig.Need(t, "setpriv")
	ownDev(t)
	n, _ := usersNode(t, "[daemon]\nlisten = \"\"\ninterval = \"3s\"\n[enforcement]\n"+
		"user_nodes = \"acl\"\n"+quotas)
	if why := openedBy(0, "/dev/nvidia1"); why != letIn {
		t.Skipf("the device cgroup of this machine keeps root from the node (%s): "+
			"access lists of nodes are not seen", why)
	}
	s := session(t)
	r := rig.Run(runsIn(n, s, ada, "--memory", "1GiB", "--gpu", "1", "--", "/bin/cat", "/dev/nvidia1"))
	if !strings.Contains(r.Stderr, letIn) {
		t.Errorf("%+v", r)
	}
	r = rig.Run(runsIn(n, s, ada, "--memory", "1GiB", "--gpu", "1", "--", "/bin/cat", "/dev/nvidia0"))
	if !strings.Contains(r.Stderr, closed) {
		t.Errorf("another GPU: %+v", r)
	}
	rig.Eventually(t, "the node is closed again", func() bool {
		return openedBy(ada, "/dev/nvidia1") == closed
	})
}

// TestHostileRuns: no one has another process moved, and the place is the kernel's.
func TestHostileRuns(t *testing.T) {
	rig.Need(t, "setpriv", "unshare")
	n, _ := usersNode(t, quotas+"[[quota]]\nuser = \"*\"\n")
	s := session(t)
	ask := `{"memory":1048576,"mode":"limit","owner":"bearer","secret":"%032x"%s}`
	// this process connects in a thread of ada's: it is root's, and so it is not moved
	own := read(t, "/proc/self/cgroup")
	for i, more := range []string{"", `,"pid":1`, `,"process":{"pid":1,"start":1}`,
		`,"cgroup":"/../../tmp","user":2`} {
		if out := curlAs(n, ada, "POST", "/v1/run", fmt.Sprintf(ask, i, more)); !strings.Contains(out,
			"it is not the caller's alone") {
			t.Errorf("%s: %s", more, out)
		}
	}
	out := curlAs(n, 0, "POST", "/v1/run", fmt.Sprintf(ask, 9, ""))
	if !strings.Contains(out, "has no quota") {
		t.Errorf("root of a container: %s", out)
	}
	if read(t, "/proc/self/cgroup") != own {
		t.Errorf("the test was moved to %s", read(t, "/proc/self/cgroup"))
	}
	// a container is another pid namespace
	program := rig.Binary(t, "gpuledger")
	commandOf(n, ada)
	r := rig.Run(n.Elsewhere("setpriv", "--reuid=2", "--regid=2", "--clear-groups", program, "run",
		"--memory", "1GiB", "--", "/bin/true"))
	if r.Code != 1 || !strings.Contains(r.Stderr, "it is in a container") {
		t.Errorf("in another pid namespace: %+v", r)
	}
	// in a user namespace of the caller's own it is the caller
	r = rig.Run(runsIn(n, s, ada, "--memory", "1GiB", "--", "/bin/true"))
	inside := runsIn(n, s, ada, "--memory", "1GiB", "--", "/bin/echo", "ran")
	inside.Args = slices.Insert(inside.Args, slices.Index(inside.Args, program), "unshare", "--user",
		"--map-root-user")
	if r2 := rig.Run(inside); r.Code != 0 || r2.Code != 0 && !strings.Contains(r2.Stderr, "unshare") {
		t.Errorf("%+v\nin a user namespace: %+v", r, r2)
	}
	rig.Eventually(t, "nothing is left", func() bool { return len(n.Grants())+len(programsIn(s)) == 0 })
	n.CheckSound("after hostile runs")
}
