package ledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpuledger/gpuledger/internal/containers"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
)

// Bindings answers which containers use grants, from the records and the kernel. It never waits,
// with the ledger locked or not.
type Bindings struct {
	files      *bindingFiles
	containers *containers.Reader
}

// Of reads the container's binding and finds out whether it is alive. ErrNotFound if it has none.
func (s Bindings) Of(runtimeRoot, container string) (grant.Binding, error) {
	b, err := s.files.load(bindingKey(runtimeRoot, container))
	if errors.Is(err, fs.ErrNotExist) {
		return grant.Binding{}, notFoundError{"a binding of container %q", container}
	}
	if err != nil {
		return grant.Binding{}, fmt.Errorf("cannot find a binding of container %q: %w", container, err)
	}
	s.containers.Examine(&b)
	return b, nil
}

// Has reports whether the container has a binding, dead or alive. It costs one system call: every
// delete of every container on the node asks.
func (s Bindings) Has(runtimeRoot, container string) bool {
	_, err := os.Lstat(s.files.path(bindingKey(runtimeRoot, container)))
	return err == nil
}

// Used reports whether a container has been bound to the grant since it was made, or since the
// node's start: one that is there or one that is gone. It may know the grant's reference. It costs
// one system call.
func (s Bindings) Used(id grant.ID) bool {
	_, err := os.Lstat(s.files.linksOf(id))
	return !errors.Is(err, fs.ErrNotExist) // if this program cannot look, one may have been
}

// UseStamp changes when a container is bound to the grant, and when its binding is removed. So it
// shows a use that began and ended between two looks at the bindings. It costs one system call.
func (s Bindings) UseStamp(id grant.ID) host.Stamp { return host.StampOf(s.files.linksOf(id)) }

// Count is how many bindings are written down, of containers that run or not.
func (s Bindings) Count() int {
	keys, _ := s.files.keys()
	return len(keys)
}

// Dead lists the bindings whose container is gone. It reads no grant and takes no lock: a caller
// that removes one looks again under it.
func (s Bindings) Dead() []grant.Binding {
	all := s.All()
	s.containers.Examine(pointers(all)...)
	return slices.DeleteFunc(all, func(b grant.Binding) bool { return b.Life != grant.Dead })
}

// RootsOf lists the runtime roots under which a container of this id and bundle has a binding, dead
// or alive, for a caller that knows no root.
func (s Bindings) RootsOf(container, bundle string) (roots []string) {
	for _, b := range s.All() {
		if b.Container == container && b.Bundle == bundle {
			roots = append(roots, b.RuntimeRoot)
		}
	}
	return roots
}

// Find returns a binding that is not known to be dead and that matches. It reads all.
func (s Bindings) Find(matches func(grant.Binding) bool) (b grant.Binding, found bool) {
	for _, b := range s.All() {
		if !matches(b) {
			continue
		}
		if s.containers.Examine(&b); b.Life != grant.Dead {
			return b, true
		}
	}
	return b, false
}

// NameCgroups reports whether any binding of this boot has named a cgroup. It costs one system
// call.
func (s Bindings) NameCgroups() bool {
	_, err := os.Lstat(string(s.files.cgroups))
	return err == nil
}

// Occupied reports whether a cgroup or unit is that of a container with a binding that may be
// alive, or is below such a cgroup. It leaves out the caller's own binding, and cgroups that
// another one may be below.
func (s Bindings) Occupied(cgroups []string, own func(grant.Binding) bool,
	mayBeBelow func(b grant.Binding, path string) bool) bool {
	for _, cgroup := range cgroups {
		for path := cgroup; path != "/" && path != "."; path = filepath.Dir(path) {
			key, found := s.files.cgroups.key(path)
			if !found {
				continue
			}
			b, err := s.files.load(key)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				continue
			case err != nil: // it may be of any container
				return true
			case own(b), !slices.Contains(b.Occupies, path), path != cgroup && mayBeBelow(b, path):
				continue
			}
			if s.containers.Examine(&b); b.Life != grant.Dead {
				return true
			}
		}
	}
	return false
}

// OccupiedBelow reports whether a container with a binding that may be alive is in a cgroup below
// one of these. It leaves out the caller's own binding, and reads all others. A record that cannot
// be read does not count, unlike in Occupied: a container above it can take its GPU away but does
// not reach it, and one damaged record would refuse all such containers of the node.
func (s Bindings) OccupiedBelow(cgroups []string, own func(grant.Binding) bool) bool {
	for _, b := range s.All() {
		if own(b) || !anyBelow(b.Occupies, cgroups) {
			continue
		}
		if s.containers.Examine(&b); b.Life != grant.Dead {
			return true
		}
	}
	return false
}

// anyBelow reports whether one of several paths is below one of several others.
func anyBelow(paths, others []string) bool {
	return slices.ContainsFunc(paths, func(path string) bool {
		return slices.ContainsFunc(others, func(other string) bool {
			return path != other && host.Within(path, other)
		})
	})
}

// All reads the records of all bindings, also of containers that have ended. A record that cannot
// be read is left out: it is being made, is just gone, or is damaged, which Check reports.
func (s Bindings) All() (all []grant.Binding) {
	keys, _ := s.files.keys()
	for _, key := range keys {
		if b, err := s.files.load(key); err == nil {
			all = append(all, b)
		}
	}
	return all
}

// using lists a grant's bindings that are not dead. One whose record cannot be read may be alive:
// it is unknown.
func (s Bindings) using(id grant.ID) ([]grant.Binding, error) {
	bindings, err := s.ofGrant(id)
	return slices.DeleteFunc(bindings, func(b grant.Binding) bool { return b.Life == grant.Dead }), err
}

// ofGrant lists a grant's bindings, dead ones as well.
func (s Bindings) ofGrant(id grant.ID) (bindings []grant.Binding, err error) {
	keys, err := s.files.keysOf(id)
	if err != nil {
		return nil, fmt.Errorf("cannot list the bindings of grant %s: %w", id, err)
	}
	unreadable := 0
	for _, key := range keys {
		b, err := s.files.load(key)
		switch {
		case errors.Is(err, fs.ErrNotExist): // being made, or just gone
		case err != nil:
			unreadable++
		case b.Grant == id:
			bindings = append(bindings, b)
		}
	}
	s.containers.Examine(pointers(bindings)...)
	for range unreadable {
		bindings = append(bindings, grant.Binding{Grant: id, Life: grant.LifeUnknown})
	}
	return bindings, nil
}

func pointers(bindings []grant.Binding) []*grant.Binding {
	var to []*grant.Binding
	for i := range bindings {
		to = append(to, &bindings[i])
	}
	return to
}
