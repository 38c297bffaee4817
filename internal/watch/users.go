package watch

import "github.com/gpuledger/gpuledger/internal/grant"

// ProcessUsers finds the user of a process when it is asked for that process first, and keeps the
// answer for the next comparisons. Otherwise each comparison would look up the cgroups of a
// thousand processes and the bindings of two hundred containers again, which took most of its time.
// It is valid as long as the processes and the grants are the same.
type ProcessUsers struct {
	processes map[int]ProcessInfo
	grants    cgroupGrants
	cached    map[int]*userProcess
	users     map[cgroupOfProcess]*sharedUser
	keys      map[string]*sharedUser // by key and grant: all cgroups of a container are one user
}

// userProcess is a process with its user.
type userProcess struct {
	ProcessInfo
	user *sharedUser
}

// cgroupOfProcess holds everything about a process that says which container it belongs to.
type cgroupOfProcess struct {
	cgroup  string
	foreign bool
}

// sharedUser is a user that several processes have in common.
type sharedUser struct {
	user  grant.User   // without its processes
	grant *grant.Grant // nil: none
}

// NewProcessUsers takes the processes and the grants of an Input.
func NewProcessUsers(grants []grant.Grant, processes map[int]ProcessInfo) *ProcessUsers {
	return &ProcessUsers{processes: processes, grants: cgroupGrantsOf(grants, processes),
		cached: make(map[int]*userProcess, len(processes)),
		users:  make(map[cgroupOfProcess]*sharedUser, 64), keys: map[string]*sharedUser{}}
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
