package request

import (
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/hostpath"
)

// containerFacts are what every vector knows of a container. They are read once, before the vectors
// run, and no vector changes them.
type containerFacts struct {
	spec    Spec   // with a process, a part for Linux and resources
	caller  Caller // its container has the identity of the pod
	node    NodeFacts
	sandbox bool              // it is a pod's sandbox
	env     map[string]string // the environment of the first process
	keys    []string          // of the annotations, sorted

	bundle string // as a clean path; "." if it is unknown
	root   string // the path of the root file system; "" without one

	sysAdmin bool // CAP_SYS_ADMIN
	// userNamespaced says that it has a user namespace, which may be one that it joins. ownUsers
	// says that this is not the node's: its root is no user of the node, or another one.
	userNamespaced, ownUsers bool

	rules openRules

	// These look up what a vector asks for, and keep the answer.
	paths   *hostpath.Paths
	pipes   pipes
	devices devices
	sources sources
}

// readFacts reads the facts. An error says that it is unknown which devices are DRM nodes of GPUs.
func readFacts(spec Spec, caller Caller, node NodeFacts) (*containerFacts, error) {
	f := &containerFacts{spec: normal(spec), caller: caller, node: node, env: lastWins(spec.Process),
		keys: sortedKeys(spec.Annotations), bundle: filepath.Clean(caller.Container.Bundle)}
	seen := node.Seen
	if seen == nil {
		seen = &Seen{}
	}
	if seen.paths == nil {
		seen.paths = hostpath.New(hostpath.Environment{Host: node.Host, Policy: &f.node.Policy,
			Config:  node.Config,
			Program: node.Program})
	}
	f.paths = seen.paths
	f.pipes = pipes{host: node.Host, runDir: node.Policy.RunDir, paths: seen.paths, seen: seen}
	f.caller.Container.Pod, f.sandbox = identity(spec.Annotations, caller.Container.Engine)
	f.root = rootOf(spec, caller.Container.Bundle)
	f.sysAdmin = f.has(capSysAdmin)
	_, f.userNamespaced = f.namespace(specs.UserNamespace)
	f.ownUsers = f.userNamespaced && !f.joinsNodes(specs.UserNamespace)
	f.devices = devices{node: &f.node, numbers: &seen.numbers}
	if namesDRM(f.spec, caller.Descriptors) {
		if f.devices.readDRM(); f.devices.err != nil {
			return nil, f.devices.err
		}
	}
	f.rules = readRules(f)
	f.sources = sources{mounts: f.spec.Mounts, bundle: caller.Container.Bundle, root: f.root, paths: f.paths,
		opensAny: f.rules.opensAny}
	return f, nil
}

// normal fills in what a spec may leave out.
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

// lastWins reads the environment as runc does: of duplicates the last one counts. An entry without
// '=' sets nothing.
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

// Variable returns the value of a variable in the process's environment, "" if it is not set.
func Variable(s Spec, name string) string {
	if s.Process == nil {
		return ""
	}
	for _, entry := range slices.Backward(s.Process.Env) { // as lastWins, without a map of all variables
		if key, value, found := strings.Cut(entry, "="); found && key == name {
			return value
		}
	}
	return ""
}

// rootOf returns the path of the container's root file system, "" without one.
func rootOf(s Spec, bundle string) string {
	switch {
	case s.Root == nil || s.Root.Path == "":
		return ""
	case filepath.IsAbs(s.Root.Path):
		return s.Root.Path
	}
	return filepath.Join(bundle, s.Root.Path)
}

// namespace returns the container's namespace of a kind; false if it shares that of the runtime.
func (f *containerFacts) namespace(kind specs.LinuxNamespaceType) (ns specs.LinuxNamespace, own bool) {
	i := slices.IndexFunc(f.spec.Linux.Namespaces,
		func(ns specs.LinuxNamespace) bool { return ns.Type == kind })
	if i < 0 {
		return specs.LinuxNamespace{}, false
	}
	return f.spec.Linux.Namespaces[i], true
}

// joinsNodes reports whether the namespace (pid or user) that a container joins by its path is that
// of this process, which is the node's.
func (f *containerFacts) joinsNodes(kind specs.LinuxNamespaceType) bool {
	ns, _ := f.namespace(kind)
	if ns.Path == "" {
		return false
	}
	var theirs, ours unix.Stat_t
	err := unix.Stat(ns.Path, &theirs)
	return err == nil && unix.Stat(filepath.Join(f.node.Host.Proc, "self/ns", string(kind)), &ours) == nil &&
		theirs.Ino == ours.Ino && theirs.Dev == ours.Dev
}

// uid returns the first process's user in the node's ids, -1 if it is unknown: the namespace maps
// it to no user, or is another container's.
func (f *containerFacts) uid() int {
	uid := f.spec.Process.User.UID
	if !f.ownUsers {
		return int(uid)
	}
	for _, m := range f.spec.Linux.UIDMappings {
		if m.ContainerID <= uid && uid-m.ContainerID < m.Size {
			return int(m.HostID + (uid - m.ContainerID))
		}
	}
	return -1
}

// isPrivate reports whether a real path is the container's own, as most sources of its mounts are.
func (f *containerFacts) isPrivate(path string) bool { return hostpath.IsPrivate(path, f.bundle) }
