package verdict

import (
	"regexp"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// claimed is what the references of a container come to.
type claimed struct {
	any     bool   // it names or owns a grant, or says something that cannot be read
	adopts  bool   // the annotation says that it must adopt
	grant   *Grant // the one that it names or owns
	foreign bool   // that one is another's
	codes   []Code
	// a reference of the pod as a whole, which counts only for a container that asks in another
	// way
	shared string
}

var referenceForm = regexp.MustCompile(`^g-[a-z]{12}(\.[0-9a-f]{32})?$`)

// references reads the references of a container: the contract, docs/requesting.md. A sandbox has
// none.
func references(in Input, spec specs.Spec, id Identity) claimed {
	var c claimed
	if id.Sandbox {
		return c
	}
	var texts []string
	whole := spec.Annotations["gpuledger.dev/grant"]
	named := spec.Annotations["gpuledger.dev/grant."+id.Container]
	if whole == "adopt" || id.Container != "" && named == "adopt" {
		c.adopts = true
		whole, named = strings.TrimPrefix(whole, "adopt"), strings.TrimPrefix(named, "adopt")
	}
	if id.Container != "" {
		if named == "" {
			c.shared = whole
		}
		texts = append(texts, named)
	} else {
		texts = append(texts, whole)
	}
	env, _ := variable(spec, "GPULEDGER_GRANT")
	texts = append(texts, env)
	c.resolve(in, id, texts)
	return c
}

func (c *claimed) resolve(in Input, id Identity, texts []string) {
	c.any, c.codes, c.grant, c.foreign = false, nil, nil, false
	var ids []string // of the grants that are named; references that open none are refused anyway
	for _, text := range texts {
		if text == "" {
			continue // an empty reference asks for nothing
		}
		c.any = true
		if !referenceForm.MatchString(text) {
			c.codes = append(c.codes, AnnotationMalformed)
			continue
		}
		name, secret, _ := strings.Cut(text, ".")
		i := slices.IndexFunc(in.Grants, func(g Grant) bool { return g.ID == name })
		switch {
		case i < 0 || in.Grants[i].Secret != "" && in.Grants[i].Secret != secret:
			c.codes = append(c.codes, GrantNotFound)
		case in.Grants[i].Secret == "" && in.Grants[i].Owner != id.owner(), // of a pod: identity proves it
			!id.inTies(in.Grants[i].Ties):
			c.codes = append(c.codes, GrantOwnerMismatch)
			if c.grant == nil {
				c.grant, c.foreign = &in.Grants[i], true
			}
		default:
			c.grant, c.foreign, ids = &in.Grants[i], false, append(ids, name)
		}
	}
	if own := owned(in.Grants, id.owner()); own != nil {
		c.any = true
		c.grant, c.foreign, ids = own, false, append(ids, own.ID)
	}
	slices.Sort(ids)
	if len(slices.Compact(ids)) > 1 {
		c.codes = append(c.codes, AnnotationMismatch)
	}
}

// owned is the grant that a trusted identity owns, the live one first.
func owned(grants []Grant, owner string) (own *Grant) {
	if owner == "" {
		return nil
	}
	for i, g := range grants {
		if g.Owner == owner && (own == nil || own.Expired || own.Draining) {
			own = &grants[i]
		}
	}
	return own
}

// usable lists why a grant cannot be used by a new container: docs/refusals.md from grant-expired
// to mps-not-ready.
func usable(in Input, p Policy, f *finder, g Grant) (codes []Code) {
	if g.Expired || g.Draining {
		codes = append(codes, GrantExpired)
	}
	if g.Bound && !strings.HasPrefix(g.Owner, "claim:") {
		codes = append(codes, GrantInUse)
	}
	for _, s := range g.Shares {
		card, ok := in.Node.gpuOf(s.UUID)
		_, mig := in.Node.mig(s.UUID)
		if !ok || !card.Healthy || !mig && len(card.MIG) > 0 {
			codes = append(codes, GPUUnhealthy)
		}
	}
	if unenforceable(p, f, g.Mode, g.Compute) {
		codes = append(codes, LimitUnenforceable)
	}
	if g.Mode == "mps" { // no daemon runs on a test's node
		codes = append(codes, MPSNotReady)
	}
	return codes
}

var strengths = []string{"none", "library", "server", "driver", "hardware"}

// unenforceable: limit-unenforceable in docs/refusals.md, the cases 1, 4 and 5, on a node that
// has neither the shim nor the driver's limits.
func unenforceable(p Policy, f *finder, mode string, compute int) bool {
	strength := map[string]string{"mig": "hardware", "mps": "server"}[mode]
	if mode == "exclusive" && (f == nil || !f.nodeRoot()) { // it has nothing to limit
		return false
	}
	if strength == "" || f != nil && f.nodeRoot() {
		strength = "none"
	}
	return slices.Index(strengths, strength) < slices.Index(strengths, p.MinimumStrength) ||
		mode == "limit" && p.Limit != "auto" ||
		mode == "limit" && computeRefused(p, compute)
}

// computeRefused: a share of compute in mode limit, on a node that asks for more than a number
// (ADR 41).
func computeRefused(p Policy, compute int) bool {
	return compute > 0 && (p.Compute != "count" || p.MinimumStrength != "none")
}

// nodeRoot says whether the container is as good as root on the node (ADR 11), as far as the
// generated specs go: its strength is none then.
func (f *finder) nodeRoot() bool {
	if f.open.all || !f.separate() && !namespace(f.spec, specs.UserNamespace) {
		return true
	}
	for _, c := range []string{"CAP_SYS_ADMIN", "CAP_SYS_MODULE", "CAP_DAC_READ_SEARCH"} {
		if capable(f.spec, c) {
			return true
		}
	}
	if r := linux(f.spec).Resources; r != nil && slices.ContainsFunc(r.Devices, allBlocks) {
		return true
	}
	if namespace(f.spec, specs.UserNamespace) {
		return false
	}
	above := func(source string) bool {
		_, real, _ := f.node.lookup(source)
		return within(f.policy.StateDir, real) || within(f.policy.RunDir, real)
	}
	if f.spec.Root != nil && above(f.spec.Root.Path) {
		return true
	}
	for _, m := range f.spec.Mounts {
		switch {
		case isBind(m) && (above(m.Source) || m.Source == "/etc" && !slices.Contains(m.Options, "ro")):
			return true
		case slices.ContainsFunc(m.Options, func(o string) bool { // a layer of an overlay
			return strings.HasPrefix(o, "lowerdir=") && above(strings.TrimPrefix(o, "lowerdir="))
		}):
			return true
		}
	}
	return false
}

// allBlocks: a rule that lets all block devices, or all of a kind, be written.
func allBlocks(r specs.LinuxDeviceCgroup) bool {
	return r.Allow && r.Type == "b" && wild(r.Minor) && (r.Access == "" || strings.Contains(r.Access, "w"))
}

// separate: it has its own mounts and processes.
func (f *finder) separate() bool {
	return namespace(f.spec, specs.MountNamespace) && namespace(f.spec, specs.PIDNamespace)
}
