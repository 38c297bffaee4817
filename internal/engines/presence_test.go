package engines

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// newSystem makes a system below a temporary directory, with the given files.
func newSystem(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestFindSeesWhatEnginesAreTold(t *testing.T) {
	root := newSystem(t, map[string]string{
		"/etc/containerd/config.toml": "version = 2\n" +
			"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia.options]\n" +
			"BinaryName = \"/usr/bin/nvidia-container-runtime\"\n",
		"/etc/crio/crio.conf.d/10.conf": "[crio.runtime]\nhooks_dir = [\"/h\"]\n" +
			"cdi_spec_dirs = [\"/c\"]\ndefault_runtime = \"nvidia\"\n",
		"/etc/crio/crio.conf":     "",
		"/etc/docker/daemon.json": `{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}`,
		"/etc/containers/containers.conf": "[engine]\nhooks_dir = [\"/p\"]\n[engine.runtimes]\n" +
			"nvidia = [\"/nowhere\"]\n",
		"/etc/containers/containers.conf.d/zzz.conf": "[engine]\nruntime = \"nvidia\"\n",
	})
	found := map[grant.Engine]Presence{}
	for _, p := range Find(root) {
		found[p.Engine] = p
	}
	if len(found) != 4 {
		t.Fatalf("four engines have a configuration: %+v", found)
	}
	if program := found[grant.Containerd].Handlers["nvidia"]; program != "/usr/bin/nvidia-container-runtime" {
		t.Errorf("containerd: %q", program)
	}
	if c := found[grant.CRIO]; c.Default != "nvidia" || len(c.HookDirs) != 1 || len(c.CDIDirs) != 1 {
		t.Errorf("CRI-O: %+v", c)
	}
	if p := found[grant.Podman]; p.Default != "nvidia" || p.Handlers["nvidia"] != "/nowhere" ||
		len(p.HookDirs) != 1 {
		t.Errorf("Podman: %+v", p)
	}
	if found[grant.Docker].Err == nil {
		t.Error("Docker's file is no JSON")
	}
}

// TestFindSeesIfBuildsMayNameCDIDevices: in Docker, unless its file forbids it.
func TestFindSeesIfBuildsMayNameCDIDevices(t *testing.T) {
	for text, want := range map[string]bool{
		`{}`: true,
		`{"features": {"cdi": true}, "builder": {"entitlements": {"device": true}}}`: true,
		`{"features": {"cdi": false}}`:                     false,
		`{"builder": {"entitlements": {"device": false}}}`: false,
	} {
		found := Find(newSystem(t, map[string]string{"/etc/docker/daemon.json": text}))
		if len(found) != 1 || found[0].CDIBuilds != want {
			t.Errorf("%s: %+v, want %v", text, found, want)
		}
	}
	if found := Find(newSystem(t, map[string]string{"/etc/crio/crio.conf": ""})); found[0].CDIBuilds {
		t.Error("CRI-O builds no images")
	}
}

// TestFindSeesWhatPassesAPodsUID: containerd before 1.6.11 leaves a pod what it claims to be.
func TestFindSeesWhatPassesAPodsUID(t *testing.T) {
	const v2, v3 = "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.gpuledger]\n",
		"version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.gpuledger]\n"
	for text, want := range map[string]string{
		v2: "",
		v2 + `pod_annotations = ["gpuledger.dev/*", "*"]`:                       "*",
		v2 + `pod_annotations = ["gpuledger.dev/*", "a*", "*/*"]`:               "",
		v2 + `pod_annotations = ["io.kubernetes.cri.sandbox-u*"]`:               "io.kubernetes.cri.sandbox-u*",
		v2 + `container_annotations = ["*"]`:                                    "",
		v3 + `pod_annotations = ["*"]`:                                          "",
		strings.Replace(v2, "gpuledger", "runc", 1) + `pod_annotations = ["*"]`: "",
	} {
		found := Find(newSystem(t, map[string]string{"/etc/containerd/config.toml": text}))
		if len(found) != 1 || found[0].PassesUID != want {
			t.Errorf("%s: %+v, want %q", text, found, want)
		}
	}
}

// TestFindLeavesDockersContainerdOut: a containerd without its CRI plugin runs only Docker's
// containers.
func TestFindLeavesDockersContainerdOut(t *testing.T) {
	if seen := Find(newSystem(t, map[string]string{"/etc/containerd/config.toml": "version = 2\n" +
		"disabled_plugins = [\"cri\"]\n"})); len(seen) != 0 {
		t.Errorf("%+v", seen)
	}
}

// TestFindFindsDistributions of Kubernetes by the file that they write.
func TestFindFindsDistributions(t *testing.T) {
	const main = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
	root := newSystem(t, map[string]string{main: "version = 3\n" +
		"[plugins.\"io.containerd.cri.v1.runtime\".containerd]\ndefault_runtime_name = \"nvidia\"\n"})
	if seen := Find(root); len(seen) != 1 || seen[0].File != main || seen[0].Default != "nvidia" {
		t.Errorf("%+v", seen)
	}
}
