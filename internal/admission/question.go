package admission

import (
	"path"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// question is everything that a decision depends on. It does not change while it is decided.
type question struct {
	request   grant.Request
	view      grant.View
	inventory grant.Inventory
	policy    grant.Policy
}

// ownedGrant returns the grant that the container owns by its identity or has asked for, or nil.
func ownedGrant(q *question) *grant.Grant {
	if q.view.Asked != "" {
		return grantByID(q.view.Grants, q.view.Asked)
	}
	owner := q.request.Container.Pod.Owner()
	if owner == "" {
		return nil
	}
	for i := range q.view.Grants {
		if q.view.Grants[i].Owner == owner {
			return &q.view.Grants[i]
		}
	}
	return nil
}

// Asks reports whether a container asks for a GPU at all. If not, Decide needs no inventory.
func Asks(r grant.Request, v grant.View) bool {
	return asksForGPU(&question{request: r, view: v})
}

// asksForGPU reports whether the container asks for a GPU at all. The environment, the annotations
// and the references of a pod's sandbox do not count: engines copy them there. What no engine
// writes into a sandbox counts, because the key that makes a container a sandbox is not always
// trusted: if containerd serves other clients than the kubelet, any of them can set it.
func asksForGPU(q *question) bool {
	return len(countingHits(q)) > 0 || !q.request.Sandbox && claimsGrant(q)
}

// countingHits returns the hits that a verdict is about: of a sandbox those that count there.
func countingHits(q *question) []grant.Hit {
	if !q.request.Sandbox {
		return q.request.Hits
	}
	var hits []grant.Hit
	for _, h := range q.request.Hits {
		if countsInSandbox(h) {
			hits = append(hits, h)
		}
	}
	return hits
}

// countsInSandbox reports whether no engine writes a hit of this kind into a sandbox. containerd
// and CRI-O give every sandbox one device rule, which denies all. Another rule there opens devices
// for all containers that share the sandbox's pid namespace.
func countsInSandbox(h grant.Hit) bool {
	switch h.Code {
	case grant.VisibleDevicesAll, grant.VisibleDevicesOutsideGrant, grant.GPUEnv, grant.CDIDeviceOutsideGrant:
		return false
	}
	return true
}

// claimsGrant reports whether the container owns a grant by its identity, or says that a grant or
// an allocation is its own, or that it must adopt one.
func claimsGrant(q *question) bool {
	return ownedGrant(q) != nil || q.request.MustAdopt != "" ||
		slices.ContainsFunc(q.request.References, func(m grant.Mention) bool { return m.Asks }) ||
		slices.ContainsFunc(q.request.Allocations, asksByAllocation)
}

func asksByAllocation(a grant.Allocation) bool { return a.Asks }

// Exempt reports whether the policy lets a container of this identity use GPUs without a grant. An
// identity is set only if the engine proves it.
func Exempt(id grant.Identity, p grant.Policy) bool {
	if id == (grant.Identity{}) {
		return false
	}
	for _, e := range p.Rules.Exempt {
		if matches(e.Namespace, id.Namespace) && matches(e.Pod, id.Pod) &&
			matches(e.Container, id.Container) {
			return true
		}
	}
	return false
}

// matches reports whether a name matches a glob. An empty glob matches every name.
func matches(pattern, name string) bool {
	if pattern == "" {
		return true
	}
	matched, _ := path.Match(pattern, name)
	return matched
}

// onlyUnclosed reports whether the container reaches GPUs only because no device rule denies all.
// Podman writes such rules for every container with a user namespace, so the container does not ask
// for a GPU (docs/adr/0024).
func onlyUnclosed(q *question) bool {
	return q.request.Unclosed && (q.request.Sandbox || !claimsGrant(q)) &&
		!slices.ContainsFunc(countingHits(q), func(h grant.Hit) bool { return !isUnclosed(h) })
}

// isUnclosed reports whether a hit disappears once a rule denies all: the missing rule itself, and
// a mount of a parent of GPU nodes, which counts only if a rule lets them be opened.
func isUnclosed(h grant.Hit) bool {
	return h.Cover == grant.CoverNarrow ||
		h.Code == grant.GPUBindMount && h.Cover == grant.CoverDrop && h.Node.Class == ""
}

// isOwnDamage reports whether a damaged entry is the grant that the container owns. The view has no
// other damaged entries than that and those that the references name.
func isOwnDamage(q *question, d grant.Damage) bool {
	return q.request.Container.Pod.Owner() != "" &&
		!slices.ContainsFunc(q.request.References, func(m grant.Mention) bool { return m.ID == d.ID })
}
