package request

import (
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// Caller is what is known of a container beside its spec.
type Caller struct {
	Container  grant.Container // Pod is filled in by Find
	CgroupsOff bool            // the engine switched cgroups off, so no device rule applies (Podman, crun: only argv shows it)

	Descriptors []host.Descriptor // that the container is handed open

	// RestoresRules: CRIU writes the device rules of its images over those of the spec, where they are cgroup v1's.
	RestoresRules bool
}

// Node is what tells a GPU's device from another on this machine.
type Node struct {
	Host   host.Host
	Policy grant.Policy
	Majors func() (map[string]int, error) // by the driver's name: of /proc/devices, or of a simulated node's snapshot
	DRM    func() (map[int]bool, error)

	Taken   func() (map[int]bool, error) // majors of character devices that any driver has
	Cards   func() bool                  // an NVIDIA GPU is in the machine, whether or not its driver is loaded; nil: none is
	Seen    *Seen                        // what earlier calls of Find looked up; nil where each is to look anew
	Files   grant.Sources                // the driver's files, which mounts of an edited spec have; none where each source is to be looked at
	Config  string                       // the configuration file
	Program string                       // the one that runs
}

// Seen is what was looked up of the node for one container, by one goroutine, and is gone with its create: Find of a spec and of the
// same spec with edits ask for the same things, and one answer holds for both.
type Seen struct {
	places map[string]place        // what the paths that were asked for lead to
	plain  map[string]bool         // directories of those, with the slash, that no link is on the way to
	pipes  []pipe                  // pipe directories of MPS daemons; nil until a mount could hold one
	owned  []guard                 // what own found; nil until it is asked
	majors map[int]grant.NodeClass // of the driver; nil until a spec names a major that could be one
	taken  map[int]bool            // majors that any driver has; nil until a spec names one that could be given to NVIDIA's
	cards  *bool                   // an NVIDIA GPU is there; nil until it is asked

	aliases   map[aliasQuestion][]alias
	positions map[string]position // of the directories that were asked for
	anchored  []position          // nil until they are asked for
	lent      []uint64            // nil until they are
	mounts    *mountTable         // nil until a source may be elsewhere too
	pipeLike  map[string]bool     // directories that look like the pipe directory of an MPS daemon
}

// Find lists every way to a GPU that the spec contains, in the order of the vectors below. An error says that the
// machine could not be asked about a device; the caller refuses then.
func Find(spec Spec, caller Caller, node Node) (grant.Request, error) {
	f := newFinder(spec, caller, node)
	f.request.Container = caller.Container
	f.request.Container.Pod, f.request.Sandbox = identity(spec.Annotations, caller.Container.Engine)
	if err := f.readDRM(); err != nil {
		return grant.Request{}, err
	}
	for _, v := range vectors {
		v.find(f)
	}
	f.request.UID = f.uid()
	f.request.Devices.Majors, f.request.Devices.DRM = f.seen.majors, f.drm
	return f.request, f.err
}

// vectors is every way to a GPU. A new one is a line here and a function that calls hit.
var vectors = []struct {
	name string
	find func(*finder)
}{
	{"capabilities that undo device rules", (*finder).capabilities},
	{"environment that an injector obeys", (*finder).environment},
	{"device rules that let a GPU be opened", (*finder).deviceRules}, // before those that ask what is open
	{"device nodes", (*finder).deviceNodes},
	{"descriptors that are handed in", (*finder).descriptors},
	{"mounts of device nodes, device lists and our own directories", (*finder).mounts},
	{"raw cgroup keys that set no resource, or the driver's limit", (*finder).unified},
	{"hooks of NVIDIA's injectors", (*finder).hooks},
	{"CDI names, and annotations that change device policy", (*finder).annotations},
	{"parts of the driver", (*finder).driverCapabilities},
	{"references to grants", (*finder).references},
	{"allocations by a scheduler", (*finder).allocations},
	{"ways that make root in the container root on the node", (*finder).nodeRoot},
}

// finder is one run of Find.
type finder struct {
	spec     Spec
	caller   Caller
	bundle   string // the caller's, as it reads without "." and ".."
	node     Node
	env      map[string]string
	seen     *Seen
	ours     []string         // the ledger's directories, by their real paths; nil until they are asked for
	covered  map[string]bool  // directories of the node that its mounts cover, where its root is the node's
	covering int              // how many mounts are in covered
	behind   map[int][]place  // by the mount's number, its sources in the container's own root behind other mounts
	spotted  map[int][]string // the same, where it may lie in that root; nil where it cannot be told
	rooted   bool             // what the node's root owns is open to its user
	drm      map[int]bool     // of major 226; nil until a spec names that major
	open     []opening        // what the device rules open
	request  grant.Request
	err      error
}

func newFinder(spec Spec, caller Caller, node Node) *finder {
	seen := node.Seen
	if seen == nil {
		seen = &Seen{}
	}
	if seen.places == nil {
		seen.places, seen.plain = map[string]place{}, map[string]bool{}
		seen.aliases, seen.positions, seen.pipeLike = map[aliasQuestion][]alias{}, map[string]position{}, map[string]bool{}
	}
	return &finder{spec: normal(spec), caller: caller, bundle: filepath.Clean(caller.Container.Bundle), node: node, seen: seen, env: lastWins(spec.Process), covered: map[string]bool{},
		behind: map[int][]place{}, spotted: map[int][]string{}}
}

// hit, note and nodeRootBy are not inlined, and neither are below and real: their copies took 10 kB of the hot programs' 5 MB.
//
//go:noinline
func (f *finder) hit(h grant.Hit) { f.request.Hits = append(f.request.Hits, h) }

//go:noinline
func (f *finder) note(text string) { f.request.Noted = append(f.request.Noted, text) }

// normal fills in what a spec may leave out, so that the vectors need not ask.
func normal(s Spec) Spec {
	if s.Process == nil {
		s.Process = &Process{}
	}
	if s.Linux == nil {
		s.Linux = &Linux{}
	}
	if s.Linux.Resources == nil {
		s.Linux.Resources = &Resources{}
	}
	return s
}

// lastWins reads the environment as runc does: of duplicates the last one counts. An entry without '=' sets nothing.
func lastWins(p *Process) map[string]string {
	env := map[string]string{}
	if p == nil {
		return env
	}
	for _, entry := range p.Env {
		if key, value, found := strings.Cut(entry, "="); found {
			env[key] = value
		}
	}
	return env
}

// Variable is the value of one in the process's environment, "" where it is not set.
func Variable(s Spec, name string) string {
	if s.Process == nil {
		return ""
	}
	for _, entry := range slices.Backward(s.Process.Env) { // as lastWins, which makes a map of them all
		if key, value, found := strings.Cut(entry, "="); found && key == name {
			return value
		}
	}
	return ""
}

// userNamespaced reports whether the container has a user namespace of its own. Its root is nobody outside.
func (f *finder) userNamespaced() bool {
	for _, ns := range f.spec.Linux.Namespaces {
		if ns.Type == specs.UserNamespace {
			return true
		}
	}
	return false
}

// has reports whether the capability is in any set: each of them can be raised to the effective one.
func (f *finder) has(capability string) bool {
	c := f.spec.Process.Capabilities
	if c == nil {
		return false
	}
	for _, set := range [][]string{c.Bounding, c.Effective, c.Permitted, c.Inheritable, c.Ambient} {
		for _, name := range set {
			if strings.EqualFold(name, capability) {
				return true
			}
		}
	}
	return false
}

func (f *finder) capabilities() {
	f.request.SysAdmin = f.has("CAP_SYS_ADMIN")
}
