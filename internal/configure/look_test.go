package configure

import (
	"path/filepath"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestLookSeesWhatWasConfigured: Look finds what New plans, for every engine, with --as-default and
// without.
func TestLookSeesWhatWasConfigured(t *testing.T) {
	for engine, e := range engines {
		for _, asDefault := range []bool{false, true} {
			root := newRoot(t, map[string]string{"/usr/bin/" + e.program: ""})
			seen := Look(root)
			if len(seen) != 1 || seen[0].Engine != engine || seen[0].Handlers[Handler] != "" ||
				seen[0].Default == Handler || seen[0].Err != nil {
				t.Fatalf("%s, not configured: %+v", engine, seen)
			}
			o := options(root, engine)
			o.AsDefault = asDefault
			p, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Apply(); err != nil {
				t.Fatal(err)
			}
			seen = Look(root)
			if len(seen) != 1 || seen[0].Err != nil || (seen[0].Default == Handler) != asDefault ||
				filepath.Base(seen[0].Handlers[Handler]) != "gpuledger-runtime."+e.suffix {
				t.Errorf("%s, configured (as default: %v): %+v", engine, asDefault, seen)
			}
		}
	}
}

func TestLookSeesWhatEnginesAreTold(t *testing.T) {
	root := newRoot(t, map[string]string{
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
	for _, p := range Look(root) {
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

// TestLookLeavesDockersContainerdOut: a containerd without its CRI plugin runs only Docker's
// containers.
func TestLookLeavesDockersContainerdOut(t *testing.T) {
	if seen := Look(newRoot(t, map[string]string{"/etc/containerd/config.toml": "version = 2\n" +
		"disabled_plugins = [\"cri\"]\n"})); len(seen) != 0 {
		t.Errorf("%+v", seen)
	}
}
