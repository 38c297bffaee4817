package configure

import (
	"os"
	"testing"

	"github.com/gpuledger/gpuledger/internal/engines"
	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestWithoutAsDefaultLater: a later configure without --as-default leaves the default as it is and
// reports that. After an undo it makes a handler that containers choose.
func TestWithoutAsDefaultLater(t *testing.T) {
	const generated = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\n" +
		"default_runtime_name = \"gpuledger\"\n" +
		"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.gpuledger.options]\n" +
		"BinaryName = \"/usr/bin/gpuledger-runtime.containerd\"\n"
	const k3s = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
	for _, row := range []struct {
		name  string
		files map[string]string
		file  string
	}{{"the engine's own files", nil, ""}, {"k3s", map[string]string{k3s: "version = 3\n"}, k3s}} {
		for _, engine := range engines.All {
			if row.file != "" && engine != grant.Containerd {
				continue
			}
			o := options(newRoot(t, row.files), engine)
			o.File = row.file
			plan := func(asDefault bool) *Plan {
				t.Helper()
				o.AsDefault = asDefault
				p, err := New(o)
				if err == nil {
					err = p.Apply()
				}
				if err != nil {
					t.Fatalf("%s, %s: %v", row.name, engine, err)
				}
				return p
			}
			if p := plan(false); p.StillDefault {
				t.Errorf("%s, %s: still the default, and never was", row.name, engine)
			}
			if p := plan(true); p.StillDefault {
				t.Errorf("%s, %s: --as-default reports that it is still the default", row.name, engine)
			}
			if p := plan(false); !p.StillDefault || len(p.Changes) != 0 {
				t.Errorf("%s, %s: later without: still the default: %v, changes %+v", row.name, engine,
					p.StillDefault, p.Changes)
			}
			if row.file != "" { // as k3s writes it, and again only at its next restart
				if err := os.WriteFile(o.Root+row.file, []byte(generated), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			u, err := Undo(o, "/var/lib/gpuledger", true)
			if err != nil || (len(u.Named) > 0) != (row.file != "") {
				t.Fatalf("%s, %s: an undo would leave %q (%v)", row.name, engine, u.Named, err)
			}
			if _, err := Undo(o, "/var/lib/gpuledger", false); err != nil {
				t.Fatalf("%s, %s: %v", row.name, engine, err)
			}
			if p := plan(false); p.StillDefault || len(p.Changes) == 0 {
				t.Errorf("%s, %s: after an undo: still the default: %v, changes %+v", row.name, engine,
					p.StillDefault, p.Changes)
			}
			if all, err := Defaults(o.Root, "/var/lib/gpuledger"); err != nil || len(all) != 0 {
				t.Errorf("%s, %s: after an undo: %+v (%v)", row.name, engine, all, err)
			}
		}
	}
}
