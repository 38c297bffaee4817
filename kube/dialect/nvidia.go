package dialect

import (
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// shared is a resource that NVIDIA's device plugin divides into equal shares.
type shared struct {
	name     string
	as       string // the name of the shares; "": the same name
	replicas int
	mode     grant.Mode
	one      bool // a container may have one only
}

// offered returns the name that pods use.
func (s shared) offered() string {
	if s.as != "" {
		return s.as
	}
	return s.name
}

// part returns the thousandths of a GPU that one share is. It is rounded down, so that all of them
// fit.
func (s shared) part() int { return 1000 / s.replicas }

// pluginFile is what is read of the configuration file of NVIDIA's device plugin
// (github.com/NVIDIA/k8s-device-plugin, api/config/v1).
type pluginFile struct {
	Version string `json:"version"`
	Sharing struct {
		TimeSlicing *replicated `json:"timeSlicing"`
		MPS         *replicated `json:"mps"`
	} `json:"sharing"`
}

// replicated leaves out `rename` and `devices` of a resource: NVIDIA's plugin ignores both when it
// starts, and logs that they are not yet supported (DisableResourceNamingInConfig, until at least
// August 2026).
type replicated struct {
	RenameByDefault bool  `json:"renameByDefault"`
	OnlyOne         *bool `json:"failRequestsGreaterThanOne"`
	Resources       []struct {
		Name     string `json:"name"`
		Replicas int    `json:"replicas"`
	} `json:"resources"`
}

// sharingOf reads the part "sharing". In MPS a container may have one share unless the file says
// otherwise; that is the default of NVIDIA's plugin.
func sharingOf(text string) ([]shared, error) {
	var f pluginFile
	if text == "" {
		return nil, nil
	}
	if err := yaml.Unmarshal([]byte(text), &f); err != nil {
		return nil, fmt.Errorf("nvidia_device_plugin: %s", grant.Printable(err.Error()))
	}
	if f.Version != "" && f.Version != "v1" {
		return nil, fmt.Errorf("nvidia_device_plugin: the version is %q, and v1 is known",
			grant.Printable(f.Version))
	}
	if f.Sharing.TimeSlicing != nil && f.Sharing.MPS != nil {
		return nil, errors.New("nvidia_device_plugin: it has both timeSlicing and mps, and GPUs are shared " +
			"in one way")
	}
	if f.Sharing.MPS != nil {
		return f.Sharing.MPS.list(grant.MPS, true)
	}
	return f.Sharing.TimeSlicing.list(grant.Timeslice, false)
}

func (r *replicated) list(mode grant.Mode, one bool) (all []shared, err error) {
	if r == nil {
		return nil, nil
	}
	if r.OnlyOne != nil {
		one = *r.OnlyOne
	}
	seen := map[string]bool{}
	for _, of := range r.Resources {
		s := shared{name: of.Name, replicas: of.Replicas, mode: mode, one: one}
		// the plugin takes a name without a domain for one of its own
		if s.name != "" && !strings.Contains(s.name, "/") {
			s.name = "nvidia.com/" + s.name
		}
		if r.RenameByDefault {
			s.as = s.name + ".shared"
		}
		name := grant.Printable(of.Name)
		switch {
		case s.name != "nvidia.com/gpu":
			return nil, fmt.Errorf("nvidia_device_plugin: it divides %q, and gpuledger can divide "+
				"nvidia.com/gpu only", name)
		case s.replicas < 1 || s.replicas > 1000:
			return nil, fmt.Errorf("nvidia_device_plugin: %q has %d replicas, and 1 to 1000 are possible",
				name, s.replicas)
		case seen[s.offered()]:
			return nil, fmt.Errorf("nvidia_device_plugin: %q is there twice", grant.Printable(s.offered()))
		}
		seen[s.offered()] = true
		// NVIDIA's plugin neither divides nor renames a GPU of one replica
		if s.replicas > 1 {
			all = append(all, s)
		}
	}
	return all, nil
}
