package watch

import "github.com/gpuledger/gpuledger/internal/grant"

// Cast is which user each process is, found when it is asked for first: to read the cgroups of a thousand processes and the bindings of two
// hundred containers each second would be most of a judgement. It is as long of use as its people and grants are the same.
type ProcessUsers struct {
	processes map[int]ProcessInfo
	grants    cgroupGrants
	cached    map[int]*userProcess
	users     map[cgroupOfProcess]*sharedUser
	keys      map[string]*sharedUser // by key and grant: cgroups of one container are one user
}

// member is a process as the user that it is of.
type userProcess struct {
	ProcessInfo
	user *sharedUser
}

// home is all that of a process tells which container it is of.
type cgroupOfProcess struct {
	cgroup  string
	foreign bool
}

type sharedUser struct {
	user  grant.User   // without processes
	grant *grant.Grant // nil: none
}

// NewCast is that of the people and the grants of a Scene.
func NewProcessUsers(grants []grant.Grant, people map[int]ProcessInfo) *ProcessUsers {
	return &ProcessUsers{processes: people, grants: cgroupGrantsOf(grants, people), cached: make(map[int]*userProcess, len(people)), users: make(map[cgroupOfProcess]*sharedUser, 64), keys: map[string]*sharedUser{}}
}

// member is nil where nobody has the pid.
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

// userOf is who a process is. Those of a cgroup of a container's are the same one, and found once: a thousand processes are some two hundred
// users.
func (c *ProcessUsers) userOf(p ProcessInfo) *sharedUser {
	at := cgroupOfProcess{p.Cgroup, p.Foreign}
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
		k = &sharedUser{u, g}
		c.keys[key] = k
	}
	c.users[at] = k
	return k
}
