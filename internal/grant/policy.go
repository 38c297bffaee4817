package grant

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Policy is the configuration file as a value; `toml` names its keys. Package policy reads and
// checks it.
type Policy struct {
	StateDir    string      `toml:"state_dir"`
	RunDir      string      `toml:"run_dir"`
	Engine      Engine      `toml:"engine"`
	Runtime     Runtime     `toml:"runtime"`
	Inventory   Source      `toml:"inventory"`
	Rules       Rules       `toml:"policy"`
	Annotations Annotations `toml:"annotations"`
	Enforcement Enforcement `toml:"enforcement"`
	Pools       []Pool      `toml:"pool"`
	CDI         CDI         `toml:"cdi"`
	Daemon      Daemon      `toml:"daemon"`
	Audit       Audit       `toml:"audit"`
}

// Engine decides which of a container's annotations can be trusted.
type Engine string

// The engines that gpuledger knows. None trusts no annotation.
const (
	Containerd Engine = "containerd"
	CRIO       Engine = "cri-o"
	Podman     Engine = "podman"
	Docker     Engine = "docker"
	NoEngine   Engine = "none"
)

// Runtime is the OCI runtimes behind the wrapper.
type Runtime struct {
	Path []string `toml:"path"` // runc or crun, by names or absolute paths; the first one found is used
	// Unjudged is what runs a container that passes without being judged, because the policy only
	// reports, gpuledger is disabled or the container is exempt: the engine's default runtime from
	// before gpuledger, as NVIDIA's. It is a name or an absolute path for every engine, or a table
	// of them by engine. What it does not name runs as Path says.
	Unjudged any `toml:"unjudged"`
}

// UnjudgedOf is the runtime of an engine's containers that pass without being judged; "" is as Path
// says.
func (r Runtime) UnjudgedOf(e Engine) string {
	switch v := r.Unjudged.(type) {
	case string:
		return v
	case map[string]any:
		name, _ := v[string(e)].(string)
		return name
	}
	return ""
}

// Programs are all of them, names or paths, in a new slice.
func (r Runtime) Programs() []string {
	programs := slices.Clone(r.Path)
	switch v := r.Unjudged.(type) {
	case string:
		programs = append(programs, v)
	case map[string]any:
		for _, engine := range slices.Sorted(maps.Keys(v)) {
			programs = append(programs, r.UnjudgedOf(Engine(engine)))
		}
	}
	return slices.DeleteFunc(programs, func(name string) bool { return name == "" })
}

// Source is where the inventory comes from.
type Source struct {
	Source     SourceKind `toml:"source"`
	File       string     `toml:"file"`        // the description, when simulated
	DriverRoot string     `toml:"driver_root"` // where the driver's user space is found
}

// Rules are the choices of the [policy] table.
type Rules struct {
	Mode            RulesMode  `toml:"mode"`
	Ungranted       Ungranted  `toml:"ungranted"`
	Privileged      Privileged `toml:"privileged"`
	MinimumStrength Strength   `toml:"minimum_strength"`
	Reserve         Size       `toml:"reserve"` // kept free on each GPU
	OnOverGrant     Reaction   `toml:"on_over_grant"`
	OnOutsideLedger Reaction   `toml:"on_outside_ledger"`
	// environment variables that some injector takes GPUs from
	DeviceEnv []string    `toml:"device_env"`
	Exempt    []Exemption `toml:"exempt"`
}

// Exemption lets containers pass without a grant. Its keys are globs over the trusted identity; all
// given must match.
type Exemption struct {
	Namespace string `toml:"namespace"`
	Pod       string `toml:"pod"`
	Container string `toml:"container"`
}

// Annotations says how far allocation annotations are believed, and in which dialects.
type Annotations struct {
	Trust    Trust     `toml:"trust"`
	Dialects []Dialect `toml:"dialects"`
}

// Enforcement chooses how limits are enforced and what NVIDIA_VISIBLE_DEVICES says.
type Enforcement struct {
	Limit LimitBackend `toml:"limit"`
	// directory of the proxy libraries; "": where they lie beside the program that runs
	Shim           string         `toml:"shim"`
	Compute        ComputeShare   `toml:"compute"` // what becomes of a share of compute in mode limit
	VisibleDevices VisibleDevices `toml:"visible_devices"`
	MPSUsers       MPSUsers       `toml:"mps_users"`
}

// Pool is a set of GPUs with modes and a placement of its own. Without any pool all GPUs take all
// modes.
type Pool struct {
	GPUs  []string  `toml:"gpus"` // indexes, ranges as 0-3, or UUIDs
	Modes []Mode    `toml:"modes"`
	Place Placement `toml:"place"`
}

// Has reports whether the pool names the GPU.
func (p Pool) Has(gpu GPU) bool {
	for _, name := range p.GPUs {
		first, last, err := ParseRange(name)
		if gpu.UUID == name || err == nil && first <= gpu.Index && gpu.Index <= last {
			return true
		}
	}
	return false
}

// ParseRange reads a pool's GPUs: "3" is 3 to 3, "0-3" is 0 to 3. A UUID is no range: first and
// last are -1.
func ParseRange(name string) (first, last int, err error) {
	if name == "" {
		return 0, 0, errors.New("a GPU's name is empty")
	}
	if name[0] < '0' || name[0] > '9' {
		return -1, -1, nil
	}
	from, to, isRange := strings.Cut(name, "-")
	first, err = strconv.Atoi(from)
	last = first
	if err == nil && isRange {
		last, err = strconv.Atoi(to)
	}
	if err != nil || last < first {
		return 0, 0, fmt.Errorf("%q is no index and no range as 0-3", name)
	}
	return first, last, nil
}

// Placement chooses among GPUs when the caller names none.
type Placement string

// The placements.
const (
	Binpack Placement = "binpack" // the fullest GPU of a fitting mode that still fits
	Spread  Placement = "spread"  // the emptiest, away from the owner's others
)

// CDI says where engines look for CDI files and what checks a container that one of ours was used
// for.
type CDI struct {
	Dir  string `toml:"dir"`  // a directory that engines read, for root only to write
	Hook string `toml:"hook"` // absolute path of gpuledger-hook
}

// Daemon configures gpuledgerd.
type Daemon struct {
	Listen   string `toml:"listen"`
	Interval string `toml:"interval"`
	// how long a finding stands before its container is stopped, where policy says so
	Grace string `toml:"grace"`
}

// Audit configures the audit log.
type Audit struct {
	File    string `toml:"file"`     // "" is off
	MaxSize Size   `toml:"max_size"` // beyond it the file is rotated; 0 is never
	Keep    int    `toml:"keep"`     // how many rotated files stay
}
