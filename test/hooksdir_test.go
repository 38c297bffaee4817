package test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// hooksFile is schema 1.0.0 of a hooks directory (containers/common,
// pkg/hooks/docs/oci-hooks.5.md).
type hooksFile struct {
	Version string `json:"version"`
	Hook    struct {
		Path    string   `json:"path"`
		Args    []string `json:"args"`
		Env     []string `json:"env"`
		Timeout int      `json:"timeout"`
	} `json:"hook"`
	When   map[string]any `json:"when"`
	Stages []string       `json:"stages"`
}

func TestHooksDirectories(t *testing.T) {
	files, err := filepath.Glob("../configs/hooks.d/*/*.json")
	if err != nil || len(files) != 5 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, path := range files {
		var f hooksFile
		d := json.NewDecoder(strings.NewReader(read(t, path)))
		d.DisallowUnknownFields()
		must(t, d.Decode(&f))
		engine := map[string]string{"cri-o": ".crio", "podman": ".podman"}[filepath.Base(filepath.Dir(path))]
		stages := []string{"createRuntime", "poststop"} // CRI-O reads only the specification's
		if engine == ".podman" {
			stages = append(stages, "precreate")
		}
		if f.Version != "1.0.0" || !filepath.IsAbs(f.Hook.Path) || len(f.Hook.Env) == 0 ||
			f.Hook.Timeout < 11 && f.Stages[0] != "poststop" ||
			len(f.When) != 1 || f.When["always"] != true || len(f.Stages) != 1 ||
			!slices.Contains(stages, f.Stages[0]) ||
			len(f.Hook.Args) != 2 || f.Hook.Args[0] != "gpuledger-hook"+engine ||
			f.Hook.Args[1] != f.Stages[0] {
			t.Errorf("%s: %+v", path, f)
		}
	}
}

// hooksDirectory is the one that gpuledger ships for Podman, with this node's programs and
// configuration; without names what to leave out.
func hooksDirectory(t *testing.T, n *rig.Node, without string) string {
	dir := filepath.Join(n.Dir, "hooks.d"+without)
	must(t, os.MkdirAll(dir, 0o755))
	files, _ := filepath.Glob("../configs/hooks.d/podman/*.json")
	for _, path := range files {
		if without != "" && strings.Contains(path, without) {
			continue
		}
		text := strings.NewReplacer("/usr/bin/gpuledger-hook", rig.Binary(t, "gpuledger-hook"),
			"/etc/gpuledger/config.toml", n.Config).Replace(read(t, path))
		must(t, os.WriteFile(filepath.Join(dir, filepath.Base(path)), []byte(text), 0o600))
	}
	return dir
}

// TestPodmanCallsTheHook: Podman with gpuledger's hooks directory, with and without its own stage
// before the create.
func TestPodmanCallsTheHook(t *testing.T) {
	rig.Need(t, "podman", "conmon")
	if rig.Under(t, rig.V1) {
		return
	}
	for _, runtime := range []string{"runc", "crun"} {
		t.Run(runtime, func(t *testing.T) {
			rig.NeedRuntime(t, runtime)
			n := rig.NewNode(t, rig.Setup{Engine: "podman", Runtime: runtime})
			n.HideRun()
			for _, without := range []string{"", "precreate"} {
				podmanStory(t, n, without)
			}
		})
	}
}

func podmanStory(t *testing.T, n *rig.Node, without string) {
	b, hooks, reference := n.Bundle("c"), hooksDirectory(t, n, without),
		n.Grant("--memory", "4GiB", "--gpu", "1")
	if r := b.PodmanRun(hooks, "echo started"); r.Code != 0 || r.Stdout != "started\n" {
		t.Fatalf("without %q: a container without GPU: %+v", without, r)
	}
	for _, options := range [][]string{{"--annotation", "gpuledger.dev/grant=" + reference.String()},
		{"--env", "GPULEDGER_GRANT=" + reference.String()}} {
		if r := b.PodmanRun(hooks, probe, options...); r.Stdout != exactlyOne {
			t.Errorf("without %q, %v: got %+v\nwant\n%s", without, options, r, exactlyOne)
		}
	}
	if left, _ := os.ReadDir(n.Dir + "/run/bindings"); len(left) != 0 {
		t.Errorf("without %q: bindings are left: %v", without, left)
	}
	wantState(t, n, reference.ID, "afterwards", grant.Free)
	r := b.PodmanRun(hooks, "echo started", "--env", "NVIDIA_VISIBLE_DEVICES=all")
	reason := "gpuledger: refused (visible-devices-all): "
	// Podman shows crun's log, in which crun writes no more than this
	if without == "precreate" && n.Runtime == "crun" {
		reason = "error executing hook"
	}
	if r.Code == 0 || r.Stdout != "" || !strings.Contains(r.Stderr, reason) {
		t.Errorf("without %q: %+v", without, r)
	}
	if !strings.Contains(read(t, n.Dir+"/audit.jsonl"), `"code":"visible-devices-all"`) {
		t.Error("the refusal is not in the audit log")
	}
}

// TestPodmanPreparesTheLimits: the container of a grant that nothing has used yet starts with its
// limit. Podman's runtime mounts what the stage before the create has named before it calls the
// hook that binds, and no gpuledgerd has made the files.
func TestPodmanPreparesTheLimits(t *testing.T) {
	rig.Need(t, "podman", "conmon")
	if rig.Under(t, rig.V1) {
		return
	}
	shortPaths(t)
	for _, runtime := range []string{"runc", "crun"} {
		t.Run(runtime, func(t *testing.T) {
			rig.NeedRuntime(t, runtime)
			n := newGPUNode(t, rig.Setup{Engine: "podman", Runtime: runtime, Config: asks("podman", "")})
			n.HideRun()
			hooks, b := hooksDirectory(t, n.Node, ""), n.container("c")
			book := []string{"--volume", n.Dir + "/book:/run/fakedriver"}
			given := n.Grant("--memory", "1GiB").String()
			const limited = "1025 MiB: 2\n1023 MiB: 0\n"
			for name, options := range map[string][]string{
				"a grant":              {"--annotation", "gpuledger.dev/grant=" + given},
				"a container's asking": {"--annotation", "gpuledger.dev/memory=1GiB"},
			} {
				r := b.PodmanRun(hooks, "exec /bin/gpu 1025 1023", append(options, book...)...)
				if r.Code != 0 || r.Stdout != limited {
					t.Errorf("%s: %+v, want\n%s", name, r, limited)
				}
			}
			if left := n.Grants(); len(left) != 1 {
				t.Errorf("%+v", left)
			}
			n.CheckSound("afterwards")
		})
	}
}
