package configure

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestSnippetsAreWhatConfigureWrites compares the files in configs/ with what configure writes.
func TestSnippetsAreWhatConfigureWrites(t *testing.T) {
	for snippet, c := range map[string]struct {
		engine  grant.Engine
		has     map[string]string
		written string
	}{
		"containerd/config.toml": {grant.Containerd, nil, "/etc/containerd/config.toml"},
		"containerd/zz-gpuledger.toml": {grant.Containerd, map[string]string{
			"/etc/containerd/config.toml": "version = 3\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n"},
			"/etc/containerd/conf.d/zz-gpuledger.toml"},
		"crio/zz-gpuledger.conf": {grant.CRIO, nil, "/etc/crio/crio.conf.d/zz-gpuledger.conf"},
		"podman/zz-gpuledger.conf": {grant.Podman, nil,
			"/etc/containers/containers.conf.d/zz-gpuledger.conf"},
		"docker/daemon.json": {grant.Docker, nil, "/etc/docker/daemon.json"},
	} {
		t.Run(snippet, func(t *testing.T) {
			root := newRoot(t, c.has)
			p, err := New(options(root, c.engine))
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Apply(); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join(root, c.written))
			if err != nil {
				t.Fatal(err)
			}
			want, err := os.ReadFile(filepath.Join("../../configs", snippet))
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != string(want) {
				t.Errorf("configure writes\n%s\nbut configs/%s has\n%s", got, snippet, want)
			}
		})
	}
}
