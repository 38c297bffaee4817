package test

import (
	"testing"

	"github.com/gpuledger/gpuledger/test/rig"
)

// everywhere runs a test on cgroup v1 and v2, with runc and crun.
func everywhere(t *testing.T, test func(t *testing.T, runtime string)) {
	for _, layout := range []rig.Layout{rig.V1, rig.V2} {
		t.Run(string(layout), func(t *testing.T) {
			if rig.Under(t, layout) {
				return
			}
			for _, runtime := range []string{"runc", "crun"} {
				t.Run(runtime, func(t *testing.T) {
					rig.NeedRuntime(t, runtime)
					test(t, runtime)
				})
			}
		})
	}
}

const exactlyOne = "No such file or directory\nNo such device or address\nNo such device or address\nOperation not permitted\n"

func TestHookGivesExactlyTheGrant(t *testing.T) {
	everywhere(t, func(t *testing.T, runtime string) {
		n := rig.NewNode(t, rig.Setup{Runtime: runtime})
		for _, stage := range []string{"createRuntime", "prestart"} {
			reference := n.Grant("--memory", "4GiB", "--gpu", "1")
			b := n.Bundle("c-"+stage, rig.Annotation("gpuledger.dev/grant", reference.String()), rig.Env("NVIDIA_VISIBLE_DEVICES=1"), rig.Shell(probe), n.HookedAt(stage))
			if got := b.RealRun(); got.Stdout != exactlyOne {
				t.Errorf("%s: opening GPU 0, GPU 1, nvidiactl and a node of its own made for another GPU:\n%s%swant:\n%s", stage, got.Stdout, got.Stderr, exactlyOne)
			}
			if greedy := n.Bundle("d-"+stage, rig.Env("NVIDIA_VISIBLE_DEVICES=all"), rig.Shell("echo started"), n.HookedAt(stage)).RealRun(); greedy.Code == 0 || greedy.Stdout != "" {
				t.Errorf("%s: %+v", stage, greedy)
			} else {
				t.Log(greedy.Stderr)
			}
		}
	})
}
