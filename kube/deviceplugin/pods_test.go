package deviceplugin

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestPodsAreFoundByTheirCgroups(t *testing.T) {
	const a, b, static = "0b6c1d0e-8a6f-4b0e-9d5e-6a3a4be2d1a1", "1b6c1d0e-8a6f-4b0e-9d5e-6a3a4be2d1a1",
		"3d1f1d5f0a0a4e0b8c0e7b5c5c1f2f3a"
	of := func(uid string) string { return strings.ReplaceAll(uid, "-", "_") + ".slice" }
	for name, c := range map[string]struct {
		tree []string
		want []string
	}{
		"cgroupfs": {[]string{"kubepods/pod" + a + "/c1", "kubepods/burstable/pod" + b,
			"kubepods/besteffort/pod" + static, "user/poda"}, []string{a, b, static}},
		"systemd": {[]string{"system.slice/podman.service",
			"kubepods.slice/kubepods-pod" + of(a),
			"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + of(b) + "/cri-1.scope"},
			[]string{a, b}},
		"cgroup v1": {[]string{"memory/kubepods/burstable/pod" + a,
			"pids/kubepods/burstable/pod" + a, "cpu"}, []string{a}},
		"a kubelet with a cgroup root": {[]string{
			"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" +
				of(a), "v1/x/y/kubepods/pod" + b}, []string{a, b}},
		"no pod": {[]string{"kubepods/burstable", "kubepods/besteffort"}, []string{}},
		"what a pod's container makes": {[]string{"kubepods/burstable/pod" + a + "/c1/kubepods/pod" + b},
			[]string{a}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, path := range c.tree {
				check(t, os.MkdirAll(filepath.Join(dir, path), 0o700))
			}
			slices.Sort(c.want)
			if got := podsIn(dir); got == nil || !slices.Equal(slices.Sorted(maps.Keys(got)), c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
	for name, dir := range map[string]string{"there is no tree": "nowhere",
		"the kubelet makes none": t.TempDir()} {
		if got := podsIn(dir); got != nil {
			t.Errorf("%s: got %v, want an unknown pod", name, got)
		}
	}
}
