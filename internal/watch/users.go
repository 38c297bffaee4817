package watch

import (
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// ProcessUsers finds the user of a process when it is asked for that process first, and keeps the
// answer for the next comparisons. Otherwise each comparison would look up the cgroups of a
// thousand processes and the bindings of two hundred containers again, which took most of its time.
// It is valid as long as the processes and the grants are the same.
type ProcessUsers struct {
	processes map[int]ProcessInfo
	grants    cgroupGrants
	cached    map[int]*userProcess
	users     map[cgroupOfProcess]*sharedUser
	unbound   map[uint32][]*grant.Grant // by uid; empty where device nodes are not opened by grant
	keys      map[string]*sharedUser    // by key and grant: all cgroups of a container are one user
}

// userProcess is a process with its user.
type userProcess struct {
	ProcessInfo
	user *sharedUser
}

// cgroupOfProcess holds everything about a process that says which container it belongs to, and
// whose grants open device nodes to it.
type cgroupOfProcess struct {
	cgroup  string
	foreign bool
	uid     uint32 // 0: of no user with such grants
}

// sharedUser is a user that several processes have in common.
type sharedUser struct {
	user  grant.User   // without its processes
	grant *grant.Grant // nil: none
	// unbound are the grants of its uid that no container uses, where those open device nodes to
	// it. all has then the processes of every uid in the same container.
	unbound []*grant.Grant
	all     *sharedUser
}

// on returns the user of what a process uses of a GPU or MIG device: its uid's grants count only
// for what they are for.
func (u *sharedUser) on(device string) *sharedUser {
	if u.all == nil || slices.ContainsFunc(u.unbound, func(g *grant.Grant) bool { return g.Has(device) }) {
		return u
	}
	return u.all
}

// NewProcessUsers takes the processes, the grants and UserNodes of an Input.
func NewProcessUsers(grants []grant.Grant, processes map[int]ProcessInfo, userNodes bool) *ProcessUsers {
	c := &ProcessUsers{processes: processes, grants: cgroupGrantsOf(grants, processes),
		cached: make(map[int]*userProcess, len(processes)), unbound: map[uint32][]*grant.Grant{},
		users: make(map[cgroupOfProcess]*sharedUser, 64), keys: map[string]*sharedUser{}}
	for i := range grants {
		if g := &grants[i]; userNodes && g.User != 0 && len(g.Bindings) == 0 {
			c.unbound[g.User] = append(c.unbound[g.User], g)
		}
	}
	return c
}

// find returns a process with its user, or nil if no process has the pid.
func (c *ProcessUsers) find(pid int) *userProcess {
	m := c.cached[pid]
	if m == nil {
		p, known := c.processes[pid]
		if !known {
			return nil
		}
		m = &userProcess{p, c.userOf(p)}
		c.cached[pid] = m
	}
	return m
}

// userOf returns the user of a process. The processes of a container's cgroup share one: a thousand
// processes have some two hundred users.
func (c *ProcessUsers) userOf(p ProcessInfo) *sharedUser {
	at := cgroupOfProcess{cgroup: p.Cgroup, foreign: p.Foreign}
	all := c.byCgroup(at, p)
	unbound := c.unbound[p.UID]
	// a container of a rootful engine has device nodes and rules of its own, whatever its uids are
	if len(unbound) == 0 || all.grant != nil || all.user.Container != "" && !p.Rootless {
		return all
	}
	if at.uid = p.UID; all.user.Container != "" && c.users[at] != nil {
		return c.users[at]
	}
	k := &sharedUser{user: all.user, unbound: unbound, all: all}
	c.users[at] = k
	return k
}

// byCgroup returns the user of all processes of a container, or of one process of the node.
func (c *ProcessUsers) byCgroup(at cgroupOfProcess, p ProcessInfo) *sharedUser {
	if k, known := c.users[at]; known && k.user.Container != "" {
		return k
	}
	u, g := c.grants.userOf(p)
	key := u.Key()
	if g != nil {
		key += "\x00" + string(g.ID)
	}
	k, known := c.keys[key]
	if !known {
		k = &sharedUser{user: u, grant: g}
		c.keys[key] = k
	}
	c.users[at] = k
	return k
}
