package configure

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/policy"
)

// TestVersionsAreMigratedBeforeTheyAreMerged, as containerd 2 does: files of version 2 and 3 side
// by side.
func TestVersionsAreMigratedBeforeTheyAreMerged(t *testing.T) {
	root := newRoot(t, map[string]string{
		"/etc/containerd/config.toml": "version = 2\nimports = [\"conf.d/*.toml\"]\n" +
			"[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n" +
			"default_runtime_name = \"nvidia\"\n" +
			"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia.options]\n" +
			"BinaryName = \"/usr/bin/nvidia-container-runtime\"\n",
		"/etc/containerd/conf.d/10.toml": "version = 3\n[plugins.\"io.containerd.cri.v1.runtime\"]\n" +
			"cdi_spec_dirs = [\"/c\"]\n",
	})
	p, err := New(options(root, grant.Containerd))
	if err != nil {
		t.Fatal(err)
	}
	if unjudged := p.Policy.Runtime.UnjudgedOf(
		grant.Containerd); unjudged != "/usr/bin/nvidia-container-runtime" {
		t.Errorf("the default runtime was %q", unjudged)
	}
	if err := p.Apply(); err != nil {
		t.Fatal(err)
	}
	ours, err := os.ReadFile(filepath.Join(root, "etc/containerd/conf.d/zz-gpuledger.toml"))
	if err != nil {
		t.Fatal(err)
	}
	if d, err := configfile.Parse("/x.toml", ours); err != nil ||
		len(configfile.Table(d.Tree(), "plugins", engines.CRIPlugin, "containerd", "runtimes")) != 1 {
		t.Errorf("where files are merged key by key, ours has only what is ours (%v):\n%s", err, ours)
	}
	if seen := engines.Find(root); len(seen) != 1 || seen[0].Default != engines.Handler ||
		len(seen[0].CDIDirs) != 3 {
		t.Errorf("in force: %+v", seen)
	}
}

// TestAnotherEngineGetsNoUnjudgedRuntime: an engine that is configured later without --as-default
// does not get containerd's former default.
func TestAnotherEngineGetsNoUnjudgedRuntime(t *testing.T) {
	root := newRoot(t, map[string]string{
		"/etc/containerd/config.toml": "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n" +
			"default_runtime_name = \"nvidia\"\n" +
			"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia]\n" +
			"runtime_type = \"io.containerd.runc.v2\"\n" +
			"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia.options]\n" +
			"BinaryName = \"/usr/bin/nvidia-container-runtime\"\n",
		"/usr/bin/nvidia-container-runtime": "#!/bin/sh\n", "/usr/bin/runc": "#!/bin/sh\n"})
	for _, engine := range []grant.Engine{grant.Containerd, grant.CRIO} {
		o := options(root, engine)
		o.AsDefault = engine == grant.Containerd
		p, err := New(o)
		if err == nil {
			err = p.Apply()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	config, err := policy.Parse([]byte(fileAt(t, root, "/etc/gpuledger/config.toml")))
	if err != nil {
		t.Fatal(err)
	}
	if got := config.Runtime.UnjudgedOf(grant.CRIO); got != "" {
		t.Errorf("CRI-O has %q", got)
	}
	if got := config.Runtime.UnjudgedOf(grant.Containerd); got != "/usr/bin/nvidia-container-runtime" {
		t.Errorf("containerd has %q", got)
	}
}

// TestTheRealRuntimeMayMove: an update of the engine's package can put runc elsewhere, and
// containers start all the same. An undo restores every byte.
func TestTheRealRuntimeMayMove(t *testing.T) {
	for name, row := range map[string]struct{ binary, moved, nvidia string }{
		"runc":                {"/usr/sbin/runc", "/usr/bin/runc", ""},
		"crun with a version": {"/usr/local/bin/crun-1.2", "/usr/bin/crun", ""},
		"the one that NVIDIA runs": {"/usr/bin/nvidia-container-runtime", "/usr/bin/runc",
			"/usr/local/bin/runc"},
	} {
		t.Run(name, func(t *testing.T) {
			has := map[string]string{row.binary: "", "/etc/containerd/config.toml": "version = 2\n" +
				"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n" +
				"runtime_type = \"io.containerd.runc.v2\"\n" +
				"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n" +
				"BinaryName = \"" + row.binary + "\"\n", "/etc/gpuledger/config.toml": packaged}
			first := row.binary
			if row.nvidia != "" {
				first = row.nvidia
				has["/etc/nvidia-container-runtime/config.toml"] =
					"[nvidia-container-runtime]\nruntimes = [\"" + first + "\"]\n"
			}
			has[first] = ""
			o := options(newRoot(t, has), grant.Containerd)
			before := files(t, o.Root)
			applied(t, o)
			in := o.Installation().System
			own, err := readOwnConfig(in, o.Config)
			if err != nil {
				t.Fatal(err)
			}
			if is := in.FirstProgram(own.policy.Runtime.Path); is != first {
				t.Errorf("containers run under %q, want %s", is, first)
			}
			if err := os.Rename(filepath.Join(o.Root, first), filepath.Join(o.Root, row.moved)); err != nil {
				t.Fatal(err)
			}
			if is := in.FirstProgram(own.policy.Runtime.Path); is != row.moved {
				t.Errorf("after the move containers run under %q, want %s", is, row.moved)
			}
			if err := os.Rename(filepath.Join(o.Root, row.moved), filepath.Join(o.Root, first)); err != nil {
				t.Fatal(err)
			}
			undone(t, o, "/var/lib/gpuledger", nil)
			if after := files(t, o.Root); after != before {
				t.Errorf("the undo leaves\n%s\nwant\n%s", after, before)
			}
		})
	}
}
