package node

import (
	"slices"
	"testing"
)

func TestCgroupPaths(t *testing.T) {
	for _, c := range []struct {
		name, path string
		want       []string
	}{
		{"of Docker", "/docker/abc", []string{"/docker/abc"}},
		{"of a pod", "/kubepods/burstable/pod1/abc", []string{"/kubepods/burstable/pod1/abc"}},
		{"with dots", "/docker/../../x", []string{"/x"}},
		{"relative", "x/y", []string{"/x/y"}},
		{"relative with dots", "../../x/../y", []string{"/y"}},
		{"containerd under systemd", "kubepods-burstable-pod1.slice:cri-containerd:abc",
			[]string{"/kubepods-burstable-pod1.slice:cri-containerd:abc",
				"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/" +
					"cri-containerd-abc.scope",
				"cri-containerd-abc.scope"}},
		{"Podman under systemd", "machine.slice:libpod:abc",
			[]string{"/machine.slice:libpod:abc", "/machine.slice/libpod-abc.scope", "libpod-abc.scope"}},
		{"no slice", ":docker:abc", []string{"/:docker:abc", "/system.slice/docker-abc.scope",
			"docker-abc.scope"}},
		{"the root slice", "-.slice:docker:abc", []string{
			"/-.slice:docker:abc", "/docker-abc.scope", "docker-abc.scope"}},
		{"no prefix", "system.slice::abc", []string{"/system.slice::abc",
			"/system.slice/-abc.scope", "-abc.scope"}},
		{"a hyphen in the name", "a.slice:docker:a-b", []string{
			"/a.slice:docker:a-b", "/a.slice/docker-a-b.scope", "docker-a-b.scope"}},
		{"a hyphen in the prefix", "a.slice:docker-a:b", []string{
			"/a.slice:docker-a:b", "/a.slice/docker-a-b.scope", "docker-a-b.scope"}},
		{"a slice for a container", "a.slice:x:a-b.slice",
			[]string{"/a.slice:x:a-b.slice", "/a.slice/x-a-b.slice.scope", "x-a-b.slice.scope",
				"/a.slice/a-b.slice", "a-b.slice"}},
		{"two parts, which crun takes", "a.slice:x", []string{"/a.slice:x", "/a.slice/x.scope", "x.scope"}},
		{"four parts, which crun takes", "a.slice:x:y:z", []string{
			"/a.slice:x:y:z", "/a.slice/x-y:z.scope", "x-y:z.scope"}},
		{"one part, which crun takes", "a.slice", []string{
			"/a.slice", "/a.slice/a.slice.scope", "a.slice.scope"}},
		{"a slice that is none", "a:b:c", []string{"/a:b:c"}},
		{"a slice that is a path", "/a.slice:b:c", []string{"/a.slice:b:c"}},
		{"a slice that systemd refuses", "a--b.slice:c:d", []string{"/a--b.slice:c:d"}},
		{"a name that is a path", "a.slice:b:../../c", []string{"/c"}},
	} {
		if got := cgroupPaths(c.path); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
