package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/test/rig"
)

// asking is how a container requests a GPU from NVIDIA's runtime, or does not. If free is set, it
// starts in enforce mode too.
var asking = []struct {
	name string
	free bool
	edit func(n *rig.Node, uuid string) rig.Edit
}{
	{"env all", false, func(*rig.Node, string) rig.Edit { return rig.Env("NVIDIA_VISIBLE_DEVICES=all") }},
	{"env UUID", false, func(_ *rig.Node, uuid string) rig.Edit {
		return rig.Env("NVIDIA_VISIBLE_DEVICES=" + uuid)
	}},
	// NVIDIA's runtime finds no device of that name in a CDI file as NVIDIA's generator writes it,
	// and fails, with and without gpuledger.
	{"env none", true, func(*rig.Node, string) rig.Edit { return rig.Env("NVIDIA_VISIBLE_DEVICES=none") }},
	{"image env", false, func(*rig.Node, string) rig.Edit { return rig.Env("CUDA_VERSION=10.2.89") }},
	{"volume mount", false, func(_ *rig.Node, uuid string) rig.Edit {
		return mountOf("/dev/null", "/var/run/nvidia-container-devices/"+uuid)
	}},
	{"CDI annotation", false, func(*rig.Node, string) rig.Edit {
		return rig.Annotation("cdi.k8s.io/test", "nvidia.com/gpu=0")
	}},
	{"CDI device", false, func(*rig.Node, string) rig.Edit { return withGPUNode }},
	{"nothing", true, func(*rig.Node, string) rig.Edit { return func(*specs.Spec) {} }},
}

func mountOf(from, to string) rig.Edit {
	return func(s *specs.Spec) {
		s.Mounts = append(s.Mounts, specs.Mount{Destination: to, Type: "bind", Source: from,
			Options: []string{"bind", "ro"}})
	}
}

// withGPUNode is what an engine makes of a CDI device.
func withGPUNode(s *specs.Spec) {
	major, minor, mode := int64(195), int64(0), os.FileMode(0o666)
	s.Linux.Devices = append(s.Linux.Devices, specs.LinuxDevice{
		Path: "/dev/nvidia0", Type: "c", Major: major, Minor: minor, FileMode: &mode})
	s.Linux.Resources.Devices = append(s.Linux.Resources.Devices,
		specs.LinuxDeviceCgroup{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rwm"})
}

// whatItHas prints the devices, mounts and variables of the container that it runs in, and the
// result of opening each GPU.
const whatItHas = `echo =
/bin/busybox find /dev -type c -o -type b | /bin/busybox sort | /bin/busybox xargs /bin/busybox ls -l | /bin/busybox sed 's/ [A-Z][a-z][a-z] .* / /'
/bin/busybox awk '{ sub(/^[0-9]+ [0-9]+ [0-9]+:[0-9]+ /, ""); print }' /proc/self/mountinfo | /bin/busybox sed 's/ - .*//'
/bin/busybox env | /bin/busybox sort
for node in /dev/nvidia*; do /bin/busybox head -c 1 $node 2>&1; done; exit 0`

// TestUnjudgedContainersRunAsBefore: if nothing is enforced, a container has the devices, mounts
// and variables that it has under the engine's former default runtime. If the ledger is enforced, a
// container that reaches a GPU does not start.
func TestUnjudgedContainersRunAsBefore(t *testing.T) {
	if rig.Under(t, rig.V1) {
		return
	}
	for _, former := range []string{"runc", "crun", "nvidia-container-runtime"} {
		t.Run(former, func(t *testing.T) {
			n, program := formerNode(t, former)
			wrapper, enforced := rig.Binary(t, "gpuledger-runtime"), read(t, n.Config)
			for _, c := range asking {
				t.Run(c.name, func(t *testing.T) {
					b := n.Bundle("c", rig.Identity("uid-of-p", "default", "p", "c"), rig.Shell(whatItHas),
						c.edit(n, uuid(t, n, 0)))
					before := b.Config()
					had := runToEnd(t, n, program, b)
					if injects := former == "nvidia-container-runtime" && !c.free &&
						c.name != "CDI device"; injects != strings.Contains(had.Stdout, "NVIDIA_STAND_IN=1") {
						t.Fatalf("under %s: %+v", former, had)
					}
					for _, state := range []string{"report", "disabled", "exempt", "enforce"} {
						setState(t, n, enforced, state)
						b.WriteConfig(before)
						has := runToEnd(t, n, wrapper, b)
						switch {
						case state == "enforce" && !c.free:
							if has.Code != 1 || !strings.Contains(has.Stderr, "gpuledger: refused (") {
								t.Errorf("%s: %+v, want a refusal", state, has)
							}
						case state == "enforce" && has.Code == 0 && had.Code != 0:
							// runc starts what NVIDIA's runtime does not
						case has.Code != had.Code || has.Stdout != had.Stdout:
							t.Errorf("%s: it has\n%s(%d, %s)\nunder %s it had\n%s", state, has.Stdout,
								has.Code, has.Stderr, former, had.Stdout)
						}
					}
				})
			}
		})
	}
}

// formerNode is a node with the path of the program that was its engine's default runtime before.
func formerNode(t *testing.T, former string) (*rig.Node, string) {
	t.Helper()
	if former != "nvidia-container-runtime" {
		rig.NeedRuntime(t, former)
		return rig.NewNode(t, rig.Setup{Engine: "containerd", Runtime: former}), former
	}
	n := rig.NewNode(t, rig.Setup{Engine: "containerd"})
	program := rig.Toolkit(t, former)
	n.Env = append(n.Env, "NVIDIA_CTK_CONFIG_FILE_PATH="+toolkitConfig(t, n, "runc"))
	n.Write("config.toml", strings.Replace(read(t, n.Config), "[runtime]\n",
		fmt.Sprintf("[runtime]\nunjudged = %q\n", program), 1))
	return n, program
}

// runToEnd creates and starts a container as an engine does, and returns its output: NVIDIA's
// runtime does nothing for the subcommand run.
func runToEnd(t *testing.T, n *rig.Node, program string, b *rig.Bundle) rig.Result {
	t.Helper()
	call := func(args ...string) *exec.Cmd {
		return n.Command(program, append([]string{"--root", n.Root}, args...)...)
	}
	output, err := os.Create(filepath.Join(n.Dir, "output"))
	must(t, err)
	defer output.Close()
	create := call("create", "--bundle", b.Dir, b.ID)
	create.Stdout, create.Stderr = output, output
	r := rig.Result{}
	if create.Run() != nil {
		r.Code, r.Stderr = 1, read(t, output.Name())
		return r
	}
	defer func() { must(t, call("delete", "--force", b.ID).Run()) }()
	if r = rig.Run(call("start", b.ID)); r.Code != 0 {
		return r
	}
	rig.Eventually(t, "the container has ended", func() bool {
		return strings.Contains(rig.Run(call("state", b.ID)).Stdout, `"stopped"`)
	})
	_, r.Stdout, _ = strings.Cut("\n"+read(t, output.Name()), "\n=\n")
	return r
}

// setState makes a node enforce or not, from the configuration of one that enforces.
func setState(t *testing.T, n *rig.Node, enforced, state string) {
	t.Helper()
	n.Must("enable")
	more := ""
	switch state {
	case "report":
		more = "[policy]\nmode = \"report\"\n"
	case "exempt":
		more = "[[policy.exempt]]\nnamespace = \"default\"\n"
	case "disabled":
		n.Must("disable", "--for", "1h")
	}
	n.Write("config.toml", enforced+more)
}

// toolkitConfig has NVIDIA's runtime inject by a CDI file of stand-in devices, with a file of their
// driver.
func toolkitConfig(t *testing.T, n *rig.Node, low string) string {
	t.Helper()
	library := n.Write("libcuda.so.999", "a file of the driver\n")
	node := func(names ...string) (text string) {
		for _, name := range names {
			text += fmt.Sprintf("  - name: %q\n    containerEdits:\n      deviceNodes:\n", name)
			for minor := range 2 {
				if name == "all" || name == fmt.Sprint(minor) || name == uuid(t, n, minor) {
					text += fmt.Sprintf("      - {path: /dev/nvidia%d, type: c, major: 195, minor: %d}\n",
						minor, minor)
				}
			}
		}
		return text
	}
	must(t, os.MkdirAll(filepath.Join(n.Dir, "toolkit-cdi"), 0o755))
	n.Write("toolkit-cdi/nvidia.yaml", "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices:\n"+
		node(uuid(t, n, 0), uuid(t, n, 1), "0", "1", "all")+
		"containerEdits:\n  env: [NVIDIA_STAND_IN=1]\n  deviceNodes:\n  - {path: /dev/nvidiactl, type: c, "+
		"major: 195, minor: 255}\n"+
		fmt.Sprintf("  mounts:\n  - {hostPath: %q, containerPath: /usr/lib/libcuda.so.1, options: [ro, "+
			"nosuid, nodev, bind]}\n", library))
	return n.Write("toolkit.toml", fmt.Sprintf("accept-nvidia-visible-devices-as-volume-mounts = "+
		"true\n[nvidia-container-runtime]\nmode = \"cdi\"\n"+
		"runtimes = [%q]\n[nvidia-container-runtime.modes.cdi]\nspec-dirs = [%q]\ndefault-kind = "+
		"\"nvidia.com/gpu\"\nannotation-prefixes = [\"cdi.k8s.io/\"]\n",
		low, filepath.Join(n.Dir, "toolkit-cdi")))
}

// TestAnUnjudgedContainerLives: start, update, kill and delete reach the runtime that created the
// container.
func TestAnUnjudgedContainerLives(t *testing.T) {
	if rig.Under(t, rig.V1) {
		return
	}
	for low, real := range map[string]string{"runc": "runc", "crun": "runc", "runc below": "crun"} {
		low, _, _ := strings.Cut(low, " ")
		t.Run(low+" below NVIDIA's, and "+real, func(t *testing.T) {
			n, _ := formerNode(t, "nvidia-container-runtime")
			toolkitConfig(t, n, low)
			setRuntime(t, n, real)
			setState(t, n, read(t, n.Config), "report")
			reference := n.Grant("--memory", "1GiB")
			for _, b := range []*rig.Bundle{n.Bundle("greedy", rig.Env("NVIDIA_VISIBLE_DEVICES=all")),
				n.Bundle("granted", rig.Annotation("gpuledger.dev/grant", reference.String()))} {
				for _, r := range []rig.Result{b.Create(), b.Start(),
					rig.Run(n.Wrapper("update", "--pids-limit", "50", b.ID)),
					rig.Run(n.Wrapper("exec", b.ID, "/bin/busybox", "test", "-c", "/dev/nvidia0"))} {
					if r.Code != 0 {
						t.Fatalf("%s: %+v", b.ID, r)
					}
				}
				if got := b.Cgroup("pids", "pids.max"); got != "50" {
					t.Errorf("%s: pids.max is %s after the update", b.ID, got)
				}
				if r := rig.Run(n.Wrapper("state", b.ID)); r.Code != 0 ||
					!strings.Contains(r.Stdout, `"running"`) {
					t.Errorf("%s: %+v", b.ID, r)
				}
			}
			if got := n.Must("grants"); !strings.Contains(got, "granted") || strings.Contains(got, "greedy") {
				t.Errorf("grants: %s", got)
			}
			for _, id := range []string{"greedy", "granted"} {
				if r := rig.Run(n.Wrapper("delete", "--force", id)); r.Code != 0 {
					t.Errorf("%s: %+v", id, r)
				}
				if r := rig.Run(n.Wrapper("state", id)); r.Code == 0 {
					t.Errorf("%s is still there: %+v", id, r)
				}
			}
			n.CheckSound("after both are deleted")
		})
	}
}

// TestAToolkitThatCallsTheWrapperIsNoLoop: NVIDIA's toolkit takes the engine's default runtime,
// which is the wrapper, as the one below its own.
func TestAToolkitThatCallsTheWrapperIsNoLoop(t *testing.T) {
	n, _ := formerNode(t, "nvidia-container-runtime")
	toolkitConfig(t, n, rig.Binary(t, "gpuledger-runtime"))
	setState(t, n, read(t, n.Config), "report")
	b := n.Bundle("greedy", rig.Env("NVIDIA_VISIBLE_DEVICES=all"), rig.Shell(whatItHas))
	if r := runToEnd(t, n, rig.Binary(t, "gpuledger-runtime"), b); r.Code != 0 ||
		!strings.Contains(r.Stdout, "NVIDIA_STAND_IN=1") {
		t.Errorf("%+v", r)
	}
	if log := read(t, n.Dir+"/audit.jsonl"); strings.Count(log, `"container":"greedy"`) != 1 {
		t.Errorf("the audit log has not one line of it:\n%s", log)
	}
	if r := rig.Run(n.Wrapper("list")); r.Code != 0 {
		t.Errorf("%+v", r)
	}
	// The variable of another process has no effect.
	setState(t, n, strings.ReplaceAll(read(t, n.Config), "[policy]\nmode = \"report\"\n", ""), "enforce")
	n.Env = append(n.Env, "_GPULEDGER_HANDED_ON=1/1")
	wantRefused(t, n.Bundle("greedy", rig.Env("NVIDIA_VISIBLE_DEVICES=all"), rig.Shell("exit 0")).Run(),
		"visible-devices-all")
}

// TestAFormerRuntimeThatWasRemoved: containers run under the real runtime, and the wrapper prints
// it.
func TestAFormerRuntimeThatWasRemoved(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{})
	n.Write("config.toml", strings.Replace(read(t, n.Config), "[runtime]\n",
		"[runtime]\nunjudged = \"/nowhere/nvidia-container-runtime\"\n", 1)+"[policy]\nmode = \"report\"\n")
	r := n.Bundle("greedy", rig.Env("NVIDIA_VISIBLE_DEVICES=all"), rig.Shell("exit 0")).Run()
	if r.Code != 0 || !strings.Contains(r.Stderr,
		"cannot find /nowhere/nvidia-container-runtime (runtime.unjudged); containers run under /") {
		t.Errorf("%+v", r)
	}
}
