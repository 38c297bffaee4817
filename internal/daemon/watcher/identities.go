package watcher

import (
	"cmp"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// identityCache keeps the identities of containers without grants. To find one out takes the
// container's spec.
type identityCache struct{ known map[string]containerIdentity }

type containerIdentity struct {
	pod    grant.Identity
	engine grant.Engine
	exempt bool
	known  bool // a runtime has a container of the id, in this cgroup
	asked  time.Time
}

// identityAge is for how long an identity is kept: policy may exempt a container at any time.
const identityAge = 10 * time.Second

// stateRoots are where engines have their runtimes keep the states of containers, and which engine
// it is, if only one uses the place.
var stateRoots = []struct {
	pattern string
	engine  grant.Engine
}{{"/run/containerd/runc/*", grant.Containerd}, {"/run/docker/runtime-runc/*", grant.Docker},
	{"/run/runc", ""}, {"/run/crun", ""}}

func engineOf(root string) grant.Engine {
	for _, s := range stateRoots {
		if is, _ := filepath.Match(s.pattern, root); is {
			return s.engine
		}
	}
	return ""
}

// forget makes the next identify find the identity out again.
func (b *identityCache) forget(u grant.User) { delete(b.known, u.Key()) }

// identify finds out more about a container without a grant. What a user of the node makes is not
// looked up: it may be thousands of cgroups, with any names, and runtimes of root have none of
// them.
func (b *identityCache) identify(n *node.Node, roots []string, u grant.User) grant.User {
	var identity containerIdentity
	if u.OfNodeUser = isOfUser(n.Host, u.Cgroup); !u.OfNodeUser {
		identity = b.find(n, roots, u)
	}
	if identity.pod != (grant.Identity{}) {
		u.Pod = identity.pod
	}
	u.Exempt, u.Engine = identity.exempt, cmp.Or(u.Engine, identity.engine)
	// it has a pid namespace of its own, but perhaps no cgroup
	if !identity.known && watch.ParseCgroup(u.Cgroup).Container == "" {
		u.Cgroup = ""
	}
	return u
}

// find returns the identity of a container, as it was at most identityAge ago.
func (b *identityCache) find(n *node.Node, roots []string, u grant.User) containerIdentity {
	if b.known == nil || len(b.known) > 4096 {
		b.known = map[string]containerIdentity{}
	}
	identity, found := b.known[u.Key()]
	if found && time.Since(identity.asked) <= identityAge {
		return identity
	}
	identity = containerIdentity{asked: time.Now()}
	for _, s := range stateRoots {
		dirs, _ := filepath.Glob(s.pattern)
		roots = append(roots[:len(roots):len(roots)], dirs...)
	}
	pod, exempt, root, init := n.Ungranted(roots, u.Engine, u.Container)
	// Who may create cgroups can give one a container's name.
	if identity.known = watch.IsIn(n.Host, init, u.Cgroup); identity.known {
		identity.pod, identity.exempt, identity.engine = pod, exempt, engineOf(root)
	}
	b.known[u.Key()] = identity
	return identity
}

// usersSlice is where systemd has the sessions and services of all users.
const usersSlice = "/user.slice/"

// isOfUser reports whether a cgroup is one of a user of the node: it lies in the users' slice, or
// it has the name of an engine's container and lies in a cgroup that is not root's. A container's
// own cgroup may belong to its root.
func isOfUser(h host.Host, cgroup string) bool {
	if strings.HasPrefix(cgroup, usersSlice) {
		return true
	}
	if watch.ParseCgroup(cgroup).Container == "" {
		return false // such as one of LXC, which may be a user's within the container
	}
	root, _ := host.CgroupRoot(h)
	var st unix.Stat_t
	return unix.Stat(filepath.Join(root, filepath.Dir(filepath.Clean("/"+cgroup))), &st) == nil && st.Uid != 0
}
