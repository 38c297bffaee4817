package node

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/containers"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// cgroups are the cgroups in which a container's processes may be.
type cgroups struct {
	possible []string // the paths of all cgroups that a runtime may choose, and the names of its units
	known    []string // those of the paths that can be read from here, so that their end is noticed
	// crowded: the cgroup cannot be the container's alone. It has processes already, which would
	// get the container's GPUs; or other containers' cgroups may be below it, which the grant's
	// device rules would close.
	crowded bool
}

// withCgroups returns the facts with the cgroups that the container may get. A cgroup that cannot
// be read from here is left out of known: later it could not be read either, to see whether it is
// empty.
func withCgroups(n *Node, f *createFacts) *createFacts {
	c := cgroups{possible: f.possibleCgroups()}
	for _, path := range c.possible {
		// Without a path in the spec these are guesses: an empty one does not mean that the
		// container has ended.
		if f.request.Cgroup == "" || isUnit(path) {
			continue
		}
		populated, err := containers.Populated(n.Host, path)
		if err == nil {
			c.known = append(c.known, path)
		}
		c.crowded = c.crowded || populated || isParent(path) || containers.HasBelow(n.Host, path)
	}
	more := *f
	more.cgroups = c
	return &more
}

// isParent reports whether engines or the kubelet make the cgroups of containers below this cgroup:
// it is a slice, or one of parents.
func isParent(path string) bool {
	return strings.HasSuffix(path, ".slice") || slices.Contains(parents, path)
}

// inParent reports whether the spec puts the container itself into such a parent. No grant may
// close a parent, even one that has no other containers now.
func (f *createFacts) inParent() bool {
	return f.Live == nil && f.request.Cgroup != "" && slices.ContainsFunc(f.possibleCgroups(),
		func(path string) bool { return !isUnit(path) && isParent(path) })
}

// parents are the cgroups other than slices below which engines and the kubelet make those of
// containers.
var parents = []string{"/", "/docker", "/buildkit", "/kubepods", "/kubepods/burstable",
	"/kubepods/besteffort", "/libpod_parent", "/crio", "/default", "/k8s.io", "/moby"}

// withOwnCgroup turns a decision that passes or binds into a refusal if the container would share
// its cgroup. No container may be created in the cgroup of a container with a GPU, or below it. In
// the same cgroup, it would get the GPU, or its own device rules would take the GPU away. In both
// places its processes would keep the grant in use.
//
// Two creates at the same time are found by storing first and checking then, as in Dekker's
// algorithm. A container without a GPU announces its create, and then looks for bindings. It need
// not announce it if its cgroup bears its own id. A container with a GPU is bound, and then looks
// for announcements. So at least one of the two finds the other.
func withOwnCgroup(n *Node, f *createFacts, d Decision) Decision {
	exempt := d.Kind == grant.Pass && admission.Exempt(f.pod(), n.Policy)
	bound := d.Kind == grant.Admit && d.Bound && f.Live == nil
	if exempt || d.Kind != grant.Pass && !bound {
		return d
	}
	refused := sharedWithOthers(n, f, d)
	if refused == nil {
		unit := takenUnit(n, f) // asked after the announcement: a create before it has made its unit by now
		if unit == "" {
			return d
		}
		refused = outsideCgroup(f, unit)
	}
	if bound {
		refused.Bound = n.Unbind(f.Container) != nil // NRI's plugin then tries again
	}
	return *refused
}

// sharedWithOthers is the refusal of a container that shares its cgroup, or of one with a GPU that
// may share it.
func sharedWithOthers(n *Node, f *createFacts, d Decision) *Decision {
	if d.Kind == grant.Pass {
		if sharesCgroup(n, f, true) {
			return sharedCgroup(f)
		}
		return nil
	}
	shared, err := sharedSince(n, f)
	switch {
	case shared:
		return sharedCgroup(f)
	case err != nil:
		return refusal(grant.LedgerUnreadable, "cannot see whether others are created in its cgroup: %v", err)
	}
	return nil
}

// sharesCgroup reports whether the container would be in the cgroup of a bound one, or below it; or
// above it, where its device rules would take the GPU away. It also reports a create of the same
// unit at the same time: one of the two would be outside its cgroup.
func sharesCgroup(n *Node, f *createFacts, announces bool) bool {
	possible, named := f.possibleCgroups(), f.namesItself()
	// An announcement ends with this process, which becomes the real runtime. With Reserve it is
	// gpuledgerd's, which outlives the create.
	if announces && !named && !f.Reserve {
		_ = n.Ledger.Creates.Announce(possible) // if it cannot be written, nothing can be bound either
		if f.Live == nil {
			// Where announcements cannot be read, a container without a GPU is not refused for it.
			if found, _ := n.Ledger.Creates.Announced(f.units()); found {
				return true
			}
		}
	}
	if !n.Ledger.Bindings.NameCgroups() {
		return false
	}
	if !announces { // the caller only asks, and may not know the root
		anywhere := *f
		anywhere.AnyRoot = true
		f = &anywhere
	}
	return n.Ledger.Bindings.Occupied(possible, f.isOwn, f.mayBeBelow) ||
		!named && n.Ledger.Bindings.OccupiedBelow(possible, f.isOwn)
}

// sharedSince reports whether another container came into the cgroup, or was about to, while this
// one was bound.
func sharedSince(n *Node, f *createFacts) (bool, error) {
	possible := f.possibleCgroups()
	if found, err := n.Ledger.Creates.Announced(possible); found || err != nil {
		return found, err
	}
	// Without a path these are guesses. To ask about each costs half a millisecond.
	return f.request.Cgroup != "" && slices.ContainsFunc(possible, func(path string) bool {
		if isUnit(path) {
			return false
		}
		populated, _ := containers.Populated(n.Host, path)
		return populated
	}), nil
}

// takenUnit names the systemd unit that the container cannot have: one that exists, or a slice,
// which takes no processes. runc up to 1.1.5 then leaves the container in its own cgroup, on cgroup
// v2 without device rules. Newer ones fail, and stop the unit (docs/adr/0083). A unit that has
// failed, as one whose container ran out of memory, stays until it is reset. It is reset here, as
// newer runtimes do.
func takenUnit(n *Node, f *createFacts) string {
	if f.Live != nil { // it has the unit
		return ""
	}
	for _, unit := range f.units() {
		slice := strings.HasSuffix(unit, ".slice")
		switch {
		case !slice && !host.UnitExists(unit), !f.finder.Cards(): // on a node without a GPU nothing is lost
		case slice, n.Mode() != grant.Enforce, !host.ResetFailed(unit):
			return unit
		}
	}
	return ""
}

// takenSlice names the slice that the container would have as its unit, which takenUnit refuses,
// too. It depends on the spec alone.
func takenSlice(f *createFacts) string {
	isSlice := func(unit string) bool { return strings.HasSuffix(unit, ".slice") }
	if i := slices.IndexFunc(f.units(), isSlice); f.Live == nil && i >= 0 && f.finder.Cards() {
		return f.units()[i]
	}
	return ""
}

func outsideCgroup(f *createFacts, unit string) *Decision {
	r := refusal(grant.RulesNotEnforced, "container %q would run outside its cgroup, where its device "+
		"rules have no effect: the systemd unit %s is there already",
		f.Container.Name(), grant.Printable(unit))
	r.Hint = "`systemctl status` shows whose it is; leave linux.cgroupsPath to the engine"
	return r
}

func sharedCgroup(f *createFacts) *Decision {
	r := refusal(grant.InjectionImpossible,
		"container %q would share the cgroup %s, and by that GPUs, with others",
		f.Container.Name(), grant.Printable(cmp.Or(f.request.Cgroup, f.Container.ID)))
	r.Hint = "engines give each container a cgroup of its own, with no other container's below it; leave " +
		"linux.cgroupsPath to them, or wait until its processes have ended"
	return r
}

func (f *createFacts) possibleCgroups() []string {
	return possibleCgroups(f.request.Cgroup, f.Container.ID, f.finder.Host.Proc)
}

func (f *createFacts) units() []string { return possibleUnits(f.request.Cgroup, f.Container.ID) }

// namesItself reports whether the container's cgroup is named after its own id, as engines name it.
// Nearly all creates are so. They are not announced: a container of another id that uses a cgroup
// of this name is not named after its own id, so it is announced.
func (f *createFacts) namesItself() bool {
	return namedFor(cmp.Or(f.request.Cgroup, f.Container.ID)) == f.Container.ID
}

// mayBeBelow reports whether this container's cgroup can lie below path without harm, where path is
// a cgroup that the container of the binding b may have. It can in two cases. First: the spec of
// b's container named no cgroup, so path is only a guess. Second: path does not end with the id of
// b's container, and this container's cgroup is named after its own id. Then engines may use path
// as a parent, and no grant closes a parent.
func (f *createFacts) mayBeBelow(b grant.Binding, path string) bool {
	return b.Unplaced || f.namesItself() && !bears(path, b.Container)
}
