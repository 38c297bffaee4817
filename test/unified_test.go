package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/test/rig"
)

func unified(key, value string) rig.Edit {
	return func(s *specs.Spec) { s.Linux.Resources.Unified = map[string]string{key: value} }
}

// cgroup2Of is the cgroup of version 2 that a process is in.
func cgroup2Of(t *testing.T, pid int) string {
	t.Helper()
	return regexp.MustCompile(`(?m)^0::(.*)$`).FindStringSubmatch(
		read(t, fmt.Sprintf("/proc/%d/cgroup", pid)))[1]
}

// TestRawCgroupKeysMoveNoProcess: by raw keys a runtime moves any process of the node into a
// container's cgroup, and a granted container's processes out of theirs (docs/adr/0064). The bare
// runtime shows that it does.
func TestRawCgroupKeysMoveNoProcess(t *testing.T) {
	eachRuntime(t, func(t *testing.T, runtime string) {
		n := rig.NewNode(t, rig.Setup{Runtime: runtime})
		reference := n.Grant("--memory", "1GiB", "--gpu", "0")
		start := func(b *rig.Bundle) *rig.Bundle {
			t.Helper()
			for _, r := range []rig.Result{b.Create(), b.Start()} {
				if r.Code != 0 {
					t.Fatal(r)
				}
			}
			return b
		}
		sleeps := rig.Shell("exec sleep 1000")
		granted := start(n.Bundle("granted", sleeps, rig.Annotation("gpuledger.dev/grant",
			reference.String())))
		plain := start(n.Bundle("plain", sleeps))
		outsider := exec.Command("sleep", "1000")
		must(t, outsider.Start())
		t.Cleanup(func() { _, _ = outsider.Process.Kill(), outsider.Wait() })

		// cgroupOfProcess has the processes that could be moved, and their cgroups.
		cgroupOfProcess := map[int]string{}
		for _, pid := range []int{granted.Init(), plain.Init(), outsider.Process.Pid} {
			cgroupOfProcess[pid] = cgroup2Of(t, pid)
		}
		stays := func(after string) {
			t.Helper()
			for pid, cgroup := range cgroupOfProcess {
				if now := cgroup2Of(t, pid); now != cgroup {
					t.Errorf("after %s process %d of %s is in %s", after, pid, cgroup, now)
				}
			}
		}
		if _, err := os.Stat("/sys/fs/cgroup/cgroup.procs"); err == nil { // version 1 alone has no such keys
			bare := n.Bundle("bare", sleeps, unified("cgroup.procs", fmt.Sprint(granted.Init())))
			if r := bareRun(bare); r.Code != 0 ||
				cgroup2Of(t, granted.Init()) == cgroupOfProcess[granted.Init()] {
				t.Errorf("the bare runtime leaves the granted container in its cgroup: %+v", r)
			}
			must(t, os.WriteFile("/sys/fs/cgroup"+cgroupOfProcess[granted.Init()]+"/cgroup.procs",
				fmt.Append(nil, granted.Init()), 0))
			bare.RealDelete()
		}
		stays("the bare runtime's container has gone")

		for pid := range cgroupOfProcess {
			for _, key := range []string{"cgroup.procs", "cgroup.threads", "../granted/cgroup.procs"} {
				wantRefused(t, n.Bundle("tried", sleeps, unified(key, fmt.Sprint(pid))).Create(),
					"gpu-device-rule")
				for _, b := range []*rig.Bundle{granted, plain} {
					wantRefused(t, update(b, fmt.Sprintf(`{"unified":{"pids.max":"9",%q:"%d"}}`, key, pid)),
						"gpu-device-rule")
				}
				stays(key)
			}
		}
		for _, key := range cgroupKeys(t, cgroupOfProcess[plain.Init()]) {
			for _, b := range []*rig.Bundle{granted, plain} {
				wantRefused(t, update(b, fmt.Sprintf(`{"unified":{%q:"1"}}`, key)), "gpu-device-rule")
				if !rig.Lives(b.Init()) || strings.Contains(read(t, fmt.Sprintf("/proc/%d/stat", b.Init())),
					") D ") {
					t.Errorf("%s has ended or is frozen after %s", b.ID, key)
				}
			}
			wantRefused(t, n.Bundle("tried", sleeps, unified(key, "1")).Create(), "gpu-device-rule")
		}

		wantRefused(t, n.Bundle("tried", sleeps, unified("gpu.max", "1"),
			rig.Annotation("gpuledger.dev/grant", n.Grant("--memory", "1GiB").String())).Create(),
			"limit-unenforceable")
		wantRefused(t, update(granted, `{"unified":{"gpu.max":"1"}}`), "limit-unenforceable")
		if r := update(plain, `{"unified":{"gpu.max":"1"}}`); strings.Contains(r.Stderr, "gpuledger: ") {
			t.Errorf("without a grant: %+v, want the runtime's own answer", r)
		}
		if _, err := os.Stat("/sys/fs/cgroup/cgroup.procs"); err != nil {
			return
		}
		for _, key := range []string{"cgroup.max.depth", "cgroup.max.descendants"} {
			for _, b := range []*rig.Bundle{granted, plain} {
				if r := update(b, fmt.Sprintf(`{"unified":{%q:"7"}}`, key)); r.Code != 0 ||
					strings.TrimSpace(read(t, "/sys/fs/cgroup"+cgroupOfProcess[b.Init()]+"/"+key)) != "7" {
					t.Errorf("%s of %s: %+v", key, b.ID, r)
				}
			}
			start(n.Bundle("with-"+key, sleeps, unified(key, "5")))
		}
	})
}

// cgroupKeys are the kernel's own files of a cgroup, as this kernel has them, without those that
// set a resource. Without version 2 they are those of the documentation.
func cgroupKeys(t *testing.T, cgroup string) []string {
	t.Helper()
	keys := []string{"cgroup.type", "cgroup.subtree_control", "cgroup.freeze", "cgroup.kill"}
	files, _ := filepath.Glob("/sys/fs/cgroup" + cgroup + "/cgroup.*")
	for _, file := range files {
		if key := filepath.Base(file); !slices.Contains([]string{
			"cgroup.max.depth", "cgroup.max.descendants", "cgroup.pressure"}, key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// bareRun starts a container by the real runtime, and leaves it running.
func bareRun(b *rig.Bundle) rig.Result {
	if r := b.RealCreate(); r.Code != 0 {
		return r
	}
	return rig.Run(b.Node.Real("start", b.ID))
}

// TestPodmansCgroupConf is the same as a user of Podman writes it.
func TestPodmansCgroupConf(t *testing.T) {
	rig.Need(t, "podman", "conmon")
	if rig.Under(t, rig.V2) {
		return
	}
	n := rig.NewNode(t, rig.Setup{Engine: "podman"})
	n.HideRun()
	b := n.Bundle("image")
	outsider := exec.Command("sleep", "1000")
	must(t, outsider.Start(), os.Mkdir(n.Dir+"/none", 0o755))
	t.Cleanup(func() { _, _ = outsider.Process.Kill(), outsider.Wait() })
	home := cgroup2Of(t, outsider.Process.Pid)
	// Podman passes no environment on
	wrapper := n.Write("wrapper", "#!/bin/sh\nGPULEDGER_CONFIG="+n.Config+" exec "+
		rig.Binary(t, "gpuledger-runtime")+" \"$@\"\n")
	must(t, os.Chmod(wrapper, 0o755))
	for conf, code := range map[string]string{fmt.Sprintf("cgroup.procs=%d",
		outsider.Process.Pid): "gpu-device-rule", "cgroup.freeze=1": "gpu-device-rule",
		"dmem.max=x": "limit-unenforceable", "cgroup.max.depth=5": ""} {
		podman := *n
		podman.Runtime = wrapper
		// of a hybrid machine's version 2, which has no pids
		r := (&rig.Bundle{Node: &podman, Dir: b.Dir, ID: "c"}).PodmanRun(n.Dir+"/none", "echo started",
			"--pids-limit=0", "--cgroup-conf", conf)
		if started := r.Code == 0 && r.Stdout == "started\n"; started != (code == "") ||
			code != "" && !strings.Contains(r.Stderr, "gpuledger: refused ("+code+"): ") {
			t.Errorf("%s: %+v, want %q", conf, r, code)
		}
	}
	if now := cgroup2Of(t, outsider.Process.Pid); now != home {
		t.Errorf("the process of %s is in %s", home, now)
	}
}
