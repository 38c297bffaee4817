package node

import (
	"os"
	"testing"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestDecisionsAreComparedByTheirEdits: the bound decision is the one for which the spec was
// edited, in all of its edits.
func TestDecisionsAreComparedByTheirEdits(t *testing.T) {
	verdict := func() grant.Verdict {
		mode, root := os.FileMode(0o666), uint32(0)
		return grant.Verdict{
			Kind: grant.Admit, Masked: []string{"/proc/x"}, Removed: []grant.Removal{
				{Kind: grant.RemoveEnv, Name: "A"}},
			Rules: []grant.DeviceRule{{Allow: true, Type: 'c', Major: 195, Minor: 0, Access: "rw"}},
			Edits: cdispec.ContainerEdits{
				Env: []string{"A=1"},
				DeviceNodes: []*cdispec.DeviceNode{{Path: "/dev/nvidia0", Type: "c", Major: 195,
					FileMode: &mode, UID: &root}},
				Mounts: []*cdispec.Mount{{HostPath: "/h", ContainerPath: "/c", Options: []string{"ro"}}},
				Hooks:  []*cdispec.Hook{{HookName: "prestart", Path: "/hook"}},
			},
		}
	}
	if a := verdict(); !sameEdits(a, verdict()) || len(a.Edits.Mounts) != 1 || len(a.Edits.DeviceNodes) != 1 {
		t.Error("two that are alike differ, or have changed by the comparison")
	}
	other := os.FileMode(0o600)
	for name, change := range map[string]func(*grant.Verdict){
		"kind":           func(v *grant.Verdict) { v.Kind = grant.Pass },
		"narrow":         func(v *grant.Verdict) { v.Narrow = true },
		"masked":         func(v *grant.Verdict) { v.Masked[0] = "/proc/y" },
		"removed":        func(v *grant.Verdict) { v.Removed[0].Name = "B" },
		"rule":           func(v *grant.Verdict) { v.Rules[0].Minor = 1 },
		"env":            func(v *grant.Verdict) { v.Edits.Env[0] = "A=2" },
		"hook":           func(v *grant.Verdict) { v.Edits.Hooks[0].Path = "/other" },
		"node's path":    func(v *grant.Verdict) { v.Edits.DeviceNodes[0].Path = "/dev/nvidia1" },
		"node's number":  func(v *grant.Verdict) { v.Edits.DeviceNodes[0].Minor = 1 },
		"node's mode":    func(v *grant.Verdict) { v.Edits.DeviceNodes[0].FileMode = &other },
		"no mode":        func(v *grant.Verdict) { v.Edits.DeviceNodes[0].FileMode = nil },
		"node's owner":   func(v *grant.Verdict) { *v.Edits.DeviceNodes[0].UID = 1 },
		"node's group":   func(v *grant.Verdict) { v.Edits.DeviceNodes[0].GID = new(uint32) },
		"a node more":    func(v *grant.Verdict) { v.Edits.DeviceNodes = append(v.Edits.DeviceNodes, &cdispec.DeviceNode{}) },
		"mount's source": func(v *grant.Verdict) { v.Edits.Mounts[0].HostPath = "/other" },
		"mount's place":  func(v *grant.Verdict) { v.Edits.Mounts[0].ContainerPath = "/other" },
		"mount's option": func(v *grant.Verdict) { v.Edits.Mounts[0].Options[0] = "rw" },
		"no mount":       func(v *grant.Verdict) { v.Edits.Mounts = nil },
	} {
		v := verdict()
		if change(&v); sameEdits(v, verdict()) || sameEdits(verdict(), v) {
			t.Errorf("another %s is taken for the same", name)
		}
	}
}
