package verdict

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Judge says what gpuledger's documents promise about a create in enforce mode. In report mode
// the verdict is the same, and only recorded.
func Judge(in Input) Verdict {
	p := ReadPolicy(in.Policy)
	spec, err := ReadSpec(in.Config)
	if err != nil {
		return refuse(SpecInvalid) // whatever the configuration is: nothing is known of the container
	}
	c := container{in: in, policy: p, spec: spec, id: identify(in.Engine, spec.Annotations)}
	if p.Broken {
		c.in.Grants = nil // the ledger's place is not known
	}
	c.find = find(in, p, spec, c.id)
	c.claim = references(c.in, spec, c.id)
	c.own, c.shared, c.variables, c.share = allocations(in, p, spec, c.id)
	return c.judge()
}

// container is what is known of a container that is to be created.
type container struct {
	in     Input
	policy Policy
	spec   specs.Spec
	id     Identity
	find   *finder
	claim  claimed

	own, shared, variables, share Allocation
}

func (c *container) judge() Verdict {
	if c.in.Node.Rootless || c.in.CgroupsOff {
		return c.unenforced()
	}
	if c.closes() {
		return c.near(Verdict{Kind: Pass})
	}
	if !c.asks() {
		return c.near(Verdict{Kind: Pass})
	}
	v := c.decide()
	for _, h := range c.find.hits {
		if v.Unclear == "" {
			v.Unclear = h.Unclear
		}
		v.Partial = v.Partial || h.Parent
	}
	if c.find.open.unclear != "" {
		v.Unclear = c.find.open.unclear
	}
	return v
}

// asks says whether the container asks for a GPU or reaches one.
func (c *container) asks() bool {
	return len(c.find.hits) > 0 || c.claim.any || c.claim.adopts || c.own.Stated || c.variables.Stated ||
		c.share.Stated
}

// pod adds the reference of a pod as a whole, which makes nobody a requester by itself (the
// contract) and counts for a container that asks.
func (c *container) pod() {
	if c.claim.shared != "" {
		env, _ := variable(c.spec, "GPULEDGER_GRANT")
		c.claim.resolve(c.in, c.id, []string{c.spec.Annotations["gpuledger.dev/grant."+c.id.Container], env,
			c.claim.shared})
	}
}

// closes: a user namespace without a rule that denies all, and no other way to a GPU (ADR 24).
func (c *container) closes() bool {
	if len(c.find.hits) == 0 || c.claim.any || c.claim.adopts || c.own.Stated || c.variables.Stated ||
		c.share.Stated {
		return false
	}
	return !slices.ContainsFunc(c.find.hits, func(h Hit) bool { return !h.Unclosed })
}

// exempt: an exemption is for what a container reaches. One that names a grant or states a share
// is judged by that.
func (c *container) exempt() bool {
	claims := c.claim.any || c.claim.adopts || c.own.Stated || c.variables.Stated || c.share.Stated
	return !claims && !c.id.Sandbox && c.policy.exempts(c.id)
}

// unenforced: rules-not-enforced, where device rules hold nothing (ADR 50). It makes no
// difference whether the container has a grant.
func (c *container) unenforced() Verdict {
	if c.exempt() {
		return Verdict{Kind: Pass}
	}
	if len(c.find.hits) > 0 {
		c.pod()
	}
	left := slices.DeleteFunc(slices.Clone(c.find.hits), c.removed)
	switch {
	case c.in.CgroupsOff && !c.in.Node.Rootless, len(left) > 0, c.claim.any, c.claim.adopts, c.own.Stated,
		c.variables.Stated, c.share.Stated:
		v := refuse(RulesNotEnforced)
		v.Partial = true
		return v
	}
	return c.near(Verdict{Kind: Pass})
}

// removed says whether the policy removes a way to a GPU from a container without a grant.
func (c *container) removed(h Hit) bool {
	return h.Env && c.policy.Hide || h.Privileged && c.policy.Strip && !c.id.Sandbox
}

func (c *container) decide() Verdict {
	// "A container that owns or names a grant uses that one."
	if c.exempt() {
		return Verdict{Kind: Pass}
	}
	c.pod()
	usesGrant := c.claim.any
	if c.policy.Broken {
		v := refuse(ConfigInvalid)
		v.Partial = true
		return v
	}
	if usesGrant {
		return c.granted()
	}
	left := slices.DeleteFunc(slices.Clone(c.find.hits), c.removed)
	a, asks := c.allocation()
	switch {
	case c.namesGPUs():
		return Verdict{Unclear: "a GPU that is named to an engine whose containers may ask"}
	case a.Stated:
		return c.allocated(a, asks, c.find.hits)
	case c.claim.adopts:
		list := append(codes(c.find.hits), GrantNotFound)
		if c.shared.Malformed {
			list = append(list, AnnotationMalformed)
		}
		return c.refuse(list, true)
	case len(left) == 0:
		return c.near(Verdict{Kind: Pass})
	}
	if c.shared.Malformed {
		return c.refuse(append(codes(c.find.hits), AnnotationMalformed), true)
	}
	return c.refuse(codes(c.find.hits), false) // `hide` is for those that ask by environment alone
}

// refuse is a refusal with the inventory's problem, if it has one, before these codes.
func (c *container) refuse(list []Code, partial bool) Verdict {
	if code := c.in.Node.Inventory; code != "" {
		list, partial = append(list, code), true
	}
	v := refuse(list...)
	v.Partial = partial
	return v
}

func codes(hits []Hit) (list []Code) {
	for _, h := range hits {
		list = append(list, h.Code)
	}
	return list
}

const inUserNamespace = "strength in a user namespace"

// granted decides about a container that names or owns a grant.
func (c *container) granted() Verdict {
	list := slices.Clone(c.claim.codes)
	v := Verdict{Kind: Admit}
	if code := c.in.Node.Inventory; code != "" {
		v = refuse(append(list, code)...)
		v.Partial = true
		return v
	}
	g := c.claim.grant
	if len(list) > 0 && (c.own.Stated || c.share.Stated || c.variables.Stated) {
		v := refuse(list...)
		v.Unclear = "a reference that is refused, and an allocation"
		return v
	}
	if g != nil {
		list = append(list, usable(c.in, c.policy, c.find, *g)...)
		for _, a := range []Allocation{c.own, c.shared, c.share} {
			if a.Malformed {
				list = append(list, AnnotationMalformed)
			}
			if !c.claim.foreign && !a.agrees(c.in.Node, *g) {
				list = append(list, AnnotationMismatch)
			}
		}
		if foreignKey(c.spec) {
			list = append(list, LimitUnenforceable)
		}
		if c.policy.MinimumStrength != "none" && namespace(c.spec, specs.UserNamespace) {
			v.Unclear = inUserNamespace
		}
		v.Grant = g.ID
		for _, s := range g.Shares {
			v.GPUs = append(v.GPUs, s.UUID)
		}
		slices.Sort(v.GPUs)
	} else if c.own.Malformed || c.shared.Malformed || c.share.Malformed {
		list = append(list, AnnotationMalformed)
	}
	for _, h := range c.find.hits {
		if g == nil {
			list = append(list, h.Code)
			continue
		}
		covered, unclear := c.covers(*g, h)
		if !covered {
			list = append(list, h.Code)
		}
		if unclear != "" {
			v.Unclear = unclear
		}
	}
	unclear := v.Unclear
	// what needs a usable grant is not looked at without one
	partial := len(c.claim.codes) > 0 || g != nil && (g.Expired || g.Draining || g.Bound) ||
		slices.Contains(list, GPUUnhealthy)
	if len(list) > 0 {
		v = refuse(list...)
	}
	if unclear == inUserNamespace && v.Kind == Refuse && v.Code == LimitUnenforceable {
		return Verdict{Unclear: unclear}
	}
	v.Unclear, v.Partial = unclear, partial
	return c.near(v)
}

func (c *container) covers(g Grant, h Hit) (covered bool, unclear string) {
	switch {
	case h.Drop, h.Privileged, h.Narrow:
		return true, ""
	case h.Names != nil:
		for _, name := range h.Names {
			uuid, ok := c.in.Node.resolve(name)
			if (name != "all" || h.Exact) && (!ok || !slices.ContainsFunc(g.Shares,
				func(s Share) bool { return s.UUID == uuid })) {
				return false, ""
			}
		}
		return true, ""
	case h.Parts != nil:
		caps, _ := variable(c.spec, "NVIDIA_DRIVER_CAPABILITIES")
		for _, p := range h.Parts {
			ok, why := c.in.Node.covers(g, p, capabilities(caps))
			if why != "" {
				unclear = why
			}
			if !ok {
				return false, unclear
			}
		}
		return true, unclear
	}
	return false, ""
}

// namesGPUs reports whether the container may ask by naming GPUs to its engine (docs/asking.md,
// "Whole GPUs"), which is younger than this reading of the documents.
func (c *container) namesGPUs() bool {
	return (c.in.Engine == "docker" || c.in.Engine == "podman") &&
		slices.Contains(c.policy.AskEngines, c.in.Engine) &&
		slices.ContainsFunc(c.find.hits,
			func(h Hit) bool { return h.Code == GPUDeviceNode || h.Code == GPUHook })
}

// allocation is what counts for a container without a grant, and whether it is an ask.
func (c *container) allocation() (a Allocation, asks bool) {
	mayAsk := slices.Contains(c.policy.AskEngines, c.in.Engine)
	switch {
	case c.own.Stated:
		return c.own, mayAsk
	case c.share.Stated:
		return c.share, false
	case c.variables.Stated:
		return c.variables, mayAsk
	}
	return nothing(), false
}

// allocated decides about an allocation without a grant: docs/grants.md "Adopted allocations",
// docs/asking.md.
func (c *container) allocated(a Allocation, asks bool, left []Hit) Verdict {
	variables := !c.own.Stated && !c.share.Stated
	adopts := c.policy.Adopt && c.id.UID != "" && !variables
	if a.Malformed || a.None && asks && !adopts && !c.claim.adopts {
		return c.refuse(append(codes(left), AnnotationMalformed), true)
	}
	if c.shared.Stated || c.own.Stated && c.share.Stated || c.variables.Stated && !variables {
		return Verdict{Unclear: "several statements and no grant"}
	}
	var list []Code
	switch {
	case c.policy.Adopt && a.Share && a.Pod < 0:
		list = append(list, GrantNotFound, AnnotationMismatch) // without the pod's sum nothing is adopted
	case c.policy.Adopt && a.Share && a.Memory > a.Pod:
		list = append(list, AnnotationMismatch)
	case adopts && asks:
		return Verdict{Unclear: "a node that adopts and lets the engine ask"}
	case adopts, asks:
	case c.policy.AskEngines != nil && !a.Share && len(c.policy.AskEngines) > 0:
		list = append(list, AskNotAllowed)
	default:
		list = append(list, GrantNotFound)
	}
	if c.claim.adopts && !adopts {
		list = append(list, GrantNotFound)
	}
	if len(list) > 0 {
		return c.refuse(append(codes(left), list...), true)
	}
	if c.in.Node.Inventory != "" {
		return c.refuse(codes(left), true)
	}
	where := place(c.in, c.policy, a, asks)
	if where.unclear != "" && len(where.codes) > 0 {
		v := refuse(where.codes...)
		v.Unclear = where.unclear
		return v
	}
	if where.unclear != "" {
		return Verdict{Unclear: where.unclear}
	}
	return c.entered(a, where)
}

// entered decides about an allocation that has, or has not, a place.
func (c *container) entered(a Allocation, where placed) Verdict {
	g := Grant{Mode: a.Mode, Compute: max(a.Compute, 0)}
	for _, uuid := range where.gpus {
		g.Shares = append(g.Shares, Share{UUID: uuid})
	}
	list := slices.Clone(where.codes)
	for _, h := range c.find.hits {
		if where.gpus == nil && len(where.codes) == 0 && (len(h.Parts) > 0 || len(h.Names) > 0) {
			return Verdict{Unclear: "what the spec reaches, and several places for an allocation"}
		}
		if covered, _ := c.covers(g, h); !covered {
			list = append(list, h.Code)
		}
	}
	if foreignKey(c.spec) || a.Mode == "exclusive" && unenforceable(c.policy, c.find, a.Mode, 0) {
		list = append(list, LimitUnenforceable)
	}
	if len(list) > 0 {
		v := refuse(list...)
		v.Partial = true
		return v
	}
	return c.near(Verdict{Kind: Admit, GPUs: where.gpus})
}

// parents are cgroups below which engines make those of containers, as docs/refusals.md means them
// (injection-impossible), of those that are generated.
var parents = []string{"/docker", "/kubepods", "/kubepods/besteffort", "/user.slice"}

// near: a container with a grant is in no parent. One in, below or above the cgroup of a container
// with a GPU is not created (ADR 67).
func (c *container) near(v Verdict) Verdict {
	path := linux(c.spec).CgroupsPath
	if v.Kind == Admit && slices.Contains(parents, path) {
		return refuse(InjectionImpossible)
	}
	// "An exempt container passes, as it does with devices."
	if v.Kind == Refuse || c.policy.exempts(c.id) && !c.id.Sandbox {
		return v
	}
	for _, g := range c.in.Grants {
		if g.Cgroup != "" && path != "" && (within(path, g.Cgroup) || within(g.Cgroup, path)) {
			return refuse(InjectionImpossible)
		}
	}
	return v
}

// Left lists what a container reaches beyond its grant by the config.json that it is started
// with. g is nil for one without a grant.
func Left(in Input, config []byte, g *Grant) (codes []Code, err error) {
	spec, err := ReadSpec(config)
	if err != nil {
		return nil, err
	}
	p := ReadPolicy(in.Policy)
	c := container{in: in, policy: p, spec: spec, id: identify(in.Engine, spec.Annotations)}
	c.find = find(in, p, spec, c.id)
	for _, h := range c.find.hits {
		h.Privileged, h.Narrow, h.Drop = false, false, false // an edited spec has nothing left to take away
		covered := false
		if g != nil {
			covered, _ = c.covers(*g, h)
		}
		if !covered && h.Unclear == "" && c.find.open.unclear == "" {
			codes = append(codes, h.Code)
		}
	}
	return codes, nil
}
