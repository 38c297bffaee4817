package configure

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// packaged is a configuration as the packages install it: tables, and every key as a comment.
const packaged = "# gpuledger's configuration.\n\n# engine = \"containerd\"\n\n[runtime]\n" +
	"# path = [\"runc\", \"crun\"]\n\n[policy]\n# mode = \"enforce\"\n"

// TestAPackagedConfigurationIsFilledIn: it has no values, so configure writes the careful policy
// and the engine's own runtime into it. The comments stay, and undo restores every byte.
func TestAPackagedConfigurationIsFilledIn(t *testing.T) {
	root := newRoot(t, map[string]string{"/etc/gpuledger/config.toml": packaged, "/usr/bin/crun": "",
		"/etc/crio/crio.conf": "[crio.runtime]\ndefault_runtime = \"crun\"\n[crio.runtime.runtimes.crun]\n" +
			"runtime_path = \"/usr/bin/crun\"\n"})
	before := files(t, root)
	p, err := New(options(root, grant.CRIO))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Apply(); err != nil {
		t.Fatal(err)
	}
	if p.Policy.Engine != grant.CRIO || p.Policy.Rules.Mode != grant.Report ||
		p.Policy.Rules.Privileged != grant.Strip ||
		strings.Join(p.Policy.Runtime.Path, " ") != "/usr/bin/crun" {
		t.Errorf("%+v", p.Policy)
	}
	text, err := os.ReadFile(filepath.Join(root, "etc/gpuledger/config.toml"))
	if err != nil || !strings.Contains(string(text), "# mode = \"enforce\"") {
		t.Errorf("the comments are gone: %s (%v)", text, err)
	}
	if _, err := Undo(options(root, grant.CRIO), "/var/lib/gpuledger", false); err != nil {
		t.Fatal(err)
	}
	if after := files(t, root); after != before {
		t.Errorf("undone:\n%s\nwant\n%s", after, before)
	}
}
