package nri

import (
	"encoding/json"
	"testing"

	"github.com/containerd/nri/pkg/api"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

func TestSpecOf(t *testing.T) {
	pod := &api.PodSandbox{Name: "job", Namespace: "ml", Uid: "u", Annotations: map[string]string{"a": "pod",
		"b": "pod", "io.kubernetes.cri.sandbox-uid": "forged"}}
	c := &api.Container{Id: "c1", Name: "train", Env: []string{"A=1"},
		Annotations: map[string]string{"b": "container", "io.kubernetes.cri.container-name": "forged"},
		User:        &api.User{Uid: 7}, CDIDevices: []*api.CDIDevice{{Name: "nvidia.com/gpu=0"},
			{Name: "gpuledger.dev/claim=x"}},
		Linux: &api.LinuxContainer{Rdt: &api.LinuxRdt{ClosId: api.String("class")},
			Resources: &api.LinuxResources{Unified: map[string]string{"memory.high": "1"}}}}
	spec := specOf(grant.Containerd, pod, c)
	for key, want := range map[string]string{"a": "pod", "b": "container", cdiNames: "nvidia.com/gpu=0",
		"io.kubernetes.cri.sandbox-uid":    "u",
		"io.kubernetes.cri.container-name": "train", "io.kubernetes.cri.container-type": "container"} {
		if got := spec.Annotations[key]; got != want {
			t.Errorf("annotation %s is %q, want %q", key, got, want)
		}
	}
	if spec.Process.User.UID != 7 || spec.Process.Capabilities != nil ||
		len(spec.Linux.Resources.Devices) != 1 || spec.Linux.Resources.Devices[0].Allow ||
		spec.Linux.Resources.Unified["memory.high"] != "1" || spec.Linux.IntelRdt.ClosID != "class" {
		t.Errorf("got %+v", spec)
	}
	if of := specOf(grant.NoEngine, pod, c); of.Annotations["io.kubernetes.cri.container-name"] != "forged" {
		t.Error("an engine that is not trusted has proven the identity")
	}
	if specOf(grant.Containerd, nil, &api.Container{}).Linux == nil {
		t.Error("a container of which the engine reports nothing has no spec")
	}
}

func TestPrivilegedByItsShape(t *testing.T) {
	rules := func(r ...*api.LinuxDeviceCgroup) *api.LinuxContainer {
		return &api.LinuxContainer{Resources: &api.LinuxResources{Devices: r}}
	}
	for _, c := range []struct {
		name string
		c    *api.Container
		want bool
	}{
		{"nothing", &api.Container{}, false},
		{"all devices", &api.Container{Linux: rules(&api.LinuxDeviceCgroup{Allow: true, Type: "a", Access: "rwm"})}, true},
		{"all devices, by a rule without a type", &api.Container{Linux: rules(&api.LinuxDeviceCgroup{Allow: true, Access: "rwm"})}, true},
		{"none", &api.Container{Linux: rules(&api.LinuxDeviceCgroup{Access: "rwm"})}, false},
		{"a writable /sys", &api.Container{Mounts: []*api.Mount{{Destination: "/sys", Type: "sysfs", Options: []string{"nosuid", "rw"}}}}, true},
		{"a read-only /sys", &api.Container{Mounts: []*api.Mount{{Destination: "/sys", Type: "sysfs", Options: []string{"nosuid", "ro"}}}}, false},
	} {
		if got := specOf(grant.Containerd, nil, c.c).Process.Capabilities != nil; got != c.want {
			t.Errorf("%s: privileged is %v", c.name, got)
		}
	}
}

// TestSettledKeepsTheSpec: all of config.json is kept, except what NRI knows better.
func TestSettledKeepsTheSpec(t *testing.T) {
	config := `{"ociVersion":"1.3.0","process":{"capabilities":{"bounding":["CAP_SYS_ADMIN"]}},` +
		`"root":{"path":"/r"},"annotations":{"kept":"1","b":"old"},"new":{"x":1}}`
	got, err := settled([]byte(config), specs.Spec{Annotations: map[string]string{"b": "new"}})
	if err != nil {
		t.Fatal(err)
	}
	var spec struct {
		specs.Spec
		New map[string]int
	}
	if err := json.Unmarshal(got, &spec); err != nil {
		t.Fatal(err)
	}
	if spec.Annotations["kept"] != "1" || spec.Annotations["b"] != "new" || spec.Root.Path != "/r" ||
		spec.Process.Capabilities.Bounding[0] != "CAP_SYS_ADMIN" || spec.New["x"] != 1 {
		t.Errorf("got %s", got)
	}
	if _, err := settled([]byte("no JSON"), specs.Spec{}); err == nil {
		t.Error("what is no JSON was read")
	}
}

func TestVersionsThatCarryRules(t *testing.T) {
	for version, want := range map[string]bool{"v0.8.0": false, "v0.9.1-0.20250219030224-e597e7849f24": false,
		"v0.10.0": true, "v0.12.3": true, "v1.0.0": true, "unknown": false, "": false, "devel": false} {
		if carriesRules(version) != want {
			t.Errorf("%q: want %v", version, want)
		}
	}
}
