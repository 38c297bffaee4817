package test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/nri/pkg/api"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/edit/adjust"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/nri"
	"github.com/gpuledger/gpuledger/test/oracle"
	"github.com/gpuledger/gpuledger/test/rig"
)

// throughNRI has an engine create and start the container, and its plugin judge both. The plugin is
// in this process and not in a gpuledgerd, of which a node has one, because the rows have several
// engines (test/nri_test.go is about the daemon). No runtime runs: the oracle's results for device
// rules were compared with runtimes.
func throughNRI(t *testing.T, c *cell) outcome {
	t.Helper()
	if why := c.unknownToNRI(); why != "" {
		return outcome{unasked: why}
	}
	e := c.stage.engineWithNRI(t, c.engineOfNRI())
	spec := specIn(c.config)
	pod, container := c.inNRI(spec)
	defer func() { must(t, e.Remove(c.ID)) }()
	adjustment, err := e.AskIn(pod, container)
	o := c.recordedOutcome(t, asStderr(err))
	if err != nil {
		wantNRIRefusal(t, err, o.code)
		return o
	}
	if o.config = c.config; !isEmpty(adjustment) {
		o.config, err = adjust.Apply(c.config, adjustment)
		must(t, err)
	}
	return c.startedByNRI(t, e, pod, container, o)
}

// asStderr is an engine's error in the form that the comparison of results reads.
func asStderr(err error) (r rig.Result) {
	if err != nil {
		r = rig.Result{Code: 1, Stderr: err.Error()}
	}
	return r
}

// startedByNRI continues with the created container: it is in the runtime's root as runc writes it.
func (c *cell) startedByNRI(t *testing.T, e *rig.NRI, pod *api.PodSandbox, container *api.Container,
	o outcome) outcome {
	t.Helper()
	c.WriteConfig(o.config)
	init := exec.Command("sleep", "1000")
	init.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, init.Start())
	root := filepath.Join(c.Node.Root, c.ID)
	defer func() {
		must(t, os.RemoveAll(root), init.Process.Kill())
		_ = init.Wait()
	}()
	p, _, err := host.Default().Process(init.Process.Pid)
	must(t, err, os.MkdirAll(root, 0o700), os.WriteFile(filepath.Join(root, "state.json"),
		fmt.Appendf(nil, `{"init_process_pid":%d,"init_process_start":%d,"cgroup_paths":{},`+
			`"config":{"labels":["bundle=%s"]}}`, p.PID, p.Start, c.Dir), 0o600))
	started := rig.NRIContainer(c.ID, specIn(o.config))
	started.Name, started.Pid, started.State = container.Name, uint32(p.PID),
		api.ContainerState_CONTAINER_CREATED
	begun := e.BeginIn(pod, started)
	after := c.recordedOutcome(t, asStderr(begun))
	if begun != nil {
		wantNRIRefusal(t, begun, after.code)
		return after
	}
	if o.verdict == grant.Pass && after.verdict == grant.Refused { // recorded
		return after
	}
	if o.mode == "" {
		c.wantOpenBy(t, specIn(o.config))
	}
	// found at the start, if refusals are only recorded
	o.unknown = len(c.Caps) > 0 || specIn(c.config).Root.Path == "/"
	if o.verdict == grant.Admit || c.Pass == "edited" {
		o.config = nil // in NRI's form: the oracle has compared it
	}
	return o
}

// wantOpenBy compares what the container's device rules let it open, by the oracle.
func (c *cell) wantOpenBy(t *testing.T, spec specs.Spec) {
	t.Helper()
	var open []string
	for name, d := range c.stage.probed {
		device := oracle.Device{Major: int64(d.major), Minor: int64(d.minor)}
		if oracle.Opens("runc", 1, spec.Linux.Resources.Devices, device, "r") ||
			oracle.Opens("runc", 1, spec.Linux.Resources.Devices, device, "w") {
			open = append(open, name)
		}
	}
	want := append(c.stage.devices(c.Admit), c.Opens...)
	if !slices.Contains(open, "null") { // runtimes add it themselves
		open = append(open, "null")
	}
	slices.Sort(open)
	slices.Sort(want)
	if !slices.Equal(open, want) {
		t.Errorf("nri: it opens %v, want %v\n%+v", open, want, spec.Linux.Resources.Devices)
	}
}

// unknownToNRI says why an engine would not ask about such a container.
func (c *cell) unknownToNRI() string {
	switch {
	case c.engine() == "podman" || c.engine() == "docker":
		return "an engine without NRI"
	case json.Unmarshal(c.config, new(specs.Spec)) != nil || len(c.Replace) > 0:
		return "the form of a config.json, which NRI has not"
	case slices.ContainsFunc([]string{"io.kubernetes.cri.container-type",
		"io.kubernetes.cri-o.ContainerType"}, func(key string) bool {
		return specIn(c.config).Annotations[key] == "sandbox"
	}):
		return "sandboxes, about which engines do not ask to create"
	}
	return ""
}

// engineOfNRI is the calling engine: for a row without an engine containerd, which then proves no
// pod.
func (c *cell) engineOfNRI() string {
	if c.engine() == "none" {
		return "containerd"
	}
	return c.engine()
}

// inNRI is the container in NRI's types, and its pod. The pod's identity is the one in the engine's
// own annotations.
func (c *cell) inNRI(spec specs.Spec) (*api.PodSandbox, *api.Container) {
	keys := []string{"io.kubernetes.cri.sandbox-uid", "io.kubernetes.cri.sandbox-namespace",
		"io.kubernetes.cri.sandbox-name", "io.kubernetes.cri.container-name"}
	switch c.engine() {
	case "none": // it proves no pod
		keys = []string{"", "", "", ""}
	case "cri-o":
		keys = []string{"io.kubernetes.pod.uid", "io.kubernetes.pod.namespace", "io.kubernetes.pod.name",
			"io.kubernetes.container.name"}
	}
	pod := &api.PodSandbox{Id: "sandbox", Uid: spec.Annotations[keys[0]],
		Namespace: spec.Annotations[keys[1]], Name: spec.Annotations[keys[2]]}
	container := rig.NRIContainer(c.ID, spec)
	container.Name = spec.Annotations[keys[3]]
	return pod, container
}

// versions of the engines whose NRI is known: 0.12 of containerd, and 0.9 of CRI-O, which drops
// device rules.
var versions = map[string]string{"containerd": "v2.4.2", "cri-o": "1.34.0"}

// engineWithNRI is an engine of that name with gpuledger's plugin, one of each for a node.
func (s *stage) engineWithNRI(t *testing.T, name string) *rig.NRI {
	t.Helper()
	if e := s.nri[name]; e != nil {
		return e
	}
	s.T = s.all // it lives as long as the node
	e := s.NRIOf(name, versions[name])
	log := logrus.New()
	log.SetOutput(io.Discard)
	plugin := nri.New(nri.Options{Socket: e.Socket(), Roots: []string{s.Root}, Log: log,
		Open: func() *node.Node { return node.Open(s.Config, host.Default()) }})
	rig.Eventually(t, "the plugin is connected", func() bool {
		return plugin.Ensure(context.Background()) == nil
	})
	e.Connected()
	s.all.Cleanup(plugin.Stop)
	s.T = t
	s.nri[name] = e
	return e
}

// throughNRI is the plugin's expected outcome if it differs from the row's (docs/nri.md): it
// refuses what it cannot change, and a privilege that only capabilities show is refused for what it
// reaches. The wrapper's changes show which case it is.
func (c *cell) throughNRI() expectation {
	switch {
	case c.Refuse == string(grant.PrivilegedGPU) && len(c.Caps) > 0:
		return expectation{grant.Refused, grant.GPUDeviceNode}
	case c.Refuse == "" && c.wrapped != nil &&
		impossibleByNRI(c.engine(), specIn(c.config), specIn(c.wrapped)):
		return expectation{grant.Refused, grant.InjectionImpossible}
	}
	return c.expected()
}

// impossibleByNRI reports whether NRI cannot express the change of one spec into the other: it
// removes nothing, changes the first of several, and knows no spec without device rules, which no
// engine writes.
func impossibleByNRI(engine string, from, to specs.Spec) bool {
	rules := from.Linux.Resources.Devices
	everything := slices.ContainsFunc(rules, func(r specs.LinuxDeviceCgroup) bool {
		return r.Allow && (r.Type == "" || r.Type == "a")
	})
	changed := !reflect.DeepEqual(from, to)
	return changed && (len(rules) == 0 || everything && engine == "cri-o") ||
		loses(hooksIn(from), hooksIn(to)) || loses(cudaIn(from), cudaIn(to)) ||
		slices.ContainsFunc(to.Process.Env, func(entry string) bool {
			return !slices.Contains(from.Process.Env, entry) && len(valuesOf(from, entry)) > 1
		})
}

// valuesOf are the values of a variable, which an entry names.
func valuesOf(spec specs.Spec, entry string) (values []string) {
	wanted, _, _ := strings.Cut(entry, "=")
	for _, e := range spec.Process.Env {
		if name, value, _ := strings.Cut(e, "="); name == wanted {
			values = append(values, value)
		}
	}
	return values
}
