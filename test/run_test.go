package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// runs is `gpuledger run` on a node with an empty /run.
func (n *gpuNode) runs(args ...string) *exec.Cmd {
	cmd := n.Command(rig.Binary(n.T, "gpuledger"), append([]string{"run"}, args...)...)
	lib, _ := filepath.Glob(n.built + "/driver/usr/lib/*")
	cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+lib[0], "FAKEDRIVER_DIR="+n.Dir+"/book")
	return cmd
}

func runNode(t *testing.T) *gpuNode {
	n := newGPUNode(t, rig.Setup{})
	n.HideRun()
	return n
}

// asksFirst is a program that says it has started, and waits.
func asksFirst(n *gpuNode) (script string, started func() bool) {
	file := filepath.Join(n.Dir, "started")
	return "echo $$ >" + file + ".new; mv " + file + ".new " + file + "; exec sleep 1000",
		func() bool { _, err := os.Stat(file); return err == nil }
}

// TestRun: the program has a grant as long as it runs, and gives its status on.
func TestRun(t *testing.T) {
	n := runNode(t)
	r := rig.Run(n.runs("--memory", "4GiB", "--", "/bin/sh", "-c", `echo $CUDA_VISIBLE_DEVICES "$@"; exit 7`,
		"sh", "--memory", "a b"))
	if r.Code != 7 || r.Stdout != n.gpus[0].UUID+" --memory a b\n" {
		t.Errorf("%+v", r)
	}
	if held := n.Grants(); len(held) != 0 {
		t.Errorf("it has ended, and the ledger counts %+v", held)
	}
	script, started := asksFirst(n)
	cmd := n.runs("--memory", "4GiB", "--", "/bin/sh", "-c", script)
	must(t, cmd.Start())
	rig.Eventually(t, "it runs", started)
	held := n.Grants()
	if len(held) != 1 || held[0].State != grant.Bound || held[0].GPUs[0].Memory != 4*grant.GiB {
		t.Errorf("%+v", held)
	}
	n.CheckSound("while it runs")
	if r := rig.Run(n.runs("--memory", "15GiB", "--", "/bin/true")); r.Code != 5 ||
		!strings.Contains(r.Stderr, "refused (no-capacity)") {
		t.Errorf("%+v", r)
	}
	must(t, cmd.Process.Signal(syscall.SIGTERM))
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 128+int(syscall.SIGTERM) {
		t.Errorf("%v, want the status of a program that SIGTERM has ended", err)
	}
	holdsNothing(t, n.Node)
	for name, c := range map[string]struct {
		args []string
		code int
	}{
		"no program":                   {[]string{"--memory", "1GiB"}, 2},
		"a program that is not there":  {[]string{"--memory", "1GiB", "--", "not-there"}, 1},
		"no size":                      {[]string{"--", "/bin/true"}, 2},
		"a mode without a container's": {[]string{"--mode", "mps", "--memory", "1GiB", "--", "/bin/true"}, 2},
	} {
		if r := rig.Run(n.runs(c.args...)); r.Code != c.code || len(n.Grants()) != 0 {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if left, _ := filepath.Glob("/sys/fs/cgroup/*/*gpuledger-g-*"); len(left) > 0 {
		t.Errorf("%v are left", left)
	}
	n.CheckSound("at the end")
}

// runsInSession is root's `gpuledger run` in a session.
func runsInSession(n *rig.Node, session string, args ...string) *exec.Cmd {
	run := []string{"-c", "echo 0 >" + session + `/cgroup.procs && exec "$@"`, "sh", "env",
		"--default-signal=INT", rig.Binary(n.T, "gpuledger"), "run", "--memory", "1GiB", "--"}
	return n.Command("/bin/sh", append(run, args...)...)
}

// TestASignalBeforeTheProgram is the program's: gpuledger does not end by it, and removes the
// cgroup.
func TestASignalBeforeTheProgram(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	n.CheckSound("before") // and makes the lock
	for name, c := range map[string]struct {
		signal syscall.Signal
		start  func(*exec.Cmd)
	}{
		"without a terminal": {syscall.SIGTERM, func(cmd *exec.Cmd) { must(t, cmd.Start()) }},
		"with a terminal":    {syscall.SIGINT, func(cmd *exec.Cmd) { newTerminal(t, 24, 80).start(cmd) }},
	} {
		t.Run(name, func(t *testing.T) {
			s := session(t)
			lock, err := os.OpenFile(n.Dir+"/run/lock", os.O_RDWR|os.O_CREATE, 0o600)
			must(t, err)
			defer lock.Close()
			must(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
			cmd := runsInSession(n, s, "/bin/sleep", "60")
			c.start(cmd)
			rig.Eventually(t, "it waits for the ledger", func() bool { return len(programsIn(s)) > 0 })
			must(t, cmd.Process.Signal(c.signal))
			time.Sleep(50 * time.Millisecond) // it receives the signal
			must(t, lock.Close())
			if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 128+int(c.signal) {
				t.Errorf("%v, want the status of a program that %v has ended", err, c.signal)
			}
			if left := programsIn(s); len(left) > 0 {
				t.Errorf("%v are left", left)
			}
			holdsNothing(t, n)
		})
	}
	n.CheckSound("at the end")
}

// TestACgroupIsBusyForAMoment: what ends just after the program does not leave its cgroup behind.
func TestACgroupIsBusyForAMoment(t *testing.T) {
	n, s := rig.NewNode(t, rig.Setup{}), session(t)
	r := rig.Run(runsInSession(n, s, "/bin/sh", "-c", "sleep 0.2 >/dev/null 2>&1 &"))
	if left := programsIn(s); r.Code != 0 || len(left) > 0 {
		t.Errorf("%+v, and %v are left", r, left)
	}
	holdsNothing(t, n)
}

// TestRunIsKilled: the grant stays until the last process that the program started has ended.
func TestRunIsKilled(t *testing.T) {
	n := runNode(t)
	script, started := asksFirst(n)
	cmd := n.runs("--memory", "4GiB", "--", "/bin/sh", "-c", "("+script+") & wait")
	must(t, cmd.Start())
	rig.Eventually(t, "it runs", started)
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	if held := n.Grants(); len(held) != 1 || len(held[0].Bindings) != 1 {
		t.Errorf("its processes go on, and the ledger counts %+v", held)
	}
	n.CheckSound("after the kill")
	var procs []byte
	for _, pattern := range []string{"/sys/fs/cgroup/devices", "/sys/fs/cgroup"} {
		_ = filepath.WalkDir(pattern, func(path string, _ os.DirEntry, err error) error {
			if err == nil && strings.HasPrefix(filepath.Base(path), "gpuledger-g-") {
				procs, _ = os.ReadFile(filepath.Join(path, "cgroup.procs"))
				t.Cleanup(func() { removeEmptied(t, path) })
			}
			return nil
		})
		if procs != nil {
			break
		}
	}
	for _, pid := range strings.Fields(string(procs)) {
		number, _ := strconv.Atoi(pid)
		_ = syscall.Kill(number, syscall.SIGKILL)
	}
	holdsNothing(t, n.Node)
	n.CheckSound("at the end")
}

// TestRunGetsTheShim: a program, also another user's, sees its grant as the GPU.
func TestRunGetsTheShim(t *testing.T) {
	n := runNode(t)
	for dir := n.built; dir != "/"; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		must(t, err)
		if info.Mode()&0o001 == 0 { // a directory of this test; /tmp keeps its mode
			must(t, os.Chmod(dir, info.Mode()|0o011))
		}
	}
	must(t, os.Chmod(n.Dir, 0o755))
	must(t, os.Chmod(n.Dir+"/book", 0o777)) // the driver's, which whoever comes first creates a file in
	const seen = "GPU 0 total 4096 MiB (0)\n4097 MiB: 2\n4096 MiB: 0\n1 MiB: 2\n"
	gpu := []string{n.built + "/gpu", "total", "4097", "4096", "1"}
	for name, before := range map[string][]string{"root": nil,
		"a user": {"setpriv", "--reuid=60001", "--regid=60001", "--clear-groups"}} {
		r := rig.Run(n.runs(append(append([]string{"--memory", "4GiB", "--"}, before...), gpu...)...))
		if r.Code != 0 || r.Stdout != seen {
			t.Errorf("%s: %+v", name, r)
		}
	}
	r := rig.Run(n.runs("--mode", "timeslice", "--memory", "4GiB", "--", gpu[0], "total"))
	if !strings.Contains(r.Stdout, fmt.Sprintf("total %d MiB", n.gpus[0].Memory/grant.MiB)) {
		t.Errorf("in mode timeslice: %+v", r)
	}
	if mounts := read(t, "/proc/self/mountinfo"); strings.Contains(mounts, " gpuledger ") {
		t.Errorf("mounts are left on the node: %s", mounts)
	}
}

// TestAKilledRunLeavesNothing that holds a GPU.
func TestAKilledRunLeavesNothing(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Tags: []string{"failpoint"}})
	for _, point := range []string{"ledger/put-renamed", "grants/tree", "ledger/bind-written"} {
		r := n.Dying(point).CLI("run", "--memory", "16160MiB", "--gpu", "0", "--", "/bin/true")
		if !r.Killed() {
			t.Fatalf("%s: %+v", point, r)
		}
		if held := n.Grants(); len(held) != 0 {
			t.Errorf("%s: the ledger counts %+v", point, held)
		}
		n.CheckSound(point)
		n.Must("run", "--memory", "16160MiB", "--gpu", "0", "--", "/bin/true")
	}
	removeTrees(t)
}

// removeTrees removes the empty cgroups of programs whose `gpuledger run` was killed. A session
// manager does that when the session ends.
func removeTrees(t *testing.T) {
	for _, place := range []string{"/sys/fs/cgroup/devices", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		left, _ := filepath.Glob(place + "/gpuledger-g-*")
		for _, dir := range left {
			removeEmptied(t, dir)
		}
	}
}

// removeEmptied removes a cgroup, which is busy for a moment after its last process.
func removeEmptied(t *testing.T, dir string) {
	rig.Eventually(t, "the cgroup "+dir+" can be removed", func() bool {
		err := os.Remove(dir)
		return err == nil || os.IsNotExist(err)
	})
}
