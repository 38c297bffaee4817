package watch

import "github.com/gpuledger/gpuledger/internal/grant"

// Cast is which user each process is, found when it is asked for first: to read the cgroups of a thousand processes and the bindings of two
// hundred containers each second would be most of a judgement. It is as long of use as its people and grants are the same.
type Cast struct {
	people  map[int]Person
	roll    roll
	members map[int]*member
	users   map[home]*knownUser
	keys    map[string]*knownUser // by key and grant: cgroups of one container are one user
}

// member is a process as the user that it is of.
type member struct {
	Person
	user *knownUser
}

// home is all that of a process tells which container it is of.
type home struct {
	cgroup  string
	foreign bool
}

type knownUser struct {
	user  grant.User   // without processes
	grant *grant.Grant // nil: none
}

// NewCast is that of the people and the grants of a Scene.
func NewCast(grants []grant.Grant, people map[int]Person) *Cast {
	return &Cast{people: people, roll: rollOf(grants, people), members: make(map[int]*member, len(people)), users: make(map[home]*knownUser, 64), keys: map[string]*knownUser{}}
}

// member is nil where nobody has the pid.
func (c *Cast) member(pid int) *member {
	m := c.members[pid]
	if m == nil {
		p, known := c.people[pid]
		if !known {
			return nil
		}
		m = &member{p, c.userOf(p)}
		c.members[pid] = m
	}
	return m
}

// userOf is who a process is. Those of a cgroup of a container's are the same one, and found once: a thousand processes are some two hundred
// users.
func (c *Cast) userOf(p Person) *knownUser {
	at := home{p.Cgroup, p.Foreign}
	if k, known := c.users[at]; known && k.user.Container != "" {
		return k
	}
	u, g := c.roll.userOf(p)
	key := u.Key()
	if g != nil {
		key += "\x00" + string(g.ID)
	}
	k, known := c.keys[key]
	if !known {
		k = &knownUser{u, g}
		c.keys[key] = k
	}
	c.users[at] = k
	return k
}
