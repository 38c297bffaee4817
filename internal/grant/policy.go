package grant

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Policy is the configuration file as a value; the `toml` tags are its keys. Package policy reads
// and checks it.
type Policy struct {
	StateDir    string      `toml:"state_dir"`
	RunDir      string      `toml:"run_dir"`
	DefaultDirs []string    `toml:"-"` // guarded too while the file that names others is broken
	Engine      Engine      `toml:"engine"`
	Runtime     Runtime     `toml:"runtime"`
	Inventory   Source      `toml:"inventory"`
	Rules       Rules       `toml:"policy"`
	Annotations Annotations `toml:"annotations"`
	Asks        Asks        `toml:"ask"`
	Users       Users       `toml:"users"`
	Quotas      []Quota     `toml:"quota"`
	Enforcement Enforcement `toml:"enforcement"`
	Pools       []Pool      `toml:"pool"`
	CDI         CDI         `toml:"cdi"`
	Daemon      Daemon      `toml:"daemon"`
	Audit       Audit       `toml:"audit"`
}

// ClusterFile is the name of the file beside the configuration with what a cluster sets for the
// node.
const ClusterFile = "cluster.toml"

// Engine is the container engine. It determines which of a container's annotations can be trusted.
type Engine string

// The engines. With NoEngine, no annotation is trusted.
const (
	Containerd Engine = "containerd"
	CRIO       Engine = "cri-o"
	Podman     Engine = "podman"
	Docker     Engine = "docker"
	NoEngine   Engine = "none"
)

// Runtime names the OCI runtimes that the wrapper executes.
type Runtime struct {
	Path []string `toml:"path"` // runc or crun, as names or absolute paths; the first one found is used
	// Unjudged is the runtime of containers that pass without being judged: the policy only
	// reports, gpuledger is disabled, or the container is exempt. It is the engine's default
	// runtime from before gpuledger, as NVIDIA's. The value is a name or an absolute path for all
	// engines, or a table of them by engine. For an engine without a value, Path is used.
	Unjudged any `toml:"unjudged"`
}

// UnjudgedOf returns the runtime for an engine's containers that pass without being judged. "":
// Path is used.
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

// Programs returns all of them, names or paths, in a new slice.
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

// Source says where the inventory comes from.
type Source struct {
	Source     SourceKind `toml:"source"`
	File       string     `toml:"file"`        // the description of a simulated node
	DriverRoot string     `toml:"driver_root"` // where the driver's user space is installed
}

// Rules are the choices of the [policy] table.
type Rules struct {
	Mode            RulesMode  `toml:"mode"`
	Ungranted       Ungranted  `toml:"ungranted"`
	Privileged      Privileged `toml:"privileged"`
	MinimumStrength Strength   `toml:"minimum_strength"`
	Reserve         Size       `toml:"reserve"` // bytes that stay free on each GPU
	OnOverGrant     Reaction   `toml:"on_over_grant"`
	OnOutsideLedger Reaction   `toml:"on_outside_ledger"`
	// environment variables from which some injector takes GPUs
	DeviceEnv []string    `toml:"device_env"`
	Exempt    []Exemption `toml:"exempt"`
}

// Exemption lets containers use GPUs without a grant. Its keys are globs for the trusted identity;
// every given one must match.
type Exemption struct {
	Namespace string `toml:"namespace"`
	Pod       string `toml:"pod"`
	Container string `toml:"container"`
}

// Annotations says how far allocation annotations are trusted, and which dialects are read.
type Annotations struct {
	Trust    Trust     `toml:"trust"`
	Dialects []Dialect `toml:"dialects"`
}

// Asks says what a container may ask for when it is created. It then gets a grant that ends with
// it.
type Asks struct {
	Engines   []Engine `toml:"engines"`    // whose containers may ask; without one, none may
	MaxMemory Size     `toml:"max_memory"` // for one container, over all its GPUs; 0: no limit of its own
	MaxGPUs   int      `toml:"max_gpus"`   // for one container
	Modes     []Mode   `toml:"modes"`
	Mode      Mode     `toml:"mode"`  // for a container that names none
	Total     int      `toml:"total"` // percent of each GPU, for all that containers asked for
}

// Users says whether gpuledgerd serves the users of the node.
type Users struct {
	// Socket is where they ask, in a directory that only root can write to; "": UsersSocket where
	// there is a quota, else nowhere.
	Socket string `toml:"socket"`
}

// UsersSocket is where gpuledgerd serves the users of a node, unless it is configured.
const UsersSocket = "/run/gpuledger-users/socket"

// UsersSocket is where gpuledgerd serves the users of this node; "" for nowhere.
func (p Policy) UsersSocket() string {
	if p.Users.Socket == "" && len(p.Quotas) > 0 {
		return UsersSocket
	}
	return p.Users.Socket
}

// RootsSocket is where gpuledgerd serves root: the queue is the same for all.
func (p Policy) RootsSocket() string { return p.RunDir + "/queue.sock" }

// Quota is what each of some users may have granted. The first quota that is a user's is in force.
// A number that is 0 is no bound, but for Grants.
type Quota struct {
	User   string `toml:"user" json:"user,omitempty"`   // a name or uid, or "*": each user that has a name
	Group  string `toml:"group" json:"group,omitempty"` // a name or gid, or "*": as above
	Memory Size   `toml:"memory" json:"memory"`         // in all grants of the user
	GPUs   int    `toml:"gpus" json:"gpus"`             // in all grants: a share of a GPU counts as one
	Modes  []Mode `toml:"modes" json:"modes"`           // none: limit
	Grants int    `toml:"grants" json:"grants"`         // how many at once; 0: maxGrants
	TTL    string `toml:"ttl" json:"ttl"`               // the longest time of a grant, as 12h; "": for ever
	Idle   string `toml:"idle" json:"idle"`             // a grant that nothing uses for so long is released
}

// Whose says in the words of the configuration whose quota it is.
func (q Quota) Whose() string {
	if q.User != "" {
		return "user " + strconv.Quote(q.User)
	}
	return "group " + strconv.Quote(q.Group)
}

// MayModes are the modes in which a user may have grants.
func (q Quota) MayModes() []Mode {
	if len(q.Modes) == 0 {
		return []Mode{Limit}
	}
	return q.Modes
}

// maxGrants is how many grants a user may have whose quota does not say it. A new grant reads all
// others with the ledger locked, so their number bounds how long that takes.
const maxGrants = 64

// MaxGrants is how many grants a user may have.
func (q Quota) MaxGrants() int { return cmp.Or(q.Grants, maxGrants) }

// MaxTTL is the longest time of a grant; 0: for ever. The configuration was checked.
func (q Quota) MaxTTL() time.Duration { return duration(q.TTL) }

// MaxIdle is how long a grant may have no container; 0: for ever.
func (q Quota) MaxIdle() time.Duration { return duration(q.Idle) }

func duration(text string) time.Duration {
	d, _ := ParseDuration(text)
	return d
}

// Enforcement says how limits are enforced and which value NVIDIA_VISIBLE_DEVICES gets.
type Enforcement struct {
	Limit LimitBackend `toml:"limit"`
	// directory of the proxy libraries; "": that of the running program
	Shim           string         `toml:"shim"`
	Compute        ComputeShare   `toml:"compute"` // what happens to a share of compute in mode limit
	VisibleDevices VisibleDevices `toml:"visible_devices"`
	MPSUsers       MPSUsers       `toml:"mps_users"`
	UserNodes      UserNodes      `toml:"user_nodes"`
}

// Pool is a set of GPUs with its own modes and placement. Without pools, all GPUs take all modes.
type Pool struct {
	GPUs  []string  `toml:"gpus"` // indexes, ranges as 0-3, or UUIDs
	Modes []Mode    `toml:"modes"`
	Place Placement `toml:"place"`
}

// Has reports whether the pool includes the GPU.
func (p Pool) Has(gpu GPU) bool {
	for _, name := range p.GPUs {
		first, last, err := ParseRange(name)
		if gpu.UUID == name || err == nil && first <= gpu.Index && gpu.Index <= last {
			return true
		}
	}
	return false
}

// ParseRange parses an entry of a pool's GPUs: "3" is 3 to 3, "0-3" is 0 to 3. For a UUID, first
// and last are -1.
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

// Placement says how GPUs are chosen if the caller names none.
type Placement string

// The placements.
const (
	Binpack Placement = "binpack" // the fullest GPU of a suitable mode with enough room
	Spread  Placement = "spread"  // the emptiest, if possible not beside the same pod or application
)

// CDI says where engines look for CDI files, and which hook checks a container that uses one of
// gpuledger's.
type CDI struct {
	Dir  string `toml:"dir"`  // a directory that engines read and only root writes
	Hook string `toml:"hook"` // absolute path of gpuledger-hook
}

// Daemon is the configuration of gpuledgerd.
type Daemon struct {
	Listen   string `toml:"listen"`
	Interval string `toml:"interval"`
	// how long a finding lasts before its container is stopped, if the policy stops containers
	Grace string `toml:"grace"`
}

// Audit is the configuration of the audit log.
type Audit struct {
	File    string `toml:"file"`     // "" is off
	MaxSize Size   `toml:"max_size"` // a larger file is rotated; 0: never
	Keep    int    `toml:"keep"`     // number of rotated files that are kept
}
