package policy

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// beside writes a configuration and the cluster's file beside it, and loads them.
func beside(t *testing.T, node, cluster string) (grant.Policy, string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	for file, text := range map[string]string{path: node, ClusterPath(path): cluster} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p, err := Load(path)
	return p, path, err
}

func TestTheClustersKeysAreReadOverTheNodes(t *testing.T) {
	p, _, err := beside(t, `
state_dir = "/data/ledger"
[policy]
mode = "report"
privileged = "strip"
[[policy.exempt]]
namespace = "mine"
[[pool]]
gpus = ["0"]
[audit]
keep = 9
`, `
[policy]
mode = "enforce"
[[policy.exempt]]
namespace = "gpuledger-system"
[audit]
max_size = "1MiB"
`)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.StateDir, want.Rules.Mode, want.Rules.Privileged = "/data/ledger", grant.Enforce, grant.Strip
	want.Rules.Exempt = []grant.Exemption{{Namespace: "mine"}, {Namespace: "gpuledger-system"}}
	want.Pools = []grant.Pool{{GPUs: []string{"0"}}}
	want.Audit.Keep, want.Audit.MaxSize = 9, grant.Size(grant.MiB)
	if !reflect.DeepEqual(p, want) {
		t.Errorf("got\n%+v\nwant\n%+v", p, want)
	}
}

func TestTheClustersPoolsReplaceTheNodes(t *testing.T) {
	p, _, err := beside(t, "[[pool]]\ngpus = [\"0\"]\n[[pool]]\ngpus = [\"1\"]\n",
		"[[pool]]\ngpus = [\"0-3\"]\nmodes = [\"limit\"]\n")
	want := []grant.Pool{{GPUs: []string{"0-3"}, Modes: []grant.Mode{grant.Limit}}}
	if err != nil || !reflect.DeepEqual(p.Pools, want) {
		t.Errorf("got %+v, %v, want %+v", p.Pools, err, want)
	}
}

// An error names the file that is to be corrected. Until then no container gets a GPU, and the
// others get the node's runtime.
func TestErrorsOfTheClustersFileNameIt(t *testing.T) {
	const node = "[runtime]\npath = [\"/opt/runc\"]\n[audit]\nkeep = 9\n"
	for text, want := range map[string]string{
		"[policy]\nmode = \"off\"\n":      `cluster.toml:2: policy.mode: want enforce or report, not "off"`,
		"[policy]\nmodus = \"report\"\n":  `cluster.toml:2: unknown key "policy.modus"`,
		"\nstate_dir = \"/x\"\n":          "cluster.toml:2: state_dir: only the node's own file sets this",
		"[runtime]\npath = [\"crun\"]\n":  "cluster.toml:1: runtime: only the node's own file sets this",
		"[cdi]\ndir = \"/x\"\n":           "cluster.toml:1: cdi: only the node's own file sets this",
		"engine = \"docker\"\n":           "cluster.toml:1: engine: only the node's own file sets this",
		"[audit]\n\nkeep = 0\n":           "cluster.toml:3: audit.keep: want 1 to 100 files, not 0",
		"[[policy.exempt]]\n":             "cluster.toml:1: policy.exempt[0]: want at least one of",
		"[[pool]]\nmodes = [\"limit\"]\n": "cluster.toml:1: pool[0].gpus: want indexes",
		"[policy\n":                       "cluster.toml:1: ",
	} {
		p, path, err := beside(t, node, text)
		if err == nil || !strings.Contains(err.Error(), filepath.Dir(path)+"/"+want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
		wanted := Default()
		wanted.Runtime.Path = []string{"/opt/runc"}
		if !reflect.DeepEqual(p, wanted) {
			t.Errorf("%q: got\n%+v\nwant the default with the node's runtime", text, p)
		}
	}
	if _, path, err := beside(t, "[audit]\nkeep = 0\n", "[policy]\nmode = \"report\"\n"); err == nil ||
		!strings.Contains(err.Error(), path+":2: audit.keep") {
		t.Errorf("an error of the node's own file: %v", err)
	}
}

// Whatever of TOML writes them, the keys of the node stay as the node has them.
func TestTheClusterNeverSetsWhatIsTheNodes(t *testing.T) {
	for _, key := range ofNode {
		if _, wants := wanted(key); wants == "" {
			t.Errorf("there is no key %s", key)
		}
	}
	for _, text := range []string{"\"state_dir\" = \"/x\"\n", "'run_dir' = \"/x\"\n",
		"runtime.path = [\"x\"]\n",
		"[ runtime ]\npath = [\"x\"]\n", "[\"cdi\"]\ndir = \"/x\"\n", "cdi = { dir = \"/x\" }\n",
		"\"r\\u0075n_dir\" = \"/x\"\n"} {
		p, _, err := beside(t, "", text)
		if !reflect.DeepEqual(p, Default()) {
			t.Errorf("%q: got\n%+v (%v)", text, p, err)
		}
	}
}

// TestTheNodesRuntimesStay: in whatever form the cluster's file names one.
func TestTheNodesRuntimesStay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	const own = "[runtime.unjudged]\ncontainerd = \"/usr/bin/runc\"\n[[pool]]\ngpus = [\"0\"]\n"
	if err := os.WriteFile(path, []byte(own), 0o600); err != nil {
		t.Fatal(err)
	}
	for text, refused := range map[string]bool{
		"runtime.unjudged.containerd = \"/other\"\n":                true,
		"runtime.unjudged.podman = \"/other\"\n":                    true,
		"[runtime.unjudged]\ncontainerd = \"/other\"\n":             true,
		"\"runtime\" = {unjudged = {containerd = \"/other\"}}\n":    false,
		"\"runtime\".unjudged.containerd = \"/other\"\npool = []\n": false,
	} {
		p, err := Over(path, []byte(text))
		if refused != (err != nil) {
			t.Errorf("%q: %v", text, err)
		}
		if err == nil && (p.Runtime.UnjudgedOf(grant.Containerd) != "/usr/bin/runc" || len(p.Pools) != 1) {
			t.Errorf("%q: unjudged %q, %d pools", text, p.Runtime.UnjudgedOf(grant.Containerd), len(p.Pools))
		}
	}
}
