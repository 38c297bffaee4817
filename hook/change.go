package hook

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/inject"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/request"
)

// changes translates the edits of a spec into changes of the container that was made from that
// spec. What CDI or the wrapper has already put into the spec is not a change. The error says what
// cannot be changed any more.
//
// servers says whose limits a client of the grant's MPS daemon has that sets none of its own.
func changes(spec request.Spec, d node.Decision, asks []string, servers node.ServerLimits) (inject.Change,
	error) {
	var c inject.Change
	if err := unchangeable(spec, d, servers); err != nil {
		return c, err
	}
	hook, acts := request.AskingHook(spec, asks)
	for _, r := range d.Removed {
		if r.Kind == grant.RemoveHook && request.IsAskingHook(r.Name) && !acts {
			continue // it does nothing for this container
		}
		if err := remove(&c, r); err != nil {
			return c, err
		}
	}
	if acts && asksByEnv(spec, d) {
		return c, fmt.Errorf("its hook %s injects the GPUs that its environment asks for, "+
			"and the runtime has read both", grant.Printable(hook))
	}
	if len(d.Close) > 0 { // with the devices of each rule that is removed
		c.Close, c.Others = d.Close, d.Others
	}
	rules, lacks := nodeRules(d.Edits), len(c.Close) > 0
	for i, r := range rules {
		if n := d.Edits.DeviceNodes[i]; !hasNode(spec, n) {
			c.Nodes = append(c.Nodes, n)
		}
		lacks = lacks || !hasRule(spec, r)
	}
	if lacks { // all of them, because a unit of systemd must list all
		c.Allow = rules
	}
	for _, m := range d.Edits.Mounts {
		if !hasMount(spec, m) {
			c.Mounts = append(c.Mounts, m)
		}
	}
	return c, nil
}

// nodeRules returns the device rules of the nodes of edits, one for each.
func nodeRules(e cdispec.ContainerEdits) []grant.DeviceRule {
	var rules []grant.DeviceRule
	for _, n := range e.DeviceNodes {
		rules = append(rules, grant.DeviceRule{Allow: true, Type: 'c', Major: n.Major, Minor: n.Minor,
			Access: n.Permissions})
	}
	return rules
}

// visibleDevices is read only by injectors. None of them runs after the hook if its value differs.
const visibleDevices = "NVIDIA_VISIBLE_DEVICES"

// asksByEnv reports whether the decision removes a variable of the environment or sets another
// value.
func asksByEnv(spec request.Spec, d node.Decision) bool {
	return slices.ContainsFunc(d.Removed, func(r grant.Removal) bool { return r.Kind == grant.RemoveEnv }) ||
		slices.ContainsFunc(d.Edits.Env, func(entry string) bool {
			name, wanted, _ := strings.Cut(entry, "=")
			value, set := lastOf(spec, name)
			return !set || value != wanted
		})
}

// unchangeable returns an error if a decision needs something that only a spec can set: the runtime
// has read it.
func unchangeable(spec request.Spec, d node.Decision, servers node.ServerLimits) error {
	e := d.Edits
	for _, entry := range e.Env {
		name, wanted, _ := strings.Cut(entry, "=")
		value, set := lastOf(spec, name)
		switch {
		case name == visibleDevices || set && value == wanted:
		case set || !servers.Replace(name, d.Limited):
			return fmt.Errorf("its environment must say %s, and a hook cannot change that",
				grant.Printable(entry))
		}
	}
	for _, m := range spec.Mounts {
		at := filepath.Clean("/" + m.Destination)
		if i := slices.IndexFunc(e.Mounts, func(o *cdispec.Mount) bool {
			return o.ContainerPath == grant.PipeInContainer && o.HostPath != m.Source
		}); i >= 0 && strings.HasPrefix(at+"/", grant.PipeInContainer+"/") {
			return fmt.Errorf("it has a mount of its own at %s, where clients look for their MPS daemon",
				grant.Printable(at))
		}
	}
	for _, h := range e.Hooks {
		if !hasHook(spec, h) {
			return fmt.Errorf("the grant needs the %s hook %s, and the runtime has read the hooks",
				h.HookName, h.Path)
		}
	}
	for _, gid := range e.AdditionalGIDs {
		if spec.Process == nil || !slices.Contains(spec.Process.User.AdditionalGids, gid) {
			return fmt.Errorf("the grant needs the group %d, and the runtime has read the groups", gid)
		}
	}
	if len(e.NetDevices) > 0 || e.IntelRdt != nil {
		return errors.New("the grant needs network devices or cache, which only a spec can give")
	}
	return nil
}

// hasHook reports whether the spec has the hook in its stage with the same arguments.
func hasHook(spec request.Spec, h *cdispec.Hook) bool {
	if spec.Hooks == nil {
		return false
	}
	stages := map[string][]specs.Hook{"createRuntime": spec.Hooks.CreateRuntime,
		"createContainer": spec.Hooks.CreateContainer,
		"startContainer":  spec.Hooks.StartContainer, "poststart": spec.Hooks.Poststart,
		"poststop": spec.Hooks.Poststop}
	return slices.ContainsFunc(stages[h.HookName],
		func(s specs.Hook) bool { return s.Path == h.Path && slices.Equal(s.Args, h.Args) })
}

func lastOf(spec request.Spec, name string) (value string, set bool) {
	if spec.Process == nil {
		return "", false
	}
	for _, entry := range spec.Process.Env {
		if key, v, found := strings.Cut(entry, "="); found && key == name {
			value, set = v, true
		}
	}
	return value, set
}

// remove adds a removal to a change. Variables and annotations that only injectors read may stay;
// programs in the container read CUDA's.
func remove(c *inject.Change, r grant.Removal) error {
	switch r.Kind {
	case grant.RemoveEnv:
		if !strings.HasPrefix(r.Name, "CUDA_") {
			return nil
		}
		return fmt.Errorf("its environment must not have %s, and a hook cannot change that",
			grant.Printable(r.Name))
	case grant.RemoveAnnotation:
		if request.IsCDIKey(r.Name) {
			return nil
		}
	case grant.RemoveDevice:
		c.Remove = append(c.Remove, r.Name)
		return nil
	case grant.RemoveRule:
		rule, err := ruleOf(r.Name)
		c.Close = append(c.Close, rule)
		return err
	}
	if r.Kind == grant.RemoveHook && request.IsAskingHook(r.Name) {
		return fmt.Errorf("its hook %s, usually of oci-nvidia-hook.json, acts on its environment or mounts, "+
			"and the runtime has read it", grant.Printable(r.Name))
	}
	return fmt.Errorf("its spec must not have the %s %s, and the runtime has read it",
		r.Kind, grant.Printable(r.Name))
}

// ruleOf parses a rule as a Removal names it: "c 195:254", with * for all.
func ruleOf(name string) (grant.DeviceRule, error) {
	r := grant.DeviceRule{Type: 'c', Access: "rw"}
	numbers, isChar := strings.CutPrefix(name, "c ")
	major, minor, both := strings.Cut(numbers, ":")
	var errs [2]error
	r.Major, errs[0] = ruleNumber(major)
	r.Minor, errs[1] = ruleNumber(minor)
	if err := errors.Join(errs[:]...); err != nil || !isChar || !both {
		return r, fmt.Errorf("internal error: the rule %q to be removed cannot be read", name)
	}
	return r, nil
}

func ruleNumber(text string) (int64, error) {
	if text == "*" {
		return -1, nil
	}
	return strconv.ParseInt(text, 10, 64)
}

func hasNode(spec request.Spec, n *cdispec.DeviceNode) bool {
	return spec.Linux != nil && slices.ContainsFunc(spec.Linux.Devices, func(d specs.LinuxDevice) bool {
		return d.Path == n.Path && d.Type == n.Type && d.Major == n.Major && d.Minor == n.Minor
	})
}

// hasRule reports whether the spec allows exactly these numbers with at least this access, and
// denies nothing after it.
func hasRule(spec request.Spec, r grant.DeviceRule) bool {
	if spec.Linux == nil || spec.Linux.Resources == nil {
		return false
	}
	has := false
	for _, s := range spec.Linux.Resources.Devices {
		same := s.Type == string(r.Type) && s.Major != nil && *s.Major == r.Major &&
			s.Minor != nil && *s.Minor == r.Minor
		switch {
		case !s.Allow:
			has = false
		case same && !strings.ContainsFunc(r.Access,
			func(a rune) bool { return !strings.ContainsRune(s.Access, a) }):
			has = true
		}
	}
	return has
}

func hasMount(spec request.Spec, m *cdispec.Mount) bool {
	i := len(spec.Mounts) - 1
	for ; i >= 0 && filepath.Clean(spec.Mounts[i].Destination) != filepath.Clean(m.ContainerPath); i-- {
	}
	return i >= 0 && spec.Mounts[i].Source == m.HostPath
}

// possible returns an error if a change cannot be made to this container. It is called before any
// part of it is made.
func possible(spec request.Spec, c inject.Change, r caller) error {
	namespaces := map[specs.LinuxNamespaceType]string{}
	if spec.Linux != nil {
		for _, ns := range spec.Linux.Namespaces {
			namespaces[ns.Type] = "new:" + ns.Path
		}
	}
	switch {
	case r.Name == "restore":
		return errors.New("it is restored from a checkpoint")
	case namespaces[specs.UserNamespace] != "":
		return errors.New("it has a user namespace, in which device nodes are the host's own, mounted")
	case namespaces[specs.MountNamespace] != "new:":
		return errors.New("it has no mount namespace of its own")
	case len(c.Nodes)+len(c.Remove) > 0 && !ownDev(spec):
		return errors.New("its /dev is no tmpfs of its own")
	}
	return nil
}

// ownDev reports whether the spec mounts a new tmpfs at the container's /dev, as every engine does.
func ownDev(spec request.Spec) bool {
	own := false
	for _, m := range spec.Mounts {
		if filepath.Clean("/"+m.Destination) == "/dev" {
			own = m.Type == "tmpfs" && !request.IsBind(m)
		}
	}
	return own
}
