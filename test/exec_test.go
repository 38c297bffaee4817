package test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/test/rig"
)

// cgroupsOf lists the cgroups of a process, by their paths in /sys/fs/cgroup.
func cgroupsOf(t *testing.T, pid int) (dirs []string) {
	t.Helper()
	for line := range strings.Lines(read(t, fmt.Sprintf("/proc/%d/cgroup", pid))) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, _ := strings.Cut(rest, ":")
		dir := filepath.Join("/sys/fs/cgroup", strings.TrimPrefix(controllers, "name="), path)
		if exists(dir + "/cgroup.procs") {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// deviceCgroup is the one of them whose device rules apply when the process opens devices.
func deviceCgroup(t *testing.T, pid int) string {
	t.Helper()
	dirs := cgroupsOf(t, pid)
	for _, dir := range dirs {
		if strings.HasPrefix(dir, "/sys/fs/cgroup/devices/") {
			return dir
		}
	}
	if len(dirs) != 1 {
		t.Fatal("no cgroup has its device rules: ", dirs)
	}
	return dirs[0]
}

// opensGPU is a script that prints whether GPU 0 can be opened.
const opensGPU = opener + "open c 195 0\n"

// TestExecStaysInItsContainersCgroup: the cgroup of another container has the GPU of that one, and
// the cgroup above has all. docs/adr/0084 has what the runtimes do without the wrapper.
func TestExecStaysInItsContainersCgroup(t *testing.T) {
	eachRuntime(t, func(t *testing.T, runtime string) {
		n := rig.NewNode(t, rig.Setup{Runtime: runtime})
		g := n.Grant("--mode", "exclusive", "--gpu", "0")
		holder := starts(t, n.Bundle("work-1", with(g)))
		work := starts(t, n.Bundle("work"))
		shell := []string{"work", "/bin/busybox", "sh", "-c", opensGPU}
		for _, value := range []string{"../work-1", "x/../../work-1", "/../work-1", "..",
			"devices:../work-1"} {
			r := rig.Run(n.Real(append([]string{"exec", "--cgroup", value}, shell...)...))
			t.Logf("%s alone, --cgroup %s: status %d, %q %q", runtime, value, r.Code, r.Stdout, r.Stderr)
			// newer runtimes refuse it
			if value == "../work-1" && r.Code == 0 && r.Stdout != "c 195:0 open\n" {
				t.Error("the process stays where it was, so this shows nothing")
			}
		}
		for _, options := range []string{"--cgroup ../work-1", "--cgroup=../work-1", "-cgroup ../work-1",
			"--cg ../work-1", "--cgr=../work-1", "--cgroup /../work-1", "--cgroup ..",
			"--cgroup x --cgroup ../work-1", "--cgroup devices:../work-1", "--cgroup=pids,devices:../work-1",
			"--cgroup x/../../work-1", "--new --cgroup ../work-1"} {
			t.Run(options, func(t *testing.T) {
				args := slices.Concat([]string{"exec"}, strings.Fields(options), shell)
				r := rig.Run(n.Wrapper(args...))
				wantRefused(t, r, "injection-impossible")
				if !strings.Contains(r.Stderr, " is not a sub cgroup path\n") { // as runc says it
					t.Error(r.Stderr)
				}
			})
		}
		own := deviceCgroup(t, work.Init())
		below := []string{"--cgroup", "/"}
		switch {
		case !strings.HasPrefix(own, "/sys/fs/cgroup/devices"):
			below = []string{"--cgroup", "/below"}
		case runtime == "runc":
			// crun moves the process into that of each controller
			below = []string{"--cgroup", "devices:/below"}
		}
		must(t, os.Mkdir(own+"/below", 0o755))
		for _, words := range [][]string{shell, append([]string{"--cgroup", "/"}, shell...),
			append(below, shell...),
			append(shell, "--cgroup", "../work-1")} { // words of the container's own command
			r := rig.Run(n.Wrapper(append([]string{"exec"}, words...)...))
			if r.Code != 0 || strings.TrimSpace(r.Stdout) != "c 195:0 closed" {
				t.Errorf("%q: %+v", words, r)
			}
		}
		opensItsGPU(t, n, holder, "at the end")
		work.End()
		holder.End()
	})
}

// TestReportedExec: if nothing is enforced, an exec that would be refused is done.
func TestReportedExec(t *testing.T) {
	if rig.Under(t, rig.V1) {
		return
	}
	n := rig.NewNode(t, rig.Setup{Config: "[policy]\nmode = \"report\"\n"})
	work := starts(t, n.Bundle("work", rig.Light))
	r := rig.Run(n.Wrapper("exec", "--cgroup", "x/..", "work", "/bin/busybox", "echo", "done"))
	if r.Code != 0 || r.Stdout != "done\n" || !strings.Contains(r.Stderr,
		"would be refused (injection-impossible)") {
		t.Errorf("%+v", r)
	}
	work.End()
	// an exec into a container that has all devices anyway would not be refused
	all := starts(t, n.Bundle("all", rig.Light, rig.Privileged))
	if r := handed(n, []*os.File{openAt(t, "/dev", unix.O_PATH)}, "", "exec", "--preserve-fds=1", "all",
		"/bin/busybox", "true"); r.Code != 0 || r.Stderr != "" {
		t.Errorf("with the node's devices: %+v", r)
	}
	all.End()
}

// TestExecThatMakesRootIsRecorded: a directory above the ledger is passed to a process of a
// container that was created without it.
func TestExecThatMakesRootIsRecorded(t *testing.T) {
	if rig.Under(t, rig.V1) {
		return
	}
	n := rig.NewNode(t, rig.Setup{})
	work := starts(t, n.Bundle("work", rig.Light))
	for path, want := range map[string]string{"/var/log": "",
		"/": `"recorded":["exec: node-root by descriptor:3"]`} {
		r := handed(n, []*os.File{openAt(t, path, unix.O_RDONLY)}, "", "exec", "--preserve-fds=1", "work",
			"/bin/busybox", "true")
		log, _ := os.ReadFile(n.Dir + "/audit.jsonl")
		if r.Code != 0 || r.Stderr != "" || !strings.Contains(string(log), want) ||
			strings.Contains(string(log), "exec:") != (want != "") {
			t.Errorf("%s: %+v, recorded %s", path, r, log)
		}
		_ = os.Remove(n.Dir + "/audit.jsonl")
	}
	work.End()
}

// TestExecIsJudgedByItsOwnContainer: a process may get an open GPU if its container was created
// with it. No option's value and no word of the command decides which container that is.
func TestExecIsJudgedByItsOwnContainer(t *testing.T) {
	eachRuntime(t, func(t *testing.T, runtime string) {
		n := rig.NewNode(t, rig.Setup{Runtime: runtime})
		gpu := nodeAt(t, n.Dir, 195, 0)
		g := n.Grant("--mode", "exclusive", "--gpu", "0")
		holder, work := starts(t, n.Bundle("holder", with(g), rig.Light)),
			starts(t, n.Bundle("work", rig.Light))
		judged := func(words string) rig.Result {
			cmd := n.Wrapper(append([]string{"exec", "--preserve-fds", "1"}, strings.Fields(words)...)...)
			cmd.Dir, cmd.ExtraFiles = n.Dir, []*os.File{gpu}
			return rig.Run(cmd)
		}
		for _, words := range []string{"--pid-file holder work /bin/busybox true",
			"--pid holder work /bin/busybox true", "-pid-file holder work /bin/busybox true",
			"--cwd / --user 0 --env holder -e holder work /bin/busybox true", "work /bin/busybox true holder",
			"--new holder work /bin/busybox true",
			"--new work holder", "-dt holder work"} {
			wantRefused(t, judged(words), "gpu-device-node")
		}
		for _, words := range []string{"holder /bin/busybox true", "--pid-file work holder /bin/busybox true",
			"--env=A=work -- holder /bin/busybox true work"} {
			if r := judged(words); r.Code != 0 {
				t.Errorf("%q: %+v", words, r)
			}
		}
		work.End()
		holder.End()
	})
}

// TestExecRunsUnderItsContainersRuntime: with runtime.unjudged, a container of the real runtime
// that a command's words name is another one.
func TestExecRunsUnderItsContainersRuntime(t *testing.T) {
	if rig.Under(t, rig.V1) {
		return
	}
	n := rig.NewNode(t, rig.Setup{})
	unjudged := n.Write("unjudged", "#!/bin/sh\necho unjudged\n")
	must(t, os.Chmod(unjudged, 0o755))
	n.Write("config.toml", strings.Replace(read(t, n.Config), "[runtime]\n",
		fmt.Sprintf("[runtime]\nunjudged = %q\n", unjudged), 1))
	work := starts(t, n.Bundle("work", rig.Light))
	for words, want := range map[string]string{
		"exec work /bin/busybox echo real": "real", "exec other /bin/busybox echo work": "unjudged",
		"exec --pid-file work other true": "unjudged", "kill other work": "real",
	} {
		cmd := n.Wrapper(strings.Fields(words)...)
		cmd.Dir = n.Dir
		if r := rig.Run(cmd); (r.Stdout == "unjudged\n") != (want == "unjudged") {
			t.Errorf("%s: %+v, want it by %s", words, r, want)
		}
	}
	work.End()
}

// TestAbbreviatedGlobalOptions: crun reads "--roo list" as --root, and the next word as the
// subcommand. The runtime behind the wrapper does nothing.
func TestAbbreviatedGlobalOptions(t *testing.T) {
	if rig.Under(t, rig.V1) {
		return
	}
	n := rig.NewNode(t, rig.Setup{})
	n.Write("config.toml", strings.Replace(read(t, n.Config), `path = ["runc"]`, `path = ["/bin/true"]`, 1))
	b := n.Bundle("all", rig.Env("NVIDIA_VISIBLE_DEVICES=all"))
	gpu := nodeAt(t, n.Dir, 195, 0)
	for _, options := range []string{"", "--roo list --deb", "--log-f state --sys",
		"--cgroup-m list --log-l=debug"} {
		r := rig.Run(n.Wrapper(append(strings.Fields(options), "create", "--bundle", b.Dir, b.ID)...))
		if r.Code != 1 || !strings.Contains(r.Stderr, "gpuledger: refused (") {
			t.Errorf("%s create: %+v", options, r)
		}
		wantRefused(t, handed(n, []*os.File{gpu}, "", append(strings.Fields(options), "exec",
			"--preserve-fds=1", "c1", "true")...), "gpu-device-node")
	}
}
