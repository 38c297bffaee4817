package admission

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Adopts reports whether Decide could adopt a grant for the container: the operator vouches for
// what schedulers write, one has written about this container, and it names no grant and owns none.
// Decide needs View.Whole then.
func Adopts(r grant.Request, v grant.View, p grant.Policy) bool {
	if r.Sandbox {
		return false
	}
	c := newCase(r, v, grant.Inventory{}, p)
	return c.adopts()
}

func (c *asking) adopts() bool {
	return c.policy.Annotations.Trust == grant.Adopt && c.owned == nil && len(c.request.References) == 0 &&
		slices.ContainsFunc(c.request.Allocations, func(a grant.Allocation) bool { return a.Asks })
}

// adopt makes the allocation that a scheduler wrote the container's grant, if it passes the same
// checks as `gpuledger grant`. The grant has no id yet: whoever acts on the verdict enters it, in
// one critical section with the decision.
func (c *asking) adopt() {
	c.tried = true
	if len(c.findings) > 0 || len(c.view.Problems) > 0 || c.view.Whole == nil {
		return
	}
	ask := c.allocated()
	c.ownable(ask.Owner)
	c.withinPod(ask)
	if len(c.findings) > 0 {
		return
	}
	if why := ComputeUnkept(grant.Grant{Mode: ask.Mode, Owner: ask.Owner,
		GPUs: make([]grant.Share, ask.count())}, c.inventory, c.policy); ask.Compute > 0 && why != "" {
		c.tell(grant.LimitUnenforceable, c.source(), fmt.Sprintf("%d%% compute", ask.Compute),
			fmt.Sprintf("is allocated %d%% of a GPU's compute by %s: %s", ask.Compute,
				place(c.source()), why),
			"have it allocated in mode mps (gpuledger.dev/mode: mps), which keeps a share of compute, or "+
				"without one")
		return
	}
	shares, err := Place(ask, "", *c.view.Whole, c.inventory, c.policy)
	if err != nil {
		c.unplaced(ask, err)
		return
	}
	c.grant = &grant.Grant{Owner: ask.Owner, Label: ask.Label, Mode: ask.Mode, Strength: StrengthOf(ask.Mode),
		GPUs: shares, Compute: ask.Compute, Source: ask.Source}
	c.recorded = append(c.recorded, fmt.Sprintf("adopts %s in mode %s from %s", sharesOf(shares),
		ask.Mode, c.source()))
}

// allocated adds up what the allocations say. Each may say a part; what two of them say must be the
// same.
func (c *asking) allocated() Ask {
	id := c.request.Container.Pod
	ask := Ask{Owner: id.Owner(), Label: grant.Printable(id.Namespace + "/" + id.Pod), Source: grant.Adopted}
	for _, a := range c.request.Allocations {
		switch names := c.uuids(a.GPUs); {
		case names == nil:
		case ask.Names == nil:
			ask.Names = names
		case !slices.Equal(ask.Names, names):
			c.find(grant.AnnotationMismatch, a.Source, fmt.Sprintf("GPUs %v", a.GPUs))
		}
		if !say(&ask.Compute, a.Compute) {
			c.find(grant.AnnotationMismatch, a.Source, strconv.Itoa(a.Compute)+"% compute")
		}
		if !say(&ask.Mode, a.Mode) {
			c.find(grant.AnnotationMismatch, a.Source, "mode "+string(a.Mode))
		}
	}
	for _, a := range c.request.Allocations { // once it is known how many GPUs, and which
		if memory := c.memory(a, ask); !say(&ask.Memory, memory) {
			c.find(grant.AnnotationMismatch, a.Source, memory.String())
		}
	}
	if ask.Mode == "" {
		ask.Mode = grant.Limit
	}
	return ask
}

// say puts one statement beside those before it, the zero value being none, and reports whether
// they agree.
func say[T comparable](said *T, now T) bool {
	var nothing T
	if *said == nothing {
		*said = now
	}
	return now == nothing || now == *said
}

// uuids names GPUs so that two lists of them can be compared. One that the node does not have keeps
// its name.
func (c *asking) uuids(names []string) []string {
	var uuids []string
	for _, name := range names {
		if d, found := c.inventory.Device(name); found {
			name = d.UUID()
		}
		uuids = append(uuids, name)
	}
	slices.Sort(uuids)
	return uuids
}

// memory is what an allocation says of the whole size.
func (c *asking) memory(a grant.Allocation, ask Ask) grant.Bytes {
	if a.Units == 0 || len(ask.Names) == 0 {
		return a.Memory
	}
	return grant.Bytes(a.Units) * c.unit(a, ask.Names[0]) * grant.Bytes(len(ask.Names))
}

// unit is what gpushare counts in. The device plugin counts in GiB or in MiB and does not say
// which; the card's total does.
func (c *asking) unit(a grant.Allocation, name string) grant.Bytes {
	if gpu, found := c.inventory.Find(name); found && grant.Bytes(a.Total)*grant.GiB > 2*gpu.Memory {
		return grant.MiB
	}
	return grant.GiB
}

// ownable wants an identity that the engine vouches for: a grant that nobody owns could be used by
// nobody, and one without an owner's proof by everybody.
func (c *asking) ownable(owner grant.Owner) {
	if _, err := grant.ParseOwner(string(owner)); err != nil {
		c.tell(grant.GrantNotFound, c.source(), "", "carries "+place(c.source())+
			", but its engine vouches for no pod and container, so no grant can be adopted for it",
			"only pods' containers under containerd (1.6.11 and later) or CRI-O adopt; elsewhere present a "+
				"reference ("+grant.Docs+"requesting.md)")
		return
	}
	if i := slices.IndexFunc(c.view.Whole.Grants, func(g grant.Grant) bool {
		return g.Owner == owner && g.Live(c.view.Now)
	}); i >= 0 {
		c.find(grant.GrantInUse, "grant", string(c.view.Whole.Grants[i].ID))
	}
}

// withinPod holds a size that comes from the environment against the pod's annotation. An image can
// set the one and not the other: what a pod's containers adopt together stays within the pod's
// figure, whatever each of them claims.
func (c *asking) withinPod(ask Ask) {
	for _, a := range c.request.Allocations {
		if !a.InEnv || len(ask.Names) == 0 {
			continue
		}
		if a.PodUnits == 0 {
			c.tell(grant.AnnotationMismatch, a.Source, strconv.Itoa(a.Units),
				"says by its environment how much of a GPU is its own, and its pod has no readable "+
					"annotation that bounds it",
				"the scheduler writes the pod's sum (ALIYUN_COM_GPU_MEM_POD), and the engine must pass it on")
			continue
		}
		sum := ask.Memory
		for _, g := range c.view.Whole.Grants {
			if g.Source == grant.Adopted && g.Owner.Group() == ask.Owner.Group() && g.Live(c.view.Now) {
				sum += g.Memory()
			}
		}
		if bound := grant.Bytes(a.PodUnits) * c.unit(a, ask.Names[0]); sum > bound {
			c.tell(grant.AnnotationMismatch, a.Source, ask.Memory.String(),
				fmt.Sprintf("asks by its environment for %s, which with its pod's other containers is %s, "+
					"more than the pod's %s", ask.Memory, sum, bound),
				"a pod's containers share what the scheduler allocated to the pod; the size in the "+
					"environment is bounded by the pod's annotation")
		}
	}
}

// unplaced tells the tenant that there is no room. Who holds it stands in what is recorded, for the
// administrator.
func (c *asking) unplaced(ask Ask, err error) {
	c.recorded = append(c.recorded, "adopts nothing: "+err.Error())
	var refusal *grant.Refusal
	var missing *grant.NotFoundError
	switch {
	case errors.As(err, &refusal) && refusal.Code == grant.MPSNotReady:
		c.tell(refusal.Code, c.source(), ask.size(), "is allocated a GPU in mode mps by "+place(c.source())+
			", and this node cannot run MPS", "have it allocated in another mode, or on another node")
	case refusal != nil && sentences()[refusal.Code] != (sentence{}):
		c.find(refusal.Code, c.source(), ask.size())
	case refusal != nil: // the node's fault
		c.findings = append(c.findings, finding{Detail: grant.Detail{
			Vector: "node", Value: refusal.Message, Code: refusal.Code}, message: refusal.Message,
			hint: refusal.Hint})
	case errors.As(err, &missing):
		c.tell(grant.AnnotationMismatch, c.source(), strings.Join(ask.Names, ","),
			"is allocated GPUs that this node does not have, by "+place(c.source()),
			"the pod was scheduled for another node, or the inventory is older than its GPUs")
	default:
		c.tell(grant.AnnotationMalformed, c.source(), ask.size(), "is allocated by "+place(c.source())+
			" what can be no grant: "+strings.TrimPrefix(err.Error(), "cannot grant: "),
			"correct what writes the annotations")
	}
}

// size is what was asked for, as a tenant said it.
func (a Ask) size() string {
	if a.wholly() && a.Memory == 0 {
		return fmt.Sprintf("%d whole", a.count())
	}
	return fmt.Sprintf("%s over %d", a.Memory, a.count())
}

// source is the first statement that asks: the others are about the same.
func (c *asking) source() string {
	i := slices.IndexFunc(c.request.Allocations, func(a grant.Allocation) bool { return a.Asks })
	return c.request.Allocations[i].Source
}

// sharesOf writes shares as the command line does: 0:4GiB,1:4GiB.
func sharesOf(shares []grant.Share) string {
	parts := make([]string, len(shares))
	for i, s := range shares {
		parts[i] = s.Label()
	}
	return strings.Join(parts, ",")
}
