package configure

import (
	"errors"
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
		strings.Join(p.Policy.Runtime.Path, " ") != "/usr/bin/crun crun" {
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

// TestASecondEngineThatEndsEnforcement: all engines have one policy, so the careful one of a second
// engine's --as-default ends the enforcement for the first. configure says so and how to keep it.
func TestASecondEngineThatEndsEnforcement(t *testing.T) {
	for name, row := range map[string]struct {
		alone bool
		own   string
		add   Options
		want  string
	}{
		"no policy is set": {false, packaged, Options{}, `under containerd, too, which has the same ` +
			`policy: policy.mode becomes "report" and policy.privileged becomes "strip"; to keep that ` +
			`policy, use --mode enforce --privileged refuse`},
		"enforce is set": {false, "[policy]\nmode = \"enforce\"\n", Options{},
			`policy: policy.privileged becomes "strip"; to keep that policy, use --privileged refuse`},
		"report is asked for": {false, "[policy]\nmode = \"enforce\"\nprivileged = \"strip\"\n",
			Options{Mode: grant.Report},
			`policy: policy.mode becomes "report"; to keep that policy, use --mode enforce`},
		"it is kept": {false, packaged,
			Options{Mode: grant.Enforce, Privileged: grant.RefusePrivileged}, ""},
		"report mode already": {false, "[policy]\nmode = \"report\"\n", Options{}, ""},
		"no other engine":     {true, packaged, Options{}, ""},
	} {
		root := newRoot(t, map[string]string{"/etc/gpuledger/config.toml": row.own, "/usr/bin/runc": "",
			"/etc/containerd/config.toml": "version = 2\n"})
		if !row.alone {
			first := options(root, grant.Containerd)
			first.AsDefault = false
			applied(t, first)
		}
		second := options(root, grant.Podman)
		second.Mode, second.Privileged = row.add.Mode, row.add.Privileged
		p, err := New(second)
		if err != nil {
			t.Fatal(err)
		}
		said := ""
		for _, note := range p.Notes {
			if strings.Contains(note, "same policy") {
				said += note
			}
		}
		if !strings.HasSuffix(said, row.want) || (said == "") != (row.want == "") {
			t.Errorf("%s: it says %q, want %q", name, said, row.want)
		}
	}
}

// TestASecondEngineWithAnotherRuntime: runtime.path is one list for all engines, so the containers
// of a second engine can change from crun to runc. configure says so.
func TestASecondEngineWithAnotherRuntime(t *testing.T) {
	for name, row := range map[string]struct {
		programs []string
		own      string // without it containerd is configured first
		said     string
	}{
		"containerd's runc is first": {[]string{"/usr/bin/runc", "/usr/bin/crun"}, "",
			"the present default runtime is /usr/bin/crun, but runtime.path in /etc/gpuledger/config.toml " +
				"has runc, crun"},
		"only runc is there": {[]string{"/usr/bin/runc"}, "", ""},
		"the same program by another path": {[]string{"/usr/bin/crun"},
			"[runtime]\npath = [\"/opt/crun\"]\n", ""},
		"the list leads to the same": {[]string{"/usr/bin/runc", "/usr/bin/crun"},
			"[runtime]\npath = [\"/usr/bin/gone\", \"crun\"]\n", ""},
	} {
		has := map[string]string{"/etc/containerd/config.toml": "version = 2\n"}
		for _, path := range row.programs {
			has[path] = ""
		}
		if row.own != "" {
			has["/etc/gpuledger/config.toml"] = row.own
		}
		root := newRoot(t, has)
		if err := errors.Join(os.Mkdir(root+"/opt", 0o755),
			os.Symlink("/usr/bin/crun", root+"/opt/crun")); err != nil {
			t.Fatal(err)
		}
		if row.own == "" {
			applied(t, options(root, grant.Containerd))
		}
		p, err := New(options(root, grant.Podman))
		if err != nil {
			t.Fatal(err)
		}
		said := ""
		for _, note := range p.Notes {
			if strings.Contains(note, "runtime.path") {
				said += note
			}
		}
		if said != row.said {
			t.Errorf("%s: it says %q, want %q", name, said, row.said)
		}
	}
}
