package test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/mistaken"
	"github.com/gpuledger/gpuledger/test/rig"
)

// editors are the functions that make an edited spec, or an adjustment of NRI, of a verdict.
var editors = map[string]string{
	"internal/edit/oci.go":           "func OCI(config []byte, v grant.Verdict) ([]byte, error) {\n",
	"internal/edit/adjust/adjust.go": "func (e Engine) Container(v grant.Verdict, c *api.Container) (*api.ContainerAdjustment, error) {\n",
}

// withMistakes builds the programs that edit with editors that make the mistake of package mistaken, and returns their directory.
func withMistakes(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	var overlay struct{ Replace map[string]string }
	overlay.Replace = map[string]string{}
	for path, editor := range editors {
		source := read(t, "../"+path)
		if strings.Count(source, editor) != 1 || !strings.Contains(source, "\nimport (\n") {
			t.Fatalf("%s has no\n%s", path, editor)
		}
		source = strings.Replace(source, editor, editor+"\tv = mistaken.Verdict(v)\n", 1)
		source = strings.Replace(source, "\nimport (\n", "\nimport (\n\t\""+module+"test/mistaken\"\n", 1)
		original, err := filepath.Abs("../" + path)
		must(t, err)
		overlay.Replace[original] = filepath.Join(dir, filepath.Base(path))
		must(t, os.WriteFile(overlay.Replace[original], []byte(source), 0o600))
	}
	text, err := json.Marshal(overlay)
	must(t, err, os.WriteFile(dir+"/overlay.json", text, 0o600))
	bin := filepath.Join(dir, "bin") + "/"
	build := exec.Command("go", "build", "-p", "2", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-overlay", dir+"/overlay.json", "-o", bin,
		"./cmd/gpuledger-runtime", "./cmd/gpuledger-hook", "./cmd/gpuledgerd")
	build.Dir, build.Env = "..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the programs with mistakes: %v\n%s", err, out)
	}
	return bin
}

// TestAMistakeInTheEditsStartsNothing: whatever an editor adds or leaves by mistake, no entry point lets the container start with it, and
// its grant stays free. Without the mistake the same programs start the same container.
func TestAMistakeInTheEditsStartsNothing(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Engine: "containerd"})
	wrong := n.Of(withMistakes(t))
	e := n.NRI()
	wrong.Daemon()
	e.Connected()
	must(t, os.Symlink(wrong.Bin+"gpuledger-hook", n.Dir+"/hook")) // where the node's CDI files name it
	g := n.Grant("--memory", "4GiB", "--gpu", "1", "--cdi")
	named := rig.Env("GPULEDGER_GRANT="+g.String(), "NVIDIA_GDS=enabled")

	entries := []struct {
		name   string
		create func(*testing.T, *rig.Bundle) rig.Result
		edits  []rig.Edit
	}{
		{"the wrapper", wrapperCreates, []rig.Edit{named}},
		{"the hook", runtimeCreates, []rig.Edit{named, wrong.HookedAt("createRuntime")}},
		{"the hook of a CDI device", runtimeCreates, []rig.Edit{injected(t, n, grant.CDIKindGrant+"="+g.String()), rig.Env("NVIDIA_GDS=enabled")}},
		{"the hook at precreate", podmanCreates, []rig.Edit{named, n.HookedAt("createRuntime")}},
		{"the NRI plugin", engineCreates(e), []rig.Edit{named}},
	}
	other := &cdispec.DeviceNode{Path: "/dev/nvidia0", Type: "c", Major: 195, Minor: 0, Permissions: "rw"}
	injector := &cdispec.Hook{HookName: "createRuntime", Path: "/usr/bin/nvidia-container-runtime-hook", Args: []string{"nvidia-container-runtime-hook", "prestart"}}
	for _, c := range []struct {
		name    string
		mistake mistaken.Mistake
		says    string
	}{
		{"none", mistaken.Mistake{}, ""},
		{"another GPU's node", mistaken.Mistake{Adds: cdispec.ContainerEdits{DeviceNodes: []*cdispec.DeviceNode{other}},
			Rules: []grant.DeviceRule{{Allow: true, Type: 'c', Major: 195, Minor: 0, Access: "rw"}}}, "(gpu-device-node)"},
		{"a mount of the ledger", mistaken.Mistake{Adds: cdispec.ContainerEdits{Mounts: []*cdispec.Mount{
			{HostPath: n.Dir + "/run", ContainerPath: "/mnt", Options: []string{"rbind", "ro"}}}}}, "(gpu-socket)"},
		{"an injector's hook", mistaken.Mistake{Adds: cdispec.ContainerEdits{Hooks: []*cdispec.Hook{injector}}}, "hook:" + injector.Path},
		{"a variable of an injector's stays", mistaken.Mistake{Leaves: grant.RemoveEnv}, "env:NVIDIA_GDS"},
	} {
		text, err := json.Marshal(c.mistake)
		must(t, err)
		n.Write(mistaken.File, string(text))
		for _, entry := range entries {
			t.Run(entry.name+"/"+c.name, func(t *testing.T) {
				b := wrong.Bundle("c", entry.edits...)
				defer b.End()
				r := entry.create(t, b)
				if c.says == "" {
					succeeds(t, r)
					succeeds(t, rig.Run(n.Real("start", b.ID)))
					wantState(t, n, g.ID, "its container runs", grant.Bound)
					b.End()
					becomesFree(t, n, g.ID)
					return
				}
				if r.Code == 0 || !strings.Contains(r.Stderr, "gpuledger: refused (internal): internal error: the edited spec ") || !strings.Contains(r.Stderr, c.says) {
					t.Errorf("got %+v, want a refusal for %s", r, c.says)
				}
				if listed := n.Grants()[0]; listed.State != grant.Free || len(listed.Bindings) > 0 || b.Init() != 0 {
					t.Errorf("the grant is %s, bound to %v; the container's init is %d", listed.State, listed.Bindings, b.Init())
				}
			})
		}
	}
}

func wrapperCreates(_ *testing.T, b *rig.Bundle) rig.Result { return b.Create() }
func runtimeCreates(_ *testing.T, b *rig.Bundle) rig.Result { return b.RealCreate() }

// podmanCreates has the hook edit the spec, and the runtime create the container of what comes out.
func podmanCreates(t *testing.T, b *rig.Bundle) rig.Result {
	t.Helper()
	cmd := b.Node.Command(b.Node.Bin+"gpuledger-hook", "precreate")
	cmd.Stdin = bytes.NewReader(b.Config())
	r := rig.RunHook(cmd)
	if r.Code != 0 {
		return r
	}
	b.WriteConfig([]byte(r.Stdout))
	return b.RealCreate()
}

// engineCreates asks the engine's plugin, and has the runtime create what the engine makes of the answer.
func engineCreates(e *rig.NRI) func(*testing.T, *rig.Bundle) rig.Result {
	return func(t *testing.T, b *rig.Bundle) rig.Result {
		t.Helper()
		if err := e.Create(b); err != nil {
			return heard(err)
		}
		t.Cleanup(func() { must(t, e.Remove(b.ID)) })
		r := b.RealCreate()
		if r.Code == 0 {
			r = heard(e.Begin(b))
		}
		return r
	}
}
