package adjust

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/runtime-tools/generate"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Apply adjusts a spec as an engine does, with the code that engines use, so that the result can be
// judged before the engine makes it.
func Apply(config []byte, a *api.ContainerAdjustment) ([]byte, error) {
	var spec specs.Spec
	if err := json.Unmarshal(config, &spec); err != nil {
		return nil, err
	}
	fill(&spec)
	if err := generate.SpecGenerator(&engine{spec: &spec},
		generate.WithCDIDeviceInjector(noCDI)).Adjust(a); err != nil {
		return nil, fmt.Errorf("cannot adjust the spec: %w", err)
	}
	return json.Marshal(&spec)
}

func noCDI(*specs.Spec, []string) error {
	return errors.New("an adjustment of ours names a CDI device")
}

func fill(s *specs.Spec) {
	if s.Process == nil {
		s.Process = &specs.Process{}
	}
	if s.Linux == nil {
		s.Linux = &specs.Linux{}
	}
	if s.Linux.Resources == nil {
		s.Linux.Resources = &specs.LinuxResources{}
	}
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
}

// engine is the part of an engine's spec generator that these adjustments need; it does the same as
// containerd's and CRI-O's (containerd 2.4 internal/cri/nri/spec_generator_linux.go;
// opencontainers/runtime-tools generate). Any other method is a nil pointer, because Container
// makes no such adjustment.
type engine struct {
	generate.UnderlyingGenerator
	spec *specs.Spec
}

func (e *engine) Spec() *specs.Spec               { return e.spec }
func (e *engine) AddAnnotation(key, value string) { e.spec.Annotations[key] = value }
func (e *engine) RemoveAnnotation(key string)     { delete(e.spec.Annotations, key) }
func (e *engine) ClearProcessEnv()                { e.spec.Process.Env = nil }
func (e *engine) Mounts() []specs.Mount           { return e.spec.Mounts }
func (e *engine) ClearMounts()                    { e.spec.Mounts = nil }
func (e *engine) AddMount(m specs.Mount)          { e.spec.Mounts = append(e.spec.Mounts, m) }
func (e *engine) AddProcessEnv(name, value string) {
	e.spec.Process.Env = append(e.spec.Process.Env, name+"="+value)
}

func (e *engine) RemoveMount(destination string) {
	if i := slices.IndexFunc(e.spec.Mounts, func(m specs.Mount) bool {
		return m.Destination == destination
	}); i >= 0 {
		e.spec.Mounts = slices.Delete(e.spec.Mounts, i, i+1)
	}
}

func (e *engine) AddDevice(d specs.LinuxDevice) {
	e.spec.Linux.Devices = append(e.spec.Linux.Devices, d)
}

func (e *engine) RemoveDevice(path string) {
	if i := slices.IndexFunc(e.spec.Linux.Devices, func(d specs.LinuxDevice) bool {
		return d.Path == path
	}); i >= 0 {
		e.spec.Linux.Devices = slices.Delete(e.spec.Linux.Devices, i, i+1)
	}
}

func (e *engine) AddLinuxResourcesDevice(allow bool, kind string, major, minor *int64, access string) {
	e.spec.Linux.Resources.Devices = append(e.spec.Linux.Resources.Devices,
		specs.LinuxDeviceCgroup{Allow: allow, Type: kind, Major: major, Minor: minor, Access: access})
}

// AddPreStartHook adds a hook of one of the stages that runtime-tools has had first. The generator
// adds those of the other stages itself.
func (e *engine) AddPreStartHook(h specs.Hook) {
	//lint:ignore SA1019 Prestart is deprecated and still a stage that an edit may name.
	e.hooks().Prestart = append(e.hooks().Prestart, h)
}

// AddPostStartHook adds a hook of another of these stages.
func (e *engine) AddPostStartHook(h specs.Hook) { e.hooks().Poststart = append(e.hooks().Poststart, h) }

// AddPostStopHook adds a hook of another of these stages.
func (e *engine) AddPostStopHook(h specs.Hook) { e.hooks().Poststop = append(e.hooks().Poststop, h) }

func (e *engine) hooks() *specs.Hooks {
	if e.spec.Hooks == nil {
		e.spec.Hooks = &specs.Hooks{}
	}
	return e.spec.Hooks
}
