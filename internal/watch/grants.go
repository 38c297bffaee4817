package watch

import (
	"path"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// roll tells which grant the processes of a cgroup have, by the bindings of the ledger.
type cgroupGrants map[string]boundGrant // by cgroup

type boundGrant struct {
	grant   *grant.Grant
	binding *grant.Binding
}

// rollOf lists the cgroups of every container with a grant: those that its spec named, and the one that its first process is in.
func cgroupGrantsOf(grants []grant.Grant, people map[int]ProcessInfo) cgroupGrants {
	r := cgroupGrants{}
	for i := range grants {
		g := &grants[i]
		for j := range g.Bindings {
			b := &g.Bindings[j]
			for _, cgroup := range b.Cgroups {
				r.add(cgroup, boundGrant{g, b})
			}
			if init, known := people[b.PID]; known && b.PID > 0 && isNamedAfter(init.Cgroup, b.Container) {
				r.add(init.Cgroup, boundGrant{g, b})
			}
		}
	}
	return r
}

func (r cgroupGrants) add(cgroup string, b boundGrant) {
	if cgroup = clean(cgroup); cgroup != "/" { // everybody's
		r[cgroup] = b
	}
}

// clean is a path from the root of the hierarchy. As the kernel and most engines write them they are so.
func clean(cgroup string) string {
	if strings.HasPrefix(cgroup, "/") && !strings.HasSuffix(cgroup, "/") && !strings.Contains(cgroup, "//") && !strings.Contains(cgroup, "/.") {
		return cgroup
	}
	return path.Clean("/" + cgroup)
}

// isOwn reports whether a cgroup was made for the container: one without a cgroup of its own is in somebody else's.
func isNamedAfter(cgroup, container string) bool {
	return container != "" && strings.Contains(path.Base(cgroup), container)
}

// find goes up from a cgroup to the first that a grant's container has.
func (r cgroupGrants) find(cgroup string) (b boundGrant, own string, found bool) {
	for at := clean(cgroup); len(at) > 1; at = at[:strings.LastIndexByte(at, '/')] {
		if b, found := r[at]; found {
			return b, at, true
		}
	}
	return boundGrant{}, "", false
}

// userOf is who a process is: the container of a grant, a container that nothing was granted to, or the node's own process.
func (r cgroupGrants) userOf(p ProcessInfo) (grant.User, *grant.Grant) {
	u := grant.User{Command: p.Command, Processes: []grant.Process{p.Process}}
	if b, own, found := r.find(p.Cgroup); found {
		u.Container, u.Pod, u.Cgroup = b.binding.Container, b.binding.Pod, own
		return u, b.grant
	}
	place := ParseCgroup(p.Cgroup)
	u.Container, u.Engine, u.Cgroup, u.Pod.UID = place.Container, place.Engine, place.Cgroup, place.Pod
	if u.Container == "" && p.Foreign && path.Base(p.Cgroup) != "/" && p.Cgroup != "" {
		u.Container, u.Cgroup = path.Base(p.Cgroup), p.Cgroup // of some runtime that no engine stands behind
	}
	if u.Container == "" {
		u.Pod.UID = ""
	}
	return u, nil
}

// Inits are the first processes of the containers whose cgroup the ledger does not know.
func InitPIDs(grants []grant.Grant) (pids []int) {
	for _, g := range grants {
		for _, b := range g.Bindings {
			if len(b.Cgroups) == 0 && b.PID > 0 && !slices.Contains(pids, b.PID) {
				pids = append(pids, b.PID)
			}
		}
	}
	return pids
}
