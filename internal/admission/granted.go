package admission

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// findGrant resolves what the container says about grants. All references must lead to one; each
// that does not is a finding.
func (c *asking) findGrant() {
	c.grant = c.owned
	for _, d := range c.view.Damaged {
		if c.owns(d) {
			c.find(grant.LedgerUnreadable, "owner", string(d.ID))
		}
	}
	for _, m := range c.request.References {
		if m.Malformed != "" {
			c.find(grant.AnnotationMalformed, m.Source, m.Malformed)
			continue
		}
		g := c.lookUp(m)
		switch {
		case g == nil:
		case c.grant == nil:
			c.grant = g
		case c.grant.ID != g.ID:
			c.find(grant.AnnotationMismatch, m.Source, string(m.ID))
		}
	}
	for _, a := range c.request.Allocations {
		if a.Malformed != "" {
			c.find(grant.AnnotationMalformed, a.Source, a.Malformed)
		}
	}
}

// lookUp finds a reference's grant. An unknown id and a wrong secret get the same answer: a guesser
// learns nothing.
func (c *asking) lookUp(m grant.Mention) *grant.Grant {
	if slices.ContainsFunc(c.view.Damaged, func(d grant.Damage) bool { return d.ID == m.ID }) {
		c.find(grant.LedgerUnreadable, m.Source, string(m.ID))
		return nil
	}
	i := slices.IndexFunc(c.view.Grants, func(g grant.Grant) bool { return g.ID == m.ID })
	switch {
	case i < 0:
		c.find(grant.GrantNotFound, m.Source, string(m.ID))
		return nil
	case c.view.Grants[i].Owner.IsPod():
		if c.view.Grants[i].Owner != c.request.Container.Pod.Owner() {
			c.find(grant.GrantOwnerMismatch, m.Source, string(m.ID))
			return nil
		}
	case !m.Opens(c.view.Grants[i].Secret):
		c.find(grant.GrantNotFound, m.Source, string(m.ID))
		return nil
	}
	if !c.view.Grants[i].InTies(c.request.Container.Pod) {
		c.untied(m, c.view.Grants[i])
		return nil
	}
	return &c.view.Grants[i]
}

// untied finds that a container has the reference of a grant that is tied to others. It is told no
// name of theirs.
func (c *asking) untied(m grant.Mention, g grant.Grant) {
	refers := "refers to grant " + string(m.ID) + " by " + place(grant.Printable(m.Source)) +
		", which is tied to "
	switch id := c.request.Container.Pod; {
	case id == (grant.Identity{}):
		c.tell(grant.GrantOwnerMismatch, m.Source, string(m.ID),
			refers+"pods, and its engine vouches for none", hintUnvouched)
	case !g.InNamespace(id):
		c.tell(grant.GrantOwnerMismatch, m.Source, string(m.ID), refers+"another namespace", hintTied)
	case id.UID == "":
		c.tell(grant.GrantOwnerMismatch, m.Source, string(m.ID),
			refers+"pods, and its engine does not say which pod it is", hintNoUID)
	default:
		c.late = c.late || g.Owner.IsClaim()
		c.tell(grant.GrantOwnerMismatch, m.Source, string(m.ID), refers+"other pods", hintTied)
	}
}

// granted judges a container against its grant: the grant must be usable, and all that the spec
// reaches must lie within.
func (c *asking) granted() grant.Verdict {
	c.ruled()
	c.usable()
	if len(c.view.Problems) > 0 {
		return c.refuse() // without an inventory there is nothing to hold the rest against
	}
	c.look()
	for _, a := range c.request.Allocations {
		if a.Malformed == "" {
			c.agrees(a)
		}
	}
	for _, h := range c.request.Hits {
		c.covered(h)
	}
	for _, h := range c.request.Doubtful {
		c.find(h.Code, h.Vector, h.Value)
	}
	if problem := c.request.Layout.Problem; problem != "" {
		c.find(grant.InjectionImpossible, "root", problem)
	}
	c.files = c.filesOnce()
	c.held = has(c.files, realDriver(libcuda))
	c.enforceable()
	c.computeKept()
	c.mpsReady()
	if strength := c.strength(); !strength.AtLeast(c.policy.Rules.MinimumStrength) && c.limits() {
		c.tooWeak(strength)
	}
	if len(c.findings) > 0 {
		return c.refuse()
	}
	return c.admit()
}

// usable checks the grant itself: its time, its other container, its GPUs.
func (c *asking) usable() {
	g := c.grant
	switch {
	case g.Expired(c.view.Now):
		c.find(grant.GrantExpired, "grant", string(g.ID))
	case g.Draining:
		c.find(grant.GrantExpired, "grant", string(g.ID)+" (released)")
	case len(g.Bindings) > 0 && !g.Owner.IsClaim():
		c.find(grant.GrantInUse, "grant", string(g.ID))
	}
	if len(c.view.Problems) > 0 {
		return // no inventory to hold it against
	}
	for _, s := range g.GPUs {
		d, found := c.inventory.Device(s.UUID)
		switch {
		case !found:
			c.find(grant.GPUUnhealthy, s.UUID, "is not there any more")
		case d.Trouble() != "":
			c.find(grant.GPUUnhealthy, s.UUID, d.Trouble())
		case g.Mode == grant.Exclusive && c.view.Held[s.UUID]:
			c.find(grant.GrantInUse, "held:"+s.UUID, s.UUID)
		}
	}
}

// strength is what this container gets of the grant's, but for one that can undo what enforces it.
func (c *asking) strength() grant.Strength {
	switch {
	case c.request.Privileged || c.request.SysAdmin || len(c.request.NodeRoot) > 0:
		return grant.StrengthNone
	case c.driven():
		return grant.StrengthDriver
	case c.held && c.grant.Mode == grant.Limit:
		return grant.StrengthLibrary
	}
	return c.grant.Strength
}

// limits reports whether there is anything to enforce: an exclusive grant of an ordinary container
// has all of its GPUs, and the device cgroup keeps the others from it.
func (c *asking) limits() bool {
	return c.grant.Mode != grant.Exclusive || c.request.Privileged || c.request.SysAdmin ||
		len(c.request.NodeRoot) > 0
}

// agrees holds what a scheduler wrote against the grant.
func (c *asking) agrees(a grant.Allocation) {
	g := c.grant
	disagree := func(what string) { c.find(grant.AnnotationMismatch, a.Source, what) }
	if a.GPUs != nil && !c.sameGPUs(a.GPUs) {
		disagree(fmt.Sprintf("GPUs %v", a.GPUs))
	}
	// A MIG device is as large as it is: what was asked for fits into it.
	if a.Memory > g.Memory() || a.Memory != 0 && a.Memory < g.Memory() && g.Mode != grant.MIG {
		disagree(a.Memory.String())
	}
	if a.Units != 0 && !c.sameUnits(a) {
		disagree(strconv.Itoa(a.Units) + " units of memory")
	}
	if a.Compute != 0 && a.Compute != g.Compute {
		disagree(strconv.Itoa(a.Compute) + "% compute")
	}
	if a.Mode != "" && a.Mode != g.Mode {
		disagree("mode " + string(a.Mode))
	}
}

// sameGPUs: all of the grant's and no others, each named by UUID or index.
func (c *asking) sameGPUs(names []string) bool {
	seen := map[string]bool{}
	for _, name := range names {
		d, _ := c.inventory.Device(name)
		if !c.grant.Has(d.UUID()) {
			return false
		}
		seen[d.UUID()] = true
	}
	return len(seen) == len(c.grant.GPUs)
}

// sameUnits compares gpushare's size, which is each GPU's.
func (c *asking) sameUnits(a grant.Allocation) bool {
	for _, s := range c.grant.GPUs {
		if s.Memory != grant.Bytes(a.Units)*c.unit(a, s.UUID) {
			return false
		}
	}
	return true
}

// covered checks one way to a GPU against the grant.
func (c *asking) covered(h grant.Hit) {
	if h.Code == grant.PrivilegedGPU {
		c.narrow(h)
		return
	}
	if c.brings(h) {
		return
	}
	switch h.Cover {
	case grant.CoverNarrow:
	case grant.CoverGPUs:
		for _, name := range h.GPUs {
			d, _ := c.inventory.Device(name)
			if name != "all" && !c.grant.Has(d.UUID()) {
				c.find(outside(h.Code), h.Vector, h.Value)
				return
			}
		}
		c.remove(h.Removal)
	case grant.CoverNode:
		if !c.hasNode(h.Node) {
			c.find(h.Code, h.Vector, h.Value)
		}
	case grant.CoverDrop:
		if !c.hasNode(h.Node) {
			c.remove(h.Removal)
		}
	case grant.CoverRecord:
		if h.Grant != c.grantID() { // of an earlier create of this bundle
			c.remove(h.Removal)
		}
	default:
		c.find(h.Code, h.Vector, h.Value)
	}
}

// outside is the code for a list of GPUs that the grant does not hold all of. Who asks for all of
// them holds a grant here, so that is not what is wrong.
func outside(code grant.Code) grant.Code {
	if code == grant.VisibleDevicesAll {
		return grant.VisibleDevicesOutsideGrant
	}
	return code
}

// narrow takes from a privileged container the nodes and rules that its grant does not cover. Rules
// that open everything are replaced as a whole.
func (c *asking) narrow(h grant.Hit) {
	replaced := h.Removal.Kind == grant.RemoveRule && c.request.AllDevices
	if !replaced && !c.hasNode(h.Node) {
		c.remove(h.Removal)
	}
}

func (c *asking) remove(r grant.Removal) {
	if r == (grant.Removal{}) || c.removes[r] {
		return
	}
	if c.removes == nil {
		c.removes = map[grant.Removal]bool{}
	}
	c.removes[r] = true
	c.removed = append(c.removed, r)
}

// hasNode reports whether a node comes with the grant: its GPUs' own, those of its MIG devices, and
// the control and UVM nodes that every client needs.
func (c *asking) hasNode(n grant.Node) bool {
	switch n.Class {
	case grant.ClassControl:
		return true
	case grant.ClassUVM:
		return n.Minor == 0 || n.Minor == 1
	case grant.ClassGPU:
		return slices.ContainsFunc(c.gpus(), func(g grant.GPU) bool { return g.Minor == n.Minor })
	case grant.ClassCaps:
		return c.hasInstance(n.Minor)
	case grant.ClassModeset:
		return c.drives()
	case grant.ClassDRM:
		return slices.ContainsFunc(c.devices(), func(d grant.Device) bool {
			return drawsGraphics(d) && slices.ContainsFunc(d.GPU.Render,
				func(path string) bool { return drmMinor(path) == n.Minor })
		})
	}
	return false
}

// gpus are the grant's as the inventory knows them, and those that its MIG devices are parts of,
// once for each of these.
func (c *asking) gpus() []grant.GPU { return c.parts.gpus }

// drmMinor is the device minor of a DRM node: cardN has N, renderDN has N as well.
func drmMinor(path string) int {
	minor, err := strconv.Atoi(path[len(strings.TrimRight(path, "0123456789")):])
	if err != nil {
		return -1
	}
	return minor
}
