package watch

import (
	"path"
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// cgroupGrants maps cgroups to the grants of their containers, by the bindings of the ledger.
type cgroupGrants map[string]boundGrant // by cgroup

type boundGrant struct {
	grant   *grant.Grant
	binding *grant.Binding
}

// cgroupGrantsOf lists the cgroups of every container with a grant: those that its spec names, and
// that of its first process.
func cgroupGrantsOf(grants []grant.Grant, processes map[int]ProcessInfo) cgroupGrants {
	r := cgroupGrants{}
	for i := range grants {
		g := &grants[i]
		for j := range g.Bindings {
			b := &g.Bindings[j]
			for _, cgroup := range b.Cgroups {
				r.add(cgroup, boundGrant{g, b})
			}
			if init, known := processes[b.PID]; known && b.PID > 0 && isNamedAfter(init.Cgroup, b.Container) {
				r.add(init.Cgroup, boundGrant{g, b})
			}
		}
	}
	return r
}

func (r cgroupGrants) add(cgroup string, b boundGrant) {
	if cgroup = clean(cgroup); cgroup != "/" { // it belongs to no container alone
		r[cgroup] = b
	}
}

// clean is the path from the root of the hierarchy. The kernel and most engines write paths in this
// form already.
func clean(cgroup string) string {
	if strings.HasPrefix(cgroup, "/") && !strings.HasSuffix(cgroup, "/") && !strings.Contains(cgroup, "//") &&
		!strings.Contains(cgroup, "/.") {
		return cgroup
	}
	return path.Clean("/" + cgroup)
}

// isNamedAfter reports whether a cgroup was made for the container. A container without a cgroup of
// its own is in one of another name.
func isNamedAfter(cgroup, container string) bool {
	return container != "" && strings.Contains(path.Base(cgroup), container)
}

// find goes up from a cgroup to the first one of a container with a grant.
func (r cgroupGrants) find(cgroup string) (b boundGrant, own string, found bool) {
	for at := clean(cgroup); len(at) > 1; at = at[:strings.LastIndexByte(at, '/')] {
		if b, found := r[at]; found {
			return b, at, true
		}
	}
	return boundGrant{}, "", false
}

// userOf returns the user of a process: the container of a grant, a container without a grant, or
// the node's own process.
func (r cgroupGrants) userOf(p ProcessInfo) (grant.User, *grant.Grant) {
	u := grant.User{Command: p.Command, Processes: []grant.Process{p.Process}}
	if b, own, found := r.find(p.Cgroup); found {
		u.Container, u.Pod, u.Cgroup = b.binding.Container, b.binding.Pod, own
		return u, b.grant
	}
	info := ParseCgroup(p.Cgroup)
	u.Container, u.Engine, u.Cgroup, u.Pod.UID = info.Container, info.Engine, info.Cgroup, info.Pod
	if u.Container == "" && p.Foreign && path.Base(p.Cgroup) != "/" && p.Cgroup != "" {
		u.Container, u.Cgroup = path.Base(p.Cgroup), p.Cgroup // of a runtime that no engine called
	}
	if u.Container == "" {
		u.Pod.UID = ""
	}
	return u, nil
}

// InitPIDs are the first processes of the containers whose cgroups the ledger does not know.
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
