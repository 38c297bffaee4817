package configure

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/configfile"
	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestUndoNamesNoDefaultThatIsGone: the former default's handler was removed meanwhile, as NVIDIA's
// toolkit does when it is removed.
func TestUndoNamesNoDefaultThatIsGone(t *testing.T) {
	for name, c := range map[string]struct {
		engine       grant.Engine
		file, before string
		without      func(t *testing.T, d configfile.Document)
	}{
		"docker": {grant.Docker, "/etc/docker/daemon.json",
			`{"default-runtime": "nvidia", "debug": true, "runtimes": {"nvidia": {"path": ` +
				`"/usr/bin/nvidia-container-runtime"}}}`,
			func(t *testing.T, d configfile.Document) { unset(t, d, "runtimes", "nvidia") }},
		"containerd": {grant.Containerd, "/etc/containerd/config.toml",
			"version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n" +
				"default_runtime_name = \"nvidia\"\n" +
				"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n" +
				"runtime_type = \"io.containerd.runc.v2\"\n" +
				"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia]\n" +
				"runtime_type = \"io.containerd.runc.v2\"\n" +
				"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia.options]\n" +
				"BinaryName = \"/usr/bin/nvidia-container-runtime\"\n",
			func(t *testing.T, d configfile.Document) {
				unset(t, d, "plugins", engines.CRIPlugin, "containerd", "runtimes",
					"nvidia")
			}},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(newRoot(t, map[string]string{
				c.file: c.before, "/usr/bin/nvidia-container-runtime": "#!/bin/sh\n",
				"/usr/bin/runc": "#!/bin/sh\n"}), c.engine)
			applied(t, o)
			d, err := configfile.Parse(c.file, []byte(fileAt(t, o.Root, c.file)))
			if err != nil {
				t.Fatal(err)
			}
			c.without(t, d)
			write(t, o.Root, c.file, string(d.Bytes()))
			applied(t, o) // the missing handler is no obstacle

			if u, err := Undo(o, "/var/lib/gpuledger", false); err != nil || len(u.Named) > 0 {
				t.Fatal(u, err)
			}
			is := engines.DefaultHandler{}
			for _, p := range engines.Find(o.Root) {
				if p.Engine == c.engine {
					is.Name, is.Binary = p.Default, p.Handlers[p.Default]
				}
			}
			if is.Name == "nvidia" || is.Name == engines.Handler {
				t.Errorf("the default handler is %q, of which nothing is there:\n%s", is.Name,
					fileAt(t, o.Root, c.file))
			}
		})
	}
}

func unset(t *testing.T, d configfile.Document, path ...string) {
	t.Helper()
	if err := d.Unset(path...); err != nil {
		t.Fatal(err)
	}
}

func fileAt(t *testing.T, root, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestADefaultThatIsGoneAlready: containerd would go on after its restart, and without the plugin
// by which a kubelet calls it.
func TestADefaultThatIsGoneAlready(t *testing.T) {
	o := options(newRoot(t, map[string]string{"/etc/containerd/config.toml": "version = 2\n" +
		"[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"nvidia\"\n" +
		"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\n" +
		"runtime_type = \"io.containerd.runc.v2\"\n", "/usr/bin/runc": "#!/bin/sh\n"}), grant.Containerd)
	o.AsDefault = false
	if _, err := New(o); err == nil || !strings.Contains(err.Error(), `the default handler "nvidia"`) {
		t.Errorf("it is taken: %v", err)
	}
	o.AsDefault = true
	applied(t, o)
}
