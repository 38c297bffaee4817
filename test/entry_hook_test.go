package test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// throughHook lets the real runtime create the container with only gpuledger's hook. What the
// wrapper passed untouched must equal the wrapper's container before its start, which ran. What is
// granted or confined is started, and opens every node.
func throughHook(t *testing.T, c *cell) outcome {
	t.Helper()
	if c.NotRun != "" {
		return outcome{unasked: "the real runtime does not start it here"}
	}
	c.addHook(t)
	defer c.unmade(t, entriesOf(t, c.rootfs()))
	create := c.create(t, c.Node.Real("create", "--bundle", c.Dir, c.ID))
	o := c.recordedOutcome(t, create.Result)
	switch {
	case create.Code == 0:
		defer c.delete(t)
		c.wantMade(t, create)
	case o.verdict != grant.Refused:
		return c.wantRuntimeRefuses(t, o)
	default:
		isRefusedByHook(t, create.Result, o.code)
	}
	return o
}

func (c *cell) rootfs() string { return filepath.Join(c.stage.Dir, "bundles/image/rootfs") }

func entriesOf(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// unmade removes from the image the mount points that the runtime made in it: another row has other
// ones.
func (c *cell) unmade(t *testing.T, before []string) {
	t.Helper()
	for _, name := range entriesOf(t, c.rootfs()) {
		if slices.Contains(before, name) {
			continue
		}
		var made []string
		must(t, filepath.WalkDir(filepath.Join(c.rootfs(), name),
			func(path string, _ os.DirEntry, err error) error {
				made = append(made, path)
				return err
			}))
		for _, path := range slices.Backward(made) {
			must(t, os.Remove(path)) // of what is mounted or in use it fails
		}
	}
}

// addHook has the runtime call the hook before the row's own hooks, whose programs this machine may
// lack.
func (c *cell) addHook(t *testing.T) {
	t.Helper()
	ours := specs.Hook{Path: rig.Binary(t, "gpuledger-hook"),
		Args: []string{"gpuledger-hook." + c.engine(), "createRuntime"},
		Env:  []string{"GPULEDGER_CONFIG=" + c.Node.Config}}
	stage := "createRuntime"
	if bytes.Contains(c.config, []byte(`"prestart":[`)) { // these come before those of createRuntime
		stage = "prestart"
	}
	var spec struct{ Hooks map[string][]specs.Hook }
	if json.Unmarshal(c.config, &spec) != nil {
		return // so the runtime cannot read it either
	}
	text, err := json.Marshal(append([]specs.Hook{ours}, spec.Hooks[stage]...))
	must(t, err)
	c.WriteConfig(patched(t, c.config, `{"hooks":{"`+stage+`":`+string(text)+`}}`))
}

// wantMade inspects a container that was created.
func (c *cell) wantMade(t *testing.T, create creation) {
	t.Helper()
	if c.Pass != "untouched" {
		c.wantOpen(t, create.opened(t))
		return
	}
	c.WriteConfig(c.config) // the runtime has read the one with the hook
	if made := c.look(t); made != c.made {
		t.Errorf("hook: the container is\n%s\nwithout it it is\n%s", made, c.made)
	}
}

// wantRuntimeRefuses: a container that the runtime refuses before it calls a hook does not start,
// and the hook is not called.
func (c *cell) wantRuntimeRefuses(t *testing.T, o outcome) outcome {
	t.Helper()
	c.WriteConfig(c.config)
	if r := c.RealCreate(); r.Code == 0 || c.Refuse == "" {
		c.delete(t)
		t.Errorf("hook: the create failed without a verdict:\n%s", o.audit)
	}
	return outcome{unasked: "the runtime refuses it before it calls a hook"}
}

// throughHook is the hook's expected outcome if it differs from the row's: the hook refuses what
// would need a change to a spec that the runtime has already read (docs/hook.md). The wrapper's
// changes show which case it is.
func (c *cell) throughHook() expectation {
	if c.Refuse == "" && c.wrapped != nil && impossibleLive(specIn(c.config), specIn(c.wrapped)) {
		return expectation{grant.Refused, grant.InjectionImpossible}
	}
	return c.expected()
}

// impossibleLive reports whether the change of one spec into the other is impossible in a live
// container: removals, hooks, annotations but for CDI names, mounts and variables that CUDA
// itself obeys, and anything in a user namespace or in a /dev that is not a tmpfs of the container.
func impossibleLive(from, to specs.Spec) bool {
	nodes := !reflect.DeepEqual(from.Linux.Devices, to.Linux.Devices)
	rules := !reflect.DeepEqual(from.Linux.Resources.Devices, to.Linux.Resources.Devices)
	own := slices.ContainsFunc(from.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
		return n.Type == specs.MountNamespace && n.Path == ""
	})
	user := slices.ContainsFunc(from.Linux.Namespaces, func(n specs.LinuxNamespace) bool {
		return n.Type == specs.UserNamespace
	})
	dev := -1
	for i, m := range from.Mounts {
		if m.Destination == "/dev" {
			dev = i
		}
	}
	return (nodes || rules) && (user || !own) || nodes && (dev < 0 || from.Mounts[dev].Type != "tmpfs") ||
		loses(actingHooks(from), hooksIn(to)) ||
		loses(mountsIn(from), mountsIn(to)) || loses(actingKeys(from), keysIn(to)) ||
		loses(cudaIn(from), cudaIn(to))
}

// actingKeys returns the annotations of a spec but for those with CDI names, which only injectors
// obey: none runs after the hook (docs/hook.md).
func actingKeys(spec specs.Spec) []string {
	return slices.DeleteFunc(keysIn(spec),
		func(key string) bool { return strings.Contains(key, "cdi.k8s.io/") })
}

// actingHooks returns the hooks of a spec but for those of NVIDIA's toolkit, if the container asks
// them for nothing: no variable names devices, the image is no older CUDA image, and no device list
// is mounted (docs/hook.md).
func actingHooks(spec specs.Spec) []string {
	asks := slices.ContainsFunc(spec.Process.Env, func(variable string) bool {
		name, value, _ := strings.Cut(variable, "=")
		return name == "NVIDIA_VISIBLE_DEVICES" && value != "" && value != "void" || name == "CUDA_VERSION" ||
			strings.HasPrefix(name, "NVIDIA_REQUIRE_")
	}) || slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool {
		return strings.HasPrefix(m.Destination, "/var/run/nvidia-container-devices")
	})
	return slices.DeleteFunc(hooksIn(spec), func(path string) bool {
		return !asks && strings.HasSuffix(path, `/nvidia-container-runtime-hook"`)
	})
}

// loses reports whether a list loses an entry.
func loses(from, to []string) bool {
	return slices.ContainsFunc(from, func(s string) bool { return !slices.Contains(to, s) })
}

func specIn(config []byte) (spec specs.Spec) {
	_ = json.Unmarshal(config, &spec) // of a row that starts
	if spec.Linux == nil {
		spec.Linux = &specs.Linux{}
	}
	if spec.Linux.Resources == nil {
		spec.Linux.Resources = &specs.LinuxResources{}
	}
	return spec
}

func hooksIn(spec specs.Spec) (paths []string) {
	text, _ := json.Marshal(spec.Hooks)
	return regexp.MustCompile(`"path":"[^"]*"`).FindAllString(string(text), -1)
}

func mountsIn(spec specs.Spec) (all []string) {
	for _, m := range spec.Mounts {
		all = append(all, m.Source+" "+m.Destination)
	}
	return all
}

func keysIn(spec specs.Spec) (keys []string) {
	for key := range spec.Annotations {
		keys = append(keys, key)
	}
	return keys
}

func cudaIn(spec specs.Spec) (names []string) {
	for _, entry := range spec.Process.Env {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "CUDA_") {
			names = append(names, name)
		}
	}
	return names
}

// foreseen is the hook's stage for Podman, which gets config.json and prints the edited one. It
// records no admission, and must print what the wrapper gave, to the byte.
func foreseen(t *testing.T, c *cell) outcome {
	t.Helper()
	cmd := c.Node.Command(rig.Binary(t, "gpuledger-hook"), "precreate")
	cmd.Args[0] = "gpuledger-hook." + c.engine()
	cmd.Stdin = bytes.NewReader(c.config)
	r := rig.RunHook(cmd)
	o := c.recordedOutcome(t, r)
	if o.verdict == grant.Refused && o.mode == "" {
		wantRefusedInOneLine(t, r, o.code)
		return o
	}
	if o.config = []byte(r.Stdout); c.wrapped != nil && !bytes.Equal(o.config, c.wrapped) {
		t.Errorf("precreate: config.json is\n%s\nbehind the wrapper it is\n%s", o.config, c.wrapped)
	}
	if o.acts = false; c.Admit != "" && bytes.Equal(o.config, c.wrapped) {
		o.verdict, o.grant = grant.Admit, c.stage.grants[c.Admit].ID
	}
	return o
}

func wantRefusedInOneLine(t *testing.T, r rig.Result, code grant.Code) {
	t.Helper()
	if r.Code != 1 || r.Stdout != "" || !strings.HasPrefix(r.Stderr, "gpuledger: refused ("+string(code)+
		"): ") || strings.Count(r.Stderr, "\n") != 1 {
		t.Errorf("want a refusal with %s, got %+v", code, r)
	}
}
