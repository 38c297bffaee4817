package admission

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// The hints about allocations that cannot be adopted.
const (
	hintAdopters = "only pods' containers under containerd (1.6.11 and later) or CRI-O adopt; " +
		"elsewhere present a reference (" + requesting + ")"
	hintPlaced = "the pod was placed past gpuledger's scheduler: give it that schedulerName (" + grant.Docs +
		"kubernetes-scheduler.md)"
	hintAdopting = "an administrator sets annotations.trust = \"adopt\" on this node (" + grant.Docs +
		"kubernetes-scheduler.md)"
	hintAdoptedCompute = "have it allocated in mode mps (gpuledger.dev/mode: mps), " +
		"which keeps a share of compute, or without one"
	hintPodSum = "the scheduler writes the pod's sum (ALIYUN_COM_GPU_MEM_POD), " +
		"and the engine must pass it on"
	hintPodShares = "a pod's containers share what the scheduler allocated to the pod; " +
		"the size in the environment is bounded by the pod's annotation"
)

// Adopts reports whether Decide could adopt a grant for the container. If so, Decide needs
// View.Whole.
func Adopts(r grant.Request, v grant.View, p grant.Policy) bool {
	return !r.Sandbox && adopts(&question{request: r, view: v, policy: p})
}

// adopts reports whether the container's create may enter a grant for it.
func adopts(q *question) bool { return entersAs(q) != "" }

// entersAs returns the source of the grant that the container's create may enter: grant.Adopted if
// the operator guarantees that only schedulers write the allocations, else grant.Asked if the
// policy lets the container ask. It is "" if no allocation names this container, or if the
// container names or owns a grant.
func entersAs(q *question) string {
	if len(q.request.References) > 0 || ownedGrant(q) != nil {
		return ""
	}
	for _, source := range [...]string{grant.Adopted, grant.Asked} {
		if slices.ContainsFunc(q.request.Allocations,
			func(a grant.Allocation) bool { return a.Asks && counts(a, source) }) && enters(q, source) {
			return source
		}
	}
	return ""
}

// counts reports whether an allocation is part of a grant from a source. A scheduler writes no
// variables, and what a container asks for is in gpuledger's own words.
func counts(a grant.Allocation, source string) bool {
	if source == grant.Asked {
		return a.Own
	}
	return !a.Env
}

// enters reports whether the policy makes grants from a source.
func enters(q *question, source string) bool {
	if source == grant.Asked {
		return q.request.MustAdopt == "" && slices.Contains(q.policy.Asks.Engines, q.request.Container.Engine)
	}
	return q.policy.Annotations.Trust == grant.Adopt && !asksInstead(q)
}

// asksInstead reports whether a container can only ask for what its annotations state: without an
// identity of a pod nothing is adopted, and containers of this node may ask.
func asksInstead(q *question) bool {
	return q.request.Container.Pod.Owner() == "" && q.request.MustAdopt == "" &&
		len(q.policy.Asks.Engines) > 0 && slices.ContainsFunc(q.request.Allocations,
		func(a grant.Allocation) bool { return a.Asks && counts(a, grant.Asked) })
}

// adoptGrant makes the allocation that a scheduler wrote the container's grant, if it passes the
// same checks as `gpuledger grant`. The grant has no id yet: the caller enters it into the ledger,
// in the critical section of the decision.
func adoptGrant(q *question) (adopted resolution) {
	if len(q.view.Problems) > 0 || q.view.Whole == nil {
		return resolution{}
	}
	ask, found := askOf(q)
	found = slices.Concat(found, checkOwner(q, ask), checkPodSum(q, ask), checkAsked(q, ask))
	if len(found) > 0 {
		adopted.found = found
		return adopted
	}
	source := allocationSource(q)
	if why := whyNoComputeShare(ask, q.inventory, q.policy); ask.Compute > 0 && why != "" {
		share := strconv.Itoa(ask.Compute) + "%"
		adopted.found.explain(grant.LimitUnenforceable, source, share+" compute",
			fmt.Sprintf("is allocated %s of a GPU's compute by %s: %s", share, vectorName(source), why),
			hintAdoptedCompute)
		return adopted
	}
	shares, err := Place(ask, "", *q.view.Whole, q.inventory, q.policy)
	if err != nil { // the error names holders, so only the audit log gets it
		if ask.Source == grant.Asked {
			adopted.found.notGranted(q, source, err)
			return adopted
		}
		adopted.recorded = []string{"adopts nothing: " + err.Error()}
		adopted.found.notPlaced(source, ask, err)
		return adopted
	}
	given := grant.Grant{Owner: ask.Owner, Label: ask.Label, Mode: ask.Mode,
		Strength: StrengthOf(ask.Mode), GPUs: shares, Compute: ask.Compute, Source: ask.Source}
	if adopted.found = checkGiven(q, given); len(adopted.found) > 0 {
		return adopted
	}
	adopted.grant = &given
	verb := "adopts"
	if ask.Source == grant.Asked {
		verb = "is granted"
	}
	adopted.recorded = []string{
		fmt.Sprintf("%s %s in mode %s from %s", verb, labelsOf(shares), ask.Mode, source)}
	return adopted
}

// askOf combines the allocations of the container. Each may state a part. If two state the same
// part, they must agree.
func askOf(q *question) (ask Ask, found findings) {
	ask = askBy(q, entersAs(q))
	for _, a := range q.request.Allocations {
		if !counts(a, ask.Source) {
			continue
		}
		switch names := namesIn(&q.inventory, a); {
		case names == nil:
		case a.Number && ask.Source == grant.Asked:
			if ask.GPUs, _ = strconv.Atoi(a.GPUs[0]); ask.GPUs == 0 {
				found.add(grant.AnnotationMalformed, a.Source, "a container asks for 1 GPU or more, not 0")
			}
		case ask.Names == nil:
			ask.Names = names
		case !slices.Equal(ask.Names, names):
			found.add(grant.AnnotationMismatch, a.Source, fmt.Sprintf("GPUs %v", a.GPUs))
		}
		if !merge(&ask.Compute, a.Compute) {
			found.add(grant.AnnotationMismatch, a.Source, strconv.Itoa(a.Compute)+"% compute")
		}
		if !merge(&ask.Mode, a.Mode) {
			found.add(grant.AnnotationMismatch, a.Source, "mode "+string(a.Mode))
		}
	}
	for _, a := range q.request.Allocations { // units need the GPUs, which are known now
		if !counts(a, ask.Source) {
			continue
		}
		if memory := memoryOf(&q.inventory, a, ask); !merge(&ask.Memory, memory) {
			found.add(grant.AnnotationMismatch, a.Source, memory.String())
		}
	}
	wholeOf(&ask, q)
	switch {
	case ask.Mode != "":
	case ask.Source == grant.Asked:
		ask.Mode = q.policy.Asks.Mode
	default:
		ask.Mode = grant.Limit
	}
	return ask, found
}

// namesIn returns the GPUs that an allocation names; nil if it leaves that open.
func namesIn(inv *grant.Inventory, a grant.Allocation) (names []string) {
	if a.Named && slices.Contains(a.GPUs, allOf) {
		return nil
	}
	for _, minor := range a.Minors {
		i := slices.IndexFunc(inv.GPUs, func(g grant.GPU) bool { return g.Minor == minor })
		if i < 0 {
			names = append(names, fmt.Sprintf("/dev/nvidia%d", minor))
			continue
		}
		names = append(names, inv.GPUs[i].UUID)
	}
	return append(names, sortedUUIDs(inv, a.GPUs)...)
}

// askBy returns an ask from a source, without sizes. A grant that its container asks for needs no
// owner: no container gets its secret, and it ends with the container.
func askBy(q *question, source string) Ask {
	id := q.request.Container.Pod
	if source == grant.Asked {
		return Ask{Owner: grant.Bearer, Label: shortName(q.request.Container), Source: source,
			Part: q.policy.Asks.Total}
	}
	return Ask{Owner: id.Owner(), Label: grant.Printable(id.Namespace + "/" + id.Pod), Source: source}
}

// shortName names a container as engines list it: an id that an engine made up by its first 12
// digits.
func shortName(c grant.Container) string {
	name := grant.Printable(c.Name())
	if name == c.ID && len(name) == 64 && strings.Trim(name, "0123456789abcdef") == "" {
		return name[:12]
	}
	return name
}

// merge sets a value that is not set yet, and reports whether it agrees with the one before. The
// zero value states nothing.
func merge[T comparable](stated *T, next T) bool {
	var nothing T
	if *stated == nothing {
		*stated = next
	}
	return next == nothing || next == *stated
}

// sortedUUIDs returns the UUIDs of GPUs, so that two lists can be compared. A GPU that the node
// does not have keeps its name.
func sortedUUIDs(inv *grant.Inventory, names []string) []string {
	var uuids []string
	for _, name := range names {
		if d, known := inv.Device(name); known {
			name = d.UUID()
		}
		uuids = append(uuids, name)
	}
	slices.Sort(uuids)
	return uuids
}

// memoryOf returns what an allocation states about the memory on all GPUs.
func memoryOf(inv *grant.Inventory, a grant.Allocation, ask Ask) grant.Bytes {
	if a.Units == 0 || len(ask.Names) == 0 {
		return a.Memory
	}
	return grant.Bytes(a.Units) * unitOf(inv, a, ask.Names[0]) * grant.Bytes(len(ask.Names))
}

// unitOf returns the unit in which gpushare counts memory. Its device plugin counts in GiB or MiB
// without stating which, but it states the total of the card.
func unitOf(inv *grant.Inventory, a grant.Allocation, gpu string) grant.Bytes {
	if known, found := inv.Find(gpu); found && grant.Bytes(a.Total)*grant.GiB > 2*known.Memory {
		return grant.MiB
	}
	return grant.GiB
}

// checkOwner finds that the engine proves no identity, or that the owner has a grant already.
// No container could use a grant without an owner, and any container could use a grant whose owner
// need not be proven.
func checkOwner(q *question, ask Ask) (found findings) {
	owner := ask.Owner
	if owner == grant.Bearer {
		return nil
	}
	if _, err := grant.ParseOwner(string(owner)); err != nil {
		source := allocationSource(q)
		found.explain(grant.GrantNotFound, source, "",
			"carries "+vectorName(source)+", but its engine proves no pod and container, "+
				"so no grant can be adopted for it", hintAdopters)
		return found
	}
	for _, g := range q.view.Whole.Grants {
		if g.Owner == owner && g.Live(q.view.Now) {
			found.add(grant.GrantInUse, "grant", string(g.ID))
			break
		}
	}
	return found
}

// checkPodSum compares a size from the environment with the pod's annotation. An image can set the
// one, but not the other. All that a pod's containers adopt stays within the number of the pod,
// whatever each of them claims.
func checkPodSum(q *question, ask Ask) (found findings) {
	for _, a := range q.request.Allocations {
		if !a.InEnv || len(ask.Names) == 0 {
			continue
		}
		if a.PodUnits == 0 {
			found.explain(grant.AnnotationMismatch, a.Source, strconv.Itoa(a.Units),
				"says by its environment how much of a GPU is its own, "+
					"and its pod has no readable annotation that bounds it", hintPodSum)
			continue
		}
		sum := ask.Memory + adoptedMemory(q, ask.Owner)
		bound := grant.Bytes(a.PodUnits) * unitOf(&q.inventory, a, ask.Names[0])
		if sum > bound {
			found.explain(grant.AnnotationMismatch, a.Source, ask.Memory.String(),
				fmt.Sprintf("asks by its environment for %s, which with its pod's other containers is %s, "+
					"more than the pod's %s", ask.Memory, sum, bound), hintPodShares)
		}
	}
	return found
}

// adoptedMemory returns what the other containers of an owner's pod have adopted.
func adoptedMemory(q *question, owner grant.Owner) grant.Bytes {
	var sum grant.Bytes
	for _, g := range q.view.Whole.Grants {
		if g.Source == grant.Adopted && g.Owner.Group() == owner.Group() && g.Live(q.view.Now) {
			sum += g.Memory()
		}
	}
	return sum
}

// notPlaced adds that the allocation has no room. It does not name the holders of other grants.
func (f *findings) notPlaced(source string, ask Ask, err error) {
	var refusal *grant.Refusal
	var missing *grant.NotFoundError
	switch {
	case errors.As(err, &refusal) && refusal.Code == grant.MPSNotReady:
		f.explain(refusal.Code, source, ask.size(),
			"is allocated a GPU in mode mps by "+vectorName(source)+", and this node cannot run MPS",
			"have it allocated in another mode, or on another node")
	case refusal != nil && sentences()[refusal.Code] != (sentence{}):
		f.add(refusal.Code, source, ask.size())
	case refusal != nil:
		f.onNode(refusal.Code, refusal.Message, refusal.Hint)
	case errors.As(err, &missing):
		f.explain(grant.AnnotationMismatch, source, strings.Join(ask.Names, ","),
			"is allocated GPUs that this node does not have, by "+vectorName(source),
			"the pod was scheduled for another node, or the inventory is older than its GPUs")
	default:
		f.explain(grant.AnnotationMalformed, source, ask.size(), "is allocated by "+vectorName(source)+
			" what can be no grant: "+strings.TrimPrefix(err.Error(), "cannot grant: "),
			"correct what writes the annotations")
	}
}

// allocationSource returns the source of the first allocation that asks. The others are about the
// same.
func allocationSource(q *question) string { return allocationBy(q).Source }

func allocationBy(q *question) grant.Allocation {
	by := entersAs(q)
	i := slices.IndexFunc(q.request.Allocations,
		func(a grant.Allocation) bool { return a.Asks && counts(a, by) })
	return q.request.Allocations[i]
}

// labelsOf writes shares as the command line does: 0:4GiB,1:4GiB.
func labelsOf(shares []grant.Share) string {
	labels := make([]string, len(shares))
	for i, s := range shares {
		labels[i] = s.Label()
	}
	return strings.Join(labels, ",")
}
