package test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/mistaken"
	"github.com/gpuledger/gpuledger/test/rig"
)

// editors are the functions that make an edited spec, an adjustment of NRI, and changes of a live
// container from a verdict.
var editors = []struct{ file, begins, mistake string }{
	{"internal/edit/oci.go", "func OCI(config []byte, v grant.Verdict) ([]byte, error) {\n", "v = mistaken.Verdict(v, false)"},
	{"internal/edit/adjust/adjust.go", "func (e Support) Container(v grant.Verdict, c *api.Container) (*api.ContainerAdjustment, error) {\n", "v = mistaken.Verdict(v, false)"},
	{"hook/change.go", "func changes(spec request.Spec, d node.Decision, asks []string, servers node.ServerLimits) (inject.Change,\n\terror) {\n", "d.Verdict = mistaken.Verdict(d.Verdict, true)"},
}

// withMistakes builds the programs of the entry points with editors that make the mistake of
// package mistaken, and returns their directory.
func withMistakes(t *testing.T) string {
	t.Helper()
	const imports = "\nimport (\n"
	dir := t.TempDir()
	replace := map[string]string{}
	for _, e := range editors {
		source := read(t, "../"+e.file)
		if strings.Count(source, e.begins) != 1 || strings.Count(source, imports) != 1 {
			t.Fatalf("%s has no %q", e.file, e.begins)
		}
		source = strings.Replace(source, e.begins, e.begins+"\t"+e.mistake+"\n", 1)
		source = strings.Replace(source, imports, imports+"\t\""+module+"test/mistaken\"\n", 1)
		original, err := filepath.Abs("../" + e.file)
		replace[original] = filepath.Join(dir, filepath.Base(e.file))
		must(t, err, os.WriteFile(replace[original], []byte(source), 0o600))
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	must(t, err, os.WriteFile(dir+"/overlay.json", overlay, 0o600))
	build := exec.Command("go", "build", "-p", "2", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w",
		"-overlay", dir+"/overlay.json", "-o", dir+"/bin/",
		"./cmd/gpuledger-runtime", "./cmd/gpuledger-hook", "./cmd/gpuledgerd")
	build.Dir, build.Env = "..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the programs with mistakes: %v\n%s", err, out)
	}
	return dir + "/bin"
}

// wayIn is an entry point: the caller that makes it create a bundle's container, and the spec's
// edits for it.
type wayIn struct {
	name   string
	create func(*testing.T, *rig.Bundle) rig.Result
	edits  []rig.Edit
}

// TestAMistakeInTheEditsStartsNothing: whatever an editor adds or leaves by mistake, no entry point
// lets the container start with it, and its grant stays free. Without the mistake the same programs
// start the same container.
func TestAMistakeInTheEditsStartsNothing(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Engine: "containerd", Config: "[policy]\nprivileged = \"strip\"\n"})
	wrong := n.Of(withMistakes(t))
	e := n.NRI()
	wrong.Daemon()
	e.Connected()
	must(t, os.Symlink(wrong.Bin+"/gpuledger-hook", n.Dir+"/hook")) // where the node's CDI files name it
	g := n.Grant("--memory", "4GiB", "--gpu", "1", "--cdi")
	named := rig.Env("GPULEDGER_GRANT="+g.String(), "NVIDIA_GDS=enabled")
	wrapper := wayIn{"the wrapper", wrapperCreates, []rig.Edit{named}}
	hook := wayIn{"the hook", runtimeCreates, []rig.Edit{named, wrong.HookedAt("createRuntime")}}
	ofCDI := wayIn{"the hook of a CDI device", runtimeCreates,
		[]rig.Edit{injected(t, n, grant.CDIKindGrant+"="+g.String()), rig.Env("NVIDIA_GDS=enabled")}}
	precreate := wayIn{"the hook at precreate", podmanCreates, []rig.Edit{named, n.HookedAt("createRuntime")}}
	plugin := wayIn{"the NRI plugin", engineCreates(e), []rig.Edit{named}}
	all := []wayIn{wrapper, hook, ofCDI, precreate, plugin}

	const spec, live = "refused (internal): internal error: the edited spec ",
		"refused (injection-impossible): the container cannot be changed any more: the container " +
			"as it is now "
	node := []*cdispec.DeviceNode{{Path: "/dev/nvidia0", Type: "c", Major: 195, Minor: 0, Permissions: "rw"}}
	rule := []grant.DeviceRule{{Allow: true, Type: 'c', Major: 195, Minor: 0, Access: "rw"}}
	mount := []*cdispec.Mount{{HostPath: n.Dir + "/run", ContainerPath: "/mnt",
		Options: []string{"rbind", "ro"}}}
	injector := []*cdispec.Hook{{HookName: "createRuntime", Path: "/usr/bin/nvidia-container-runtime-hook",
		Args: []string{"nvidia-container-runtime-hook", "prestart"}}}
	for _, c := range []struct {
		name    string
		mistake mistaken.Mistake
		refusal string
		about   string
		ways    []wayIn
		edits   []rig.Edit
	}{
		{"no mistake", mistaken.Mistake{}, "", "", all, nil},
		{"another GPU's node", mistaken.Mistake{Adds: cdispec.ContainerEdits{DeviceNodes: node}, Rules: rule},
			spec, "(gpu-device-node)", all, nil},
		{"a mount of the ledger", mistaken.Mistake{Adds: cdispec.ContainerEdits{Mounts: mount}}, spec,
			"(gpu-socket)", all, nil},
		{"an injector's hook", mistaken.Mistake{Adds: cdispec.ContainerEdits{Hooks: injector}}, spec,
			"hook:" + injector[0].Path, all, nil},
		{"an injector's variable stays", mistaken.Mistake{Leaves: grant.RemoveEnv}, spec,
			"env:NVIDIA_GDS", all, nil},
		{"another GPU's node, live", mistaken.Mistake{Live: true, Adds: cdispec.ContainerEdits{
			DeviceNodes: node}}, live, "(gpu-device-node)", []wayIn{hook, ofCDI}, nil},
		{"no mistake, privileged", mistaken.Mistake{}, "", "", []wayIn{hook},
			[]rig.Edit{allDevices, device("/dev/nvidia0", 195, 0)}},
		{"another GPU's node stays, live", mistaken.Mistake{Live: true, Leaves: grant.RemoveDevice}, live,
			"device:/dev/nvidia0", []wayIn{hook},
			[]rig.Edit{allDevices, device("/dev/nvidia0", 195, 0)}},
	} {
		mistake, err := json.Marshal(c.mistake)
		must(t, err)
		n.Write(mistaken.File, string(mistake))
		for _, way := range c.ways {
			t.Run(way.name+"/"+c.name, func(t *testing.T) {
				b := wrong.Bundle("c", slices.Concat(c.edits, way.edits)...)
				defer b.End()
				r := way.create(t, b)
				if c.refusal != "" {
					if r.Code == 0 || !strings.Contains(r.Stderr, "gpuledger: "+c.refusal) ||
						!strings.Contains(r.Stderr, c.about) {
						t.Errorf("got %+v, want %q and %q", r, c.refusal, c.about)
					}
					if g := n.Grants()[0]; g.State != grant.Free || len(g.Bindings) > 0 || b.Init() != 0 {
						t.Errorf("the grant is %s, bound to %v; the container's init is %d", g.State,
							g.Bindings, b.Init())
					}
					return
				}
				succeeds(t, r)
				succeeds(t, rig.Run(n.Real("start", b.ID)))
				wantState(t, n, g.ID, "its container runs", grant.Bound)
				b.End()
				becomesFree(t, n, g.ID)
			})
		}
	}
}

func wrapperCreates(_ *testing.T, b *rig.Bundle) rig.Result { return b.Create() }

func runtimeCreates(_ *testing.T, b *rig.Bundle) rig.Result { return b.RealCreate() }

// podmanCreates has the hook edit the spec, and the runtime create the container from its output.
func podmanCreates(t *testing.T, b *rig.Bundle) rig.Result {
	t.Helper()
	cmd := b.Node.Command(b.Node.Bin+"/gpuledger-hook", "precreate")
	cmd.Stdin = bytes.NewReader(b.Config())
	r := rig.RunHook(cmd)
	if r.Code != 0 {
		return r
	}
	b.WriteConfig([]byte(r.Stdout))
	return b.RealCreate()
}

// engineCreates calls the engine's plugin, and has the runtime create what the engine makes of the
// answer.
func engineCreates(e *rig.NRI) func(*testing.T, *rig.Bundle) rig.Result {
	return func(t *testing.T, b *rig.Bundle) rig.Result {
		t.Helper()
		if err := e.Create(b); err != nil {
			return asStderr(err)
		}
		t.Cleanup(func() { must(t, e.Remove(b.ID)) })
		r := b.RealCreate()
		if r.Code == 0 {
			r = asStderr(e.Begin(b))
		}
		return r
	}
}
