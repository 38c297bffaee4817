package test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/test/rig"
)

// TestCgroupsOff: without cgroups no device rule applies to a container. Podman has crun do so
// (--cgroups=disabled), and shows it only in the arguments. The hook reads those of the runtime
// that calls it.
func TestCgroupsOff(t *testing.T) {
	for _, layout := range []rig.Layout{rig.V1, rig.V2} {
		t.Run(string(layout), func(t *testing.T) {
			if rig.Under(t, layout) {
				return
			}
			rig.Need(t, "crun")
			n := rig.NewNode(t, rig.Setup{Runtime: "crun"})
			reference := n.Grant("--memory", "1GiB")
			opens := rig.Shell("cat /gpu; echo ended")
			bundles := 0
			bundle := func(edits ...rig.Edit) *rig.Bundle {
				bundles++
				id := fmt.Sprint("c", bundles)
				b := n.Bundle(id, append([]rig.Edit{rig.Light, opens,
					func(s *specs.Spec) { s.Linux.CgroupsPath = "" }}, edits...)...)
				mknod(t, b.Dir+"/rootfs/gpu", 195, 0)
				return b
			}
			bare := bundle()
			if r := rig.Run(n.Real("--cgroup-manager=disabled", "run", "--bundle", bare.Dir,
				bare.ID)); !strings.Contains(r.Stderr, "No such device or address") {
				t.Errorf("the bare runtime: %+v, want the node opened in spite of the rules", r)
			}
			for what, edits := range map[string][]rig.Edit{
				"no GPU": nil, "a grant": {rig.Annotation("gpuledger.dev/grant", reference.String())}} {
				for _, options := range [][]string{{"--cgroup-manager=disabled"},
					{"--cgroup-manager", "disabled"}, {"--cgroup-manager=systemd",
						"--cgroup-manager=disabled"}} {
					b := bundle(edits...)
					if r := rig.Run(n.Wrapper(append(options, "run", "--bundle", b.Dir, b.ID)...)); r.Code ==
						0 || !strings.Contains(r.Stderr, "gpuledger: refused (rules-not-enforced): ") {
						t.Errorf("%s, %v: %+v, want rules-not-enforced", what, options, r)
					}
				}
				b := bundle(append(edits, n.Hooked)...)
				if r := rig.Run(n.Real("--cgroup-manager=disabled", "run", "--bundle", b.Dir,
					b.ID)); !strings.Contains(r.Stderr, "gpuledger: refused (rules-not-enforced): ") {
					t.Errorf("%s, by the hook: %+v, want rules-not-enforced", what, r)
				}
			}
		})
	}
}

// TestPodmanWithoutCgroups is the same through Podman, whose configuration states that the
// wrapper's runtime supports it.
func TestPodmanWithoutCgroups(t *testing.T) {
	rig.Need(t, "podman", "conmon", "crun")
	for _, layout := range []rig.Layout{rig.V1, rig.V2} {
		t.Run(string(layout), func(t *testing.T) {
			if rig.Under(t, layout) {
				return
			}
			n := rig.NewNode(t, rig.Setup{Engine: "podman", Runtime: "crun"})
			n.HideRun()
			n.PodmanEnds()
			b := n.Bundle("image")
			mknod(t, b.Dir+"/rootfs/gpu", 195, 0)
			// Podman passes no environment on
			wrapper := n.Write("wrapper", "#!/bin/sh\nGPULEDGER_CONFIG="+n.Config+" exec "+
				rig.Binary(t, "gpuledger-runtime")+" \"$@\"\n")
			must(t, os.Chmod(wrapper, 0o755))
			podman := func(runtime string) rig.Result {
				conf := n.Write("containers.conf",
					"[engine]\nlock_type = \"file\"\nruntime_supports_nocgroup = [\"gpuledger\", "+
						"\"crun\"]\n[engine.runtimes]\ngpuledger = [\""+wrapper+
						"\"]\n[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n")
				cmd := n.Command("podman", "--root", n.Dir+"/storage", "--runroot", n.Dir+"/runroot",
					"--tmpdir", n.Dir+"/tmpdir", "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs",
					"--events-backend", "file", "--runtime", runtime, "--hooks-dir", n.Dir+"/none", "run",
					"--rm", "--network", "none", "--cgroups=disabled", "--rootfs", b.Dir+"/rootfs",
					"/bin/busybox", "cat", "/gpu")
				cmd.Env = append(cmd.Env, "CONTAINERS_CONF="+conf)
				return rig.Run(cmd)
			}
			must(t, os.Mkdir(n.Dir+"/none", 0o755))
			if r := podman("crun"); !strings.Contains(r.Stderr, "No such device or address") {
				t.Errorf("without gpuledger: %+v, want the node opened in spite of the rules", r)
			}
			if r := podman("gpuledger"); r.Code != 126 ||
				!strings.Contains(r.Stderr, "gpuledger: refused (rules-not-enforced): ") {
				t.Errorf("%+v, want rules-not-enforced", r)
			}
		})
	}
}
