// Package admission decides with values. Decide judges a container, Place chooses GPUs for a new
// grant. Neither reads a file, a clock or the system: what they need to know comes in as arguments,
// so every case is a table row in a test.
package admission

import (
	"fmt"
	"path"
	"slices"
	"strings"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Decide says what becomes of a container that asks for r, on a node with this inventory and
// policy, whose ledger shows v. The view needs to hold the grants that the container owns or names,
// no others.
func Decide(r grant.Request, v grant.View, inv grant.Inventory, p grant.Policy) grant.Verdict {
	return new(Judge).Decide(r, v, inv, p)
}

// Judge decides several times about one container, with one inventory and one policy: before its
// spec is edited, after, and both once more with the ledger locked. What is most of the work, it
// does once. It is for one goroutine.
type Judge struct{ files plannedFiles }

// Decide is what the function of the same name says, too.
func (j *Judge) Decide(r grant.Request, v grant.View, inv grant.Inventory, p grant.Policy) grant.Verdict {
	c := newCase(r, v, inv, p)
	c.planned = &j.files
	switch {
	case !c.asks():
		return c.pass()
	case c.onlyUnclosed():
		return c.closed()
	case r.Sandbox:
		return c.ungranted() // it has no grant
	case c.exempt() && !c.claims():
		return c.pass("exempt from grants by policy")
	}
	c.findGrant()
	if c.adopts() {
		c.adopt()
	}
	if c.grant == nil {
		return c.ungranted()
	}
	return c.granted()
}

// asking is one decision in the making.
type asking struct {
	request   grant.Request
	view      grant.View
	inventory grant.Inventory
	policy    grant.Policy

	planned  *plannedFiles // nil: nothing is kept
	owned    *grant.Grant  // by the container's identity
	files    []*cdispec.Mount
	held     bool         // to the memory of its grant, by the shim
	grant    *grant.Grant // the one that all references agree on
	tried    bool         // to adopt one
	late     bool         // it may be a pod of the grant's of which the ledger has not been told yet
	parts    parts        // what devices and gpus give
	findings []finding
	removed  []grant.Removal
	removes  map[grant.Removal]bool // the same, to look up: a spec can have many
	recorded []string
}

// parts are a grant's as the inventory knows them.
type parts struct {
	devices []grant.Device
	gpus    []grant.GPU
}

// finding is a reason to refuse.
type finding struct {
	grant.Detail
	message, hint string
}

func newCase(r grant.Request, v grant.View, inv grant.Inventory, p grant.Policy) asking {
	c := asking{request: r, view: v, inventory: inv, policy: p}
	if owner := r.Container.Pod.Owner(); owner != "" {
		i := slices.IndexFunc(v.Grants, func(g grant.Grant) bool { return g.Owner == owner })
		if i >= 0 {
			c.owned = &v.Grants[i]
		}
	}
	return c
}

// asks reports whether the container wants a GPU at all. A pod's sandbox does not by its
// environment, annotations, or references: engines copy those there. But the key that makes it one
// can be anybody's where containerd serves others than the kubelet, so what no engine writes into a
// sandbox counts.
func (c *asking) asks() bool {
	if c.request.Sandbox {
		return slices.ContainsFunc(c.request.Hits, c.inSandbox)
	}
	return len(c.request.Hits) > 0 || c.claims()
}

// inSandbox reports whether a hit is of a kind that no engine writes into a sandbox. containerd and
// CRI-O give it one device rule, which denies all, whatever its pod is; what else opens a device
// there opens it to the containers that share its pid namespace.
func (c *asking) inSandbox(h grant.Hit) bool {
	switch h.Code {
	case grant.VisibleDevicesAll, grant.VisibleDevicesOutsideGrant, grant.GPUEnv, grant.CDIDeviceOutsideGrant:
		return false
	}
	return true
}

// claims reports whether the container says that a grant or an allocation is its own, or owns one
// by identity.
func (c *asking) claims() bool {
	return c.owned != nil ||
		slices.ContainsFunc(c.request.References, func(m grant.Mention) bool { return m.Asks }) ||
		slices.ContainsFunc(c.request.Allocations, func(a grant.Allocation) bool { return a.Asks })
}

// exempt reports whether policy lets the container pass without a grant. That takes an identity
// which the engine vouches for.
func (c *asking) exempt() bool { return Exempt(c.request.Container.Pod, c.policy) }

// Exempt reports whether policy lets a container of this identity use GPUs without a grant.
func Exempt(id grant.Identity, p grant.Policy) bool {
	if id == (grant.Identity{}) {
		return false
	}
	return slices.ContainsFunc(p.Rules.Exempt, func(e grant.Exemption) bool {
		return glob(e.Namespace, id.Namespace) && glob(e.Pod, id.Pod) && glob(e.Container, id.Container)
	})
}

func glob(pattern, name string) bool {
	if pattern == "" {
		return true
	}
	matched, _ := path.Match(pattern, name)
	return matched
}

// pass lets the container start as it is. What is worth knowing about it is recorded.
func (c *asking) pass(recorded ...string) grant.Verdict {
	v := grant.Verdict{Kind: grant.Pass, Recorded: append(recorded, c.noted()...),
		Strength: grant.StrengthNone}
	if c.request.Sandbox && len(c.request.Hits) > 0 {
		v.Recorded = append(v.Recorded, "a sandbox with a way to a GPU: "+c.request.Hits[0].Vector)
	}
	for _, d := range c.view.Damaged {
		if c.owns(d) {
			v.Recorded = append(v.Recorded, "without the GPUs of its grant "+string(d.ID)+
				", whose entry in the ledger is damaged")
		}
	}
	if owner := c.request.Container.Pod.Owner(); owner != "" {
		for _, p := range c.view.Problems {
			if p.Code == grant.LedgerUnreadable {
				v.Recorded = append(v.Recorded, "without the GPUs that it may own: "+p.Message)
			}
		}
	}
	return v
}

// noted says by what the container is as good as root on the node, and what else was noticed.
func (c *asking) noted() []string {
	var ways []string
	for _, way := range c.request.NodeRoot {
		ways = append(ways, "node-root by "+grant.Printable(way))
	}
	for _, note := range c.request.Noted {
		ways = append(ways, grant.Printable(note))
	}
	return ways
}

// owns reports whether a damaged entry is the one that the container owns: the view holds no others
// but those that its references name.
func (c *asking) owns(d grant.Damage) bool {
	return c.request.Container.Pod.Owner() != "" &&
		!slices.ContainsFunc(c.request.References, func(m grant.Mention) bool { return m.ID == d.ID })
}

// find adds a reason to refuse; the details of all reach the user, the text of the weightiest.
// Vector and value are the tenant's own words: they reach terminals and logs.
func (c *asking) find(code grant.Code, vector, value string) {
	vector, value = grant.Printable(vector), grant.Printable(value)
	message, hint := c.text(code, vector, value)
	c.findings = append(c.findings, finding{Detail: grant.Detail{Vector: vector, Value: value, Code: code},
		message: message, hint: hint})
}

// tell adds a reason that its code's usual sentence would not explain.
func (c *asking) tell(code grant.Code, vector, value, message, hint string) {
	vector, value = grant.Printable(vector), grant.Printable(value)
	c.findings = append(c.findings, finding{Detail: grant.Detail{Vector: vector, Value: value, Code: code},
		message: c.subject() + " " + message, hint: hint})
}

// ungranted judges a container that no grant covers: it is refused for everything that it reaches,
// or where policy says so starts without it.
func (c *asking) ungranted() grant.Verdict {
	c.ruled()
	for _, h := range c.request.Hits {
		c.find(h.Code, h.Vector, h.Value)
	}
	if v, ok := c.takenAway(); ok {
		return v
	}
	for _, a := range c.request.Allocations {
		if a.Asks && a.Malformed == "" && !c.tried && !c.request.Sandbox {
			c.tell(grant.GrantNotFound, a.Source, "",
				fmt.Sprintf("says by %s what its share of a GPU is, but holds no grant", place(a.Source)),
				hintAllocation)
		}
	}
	return c.refuse()
}

// takenAway is the verdict where policy hides and strips all that an ungranted container reaches.
// One that names a grant means to use it: it hears that it cannot.
func (c *asking) takenAway() (grant.Verdict, bool) {
	if c.request.Sandbox || len(c.request.References) > 0 || c.claims() {
		return grant.Verdict{}, false
	}
	v := c.pass()
	hidden, stripped := false, false
	for _, h := range c.request.Hits {
		switch {
		case c.policy.Rules.Ungranted == grant.Hide && isEnv(h):
			hidden = true
		case c.policy.Rules.Privileged == grant.Strip && h.Code == grant.PrivilegedGPU:
			stripped = true
			v.Narrow = v.Narrow || h.Cover == grant.CoverNarrow
		default:
			return grant.Verdict{}, false
		}
		c.remove(h.Removal)
	}
	v.Removed = c.removed
	if hidden {
		v.Edits.Env = []string{visibleDevices + "=void"}
		v.Recorded = append(v.Recorded, "GPUs hidden by policy")
	}
	if v.Narrow { // the rules are replaced as a whole
		v.Removed = slices.DeleteFunc(v.Removed, func(r grant.Removal) bool {
			return r.Kind == grant.RemoveRule
		})
	}
	if c.request.AllDevices {
		v.Rules = Confined(c.request.Devices)
	}
	if stripped {
		v.Recorded = append(v.Recorded, "GPUs stripped from a privileged container by policy")
	}
	return v, true
}

// isEnv reports whether a hit is a variable that injectors obey. That of a client of MPS is none:
// what it leads to is mounted, and stays so when the variable is hidden.
func isEnv(h grant.Hit) bool {
	return strings.HasPrefix(h.Vector, "env:") && h.Code != grant.GPUSocket
}

// onlyUnclosed reports whether nothing but the lack of a rule that denies all lets the container
// reach GPUs, as Podman writes it for whoever wants a user namespace: it asks for none
// (docs/adr/0024).
func (c *asking) onlyUnclosed() bool {
	return c.request.Unclosed && (c.request.Sandbox || !c.claims()) &&
		!slices.ContainsFunc(c.request.Hits, func(h grant.Hit) bool { return !isUnclosed(h) })
}

// isUnclosed reports whether a hit is gone with that lack: the lack itself, and a mount above GPUs'
// nodes, which counts only where a rule lets them be opened.
func isUnclosed(h grant.Hit) bool {
	return h.Cover == grant.CoverNarrow || h.Code == grant.GPUBindMount && h.Cover == grant.CoverDrop &&
		h.Node.Class == ""
}

// closed lets it start with its own device rules behind one that denies all, whatever the policy:
// runtimes add the usual devices of a container to such a list.
func (c *asking) closed() grant.Verdict {
	v := c.pass("device rules closed: " + c.request.Hits[0].Value)
	v.Narrow, v.Rules = true, c.request.Rules
	return v
}

// ruled finds that no device rule holds where the container's runtime runs.
func (c *asking) ruled() {
	if c.request.Unruled {
		c.find(grant.RulesNotEnforced, "node", "its runtime does not run as root of the node")
	}
}

// refuse turns the findings into a verdict: the first by the order of codes gives the text, all are
// listed. What keeps the node from telling is a finding too.
func (c *asking) refuse() grant.Verdict {
	for _, p := range c.view.Problems {
		c.findings = append(c.findings, finding{Detail: grant.Detail{
			Vector: "node", Value: p.Message, Code: p.Code}, message: p.Message, hint: p.Hint})
	}
	slices.SortStableFunc(c.findings, func(a, b finding) int { return a.Code.Rank() - b.Code.Rank() })
	v := grant.Verdict{Kind: grant.Refused, Grant: c.grant, Strength: grant.StrengthNone,
		Recorded: c.recorded}
	for _, f := range c.findings {
		v.Details = append(v.Details, f.Detail)
	}
	first := c.findings[0]
	v.Code, v.Message, v.Hint = first.Code, first.message, first.hint
	v.Late = c.late && first.Code == grant.GrantOwnerMismatch
	return v
}
