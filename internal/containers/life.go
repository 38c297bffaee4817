package containers

import (
	"errors"
	"io/fs"
	"os"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Examine finds out from the kernel whether the containers of bindings are there, and the pids of
// their inits. It sets Life, PID and Left. If that needs a search through all processes of the
// node, one search answers for all of the bindings.
func (r *Reader) Examine(bindings ...*grant.Binding) {
	var unseen []*grant.Binding
	for _, b := range bindings {
		if r.examineOne(b) {
			unseen = append(unseen, b)
		}
	}
	r.bySearch(unseen)
}

// examineOne examines a binding without a search through all processes. It reports whether that
// needs one.
//
// It looks at the creator before it reads the runtime's state. The creator writes the state while
// it runs, so a state that is read after its end is the last one. In the other order, a container
// that came up in between would be taken for dead.
func (r *Reader) examineOne(b *grant.Binding) (unseen bool) {
	b.Life, b.PID, b.Left = grant.LifeUnknown, 0, false
	boot, err := r.Here.BootID()
	if err != nil {
		return false
	}
	if b.BootID != boot {
		b.Life = grant.Dead
		return false
	}
	if !sharesNamespaces(r.Here, b) || !IsID(b.Container) {
		return false
	}
	created, err := r.Host.Runs(b.Creator)
	if err != nil {
		return false
	}
	b.Life, b.PID, unseen = r.byState(b)
	if created {
		b.Life, b.Left = grant.Alive, false
	}
	return unseen && !created
}

// sharesNamespaces reports whether the binding's pids and start times mean here what they meant to
// its writer.
func sharesNamespaces(h Here, b *grant.Binding) bool {
	pids, err := h.PIDNS()
	if err != nil || pids != b.PIDNS {
		return false
	}
	time, err := h.TimeNS()
	return err == nil && time == b.TimeNS
}

// byState reports whether the container's init runs, or a process is in its cgroup. Without a pid
// namespace of its own, a container's processes outlive its init. A container with no state and no
// cgroup on record is unseen: bySearch answers for it.
func (r *Reader) byState(b *grant.Binding) (life grant.Life, pid int, unseen bool) {
	state, err := r.readState(b.RuntimeRoot, b.Container)
	if errors.Is(err, fs.ErrNotExist) {
		// Deleted, or never created. A runtime that was killed leaves a directory without a state.
		life := byCgroups(r, b.Cgroups)
		b.Left = life != grant.Dead
		return life, 0, len(b.Cgroups) == 0
	}
	if err != nil {
		return grant.LifeUnknown, 0, false
	}
	runs, err := r.Host.Runs(state.init)
	if err != nil {
		return grant.LifeUnknown, 0, false
	}
	if runs {
		return grant.Alive, state.init.PID, false
	}
	populated, err := state.cgroup.populated(r.Host)
	switch {
	case err != nil:
		return grant.LifeUnknown, 0, false
	case populated:
		return grant.Alive, 0, false
	}
	return grant.Dead, 0, false
}

// byCgroups reports whether a process is left in the cgroups of a container that its runtime has
// forgotten.
func byCgroups(r *Reader, cgroups []string) grant.Life {
	if len(cgroups) == 0 {
		return grant.LifeUnknown
	}
	life := grant.Dead
	for _, path := range cgroups {
		switch populated, err := Populated(r.Host, path); {
		case populated:
			return grant.Alive
		case err != nil:
			life = grant.LifeUnknown
		}
	}
	return life
}

// bySearch finds out what it can about containers with no state and no cgroup on record. A missing
// state proves nothing to a program that cannot see the place of the state: an agent in a pod has
// only the runtime roots that it was given. So a container is dead only if no process that can be
// its own runs in a cgroup of its name. If the root itself is missing, the caller must also see the
// node as it is: then the root is gone with its engine, or was never made.
func (r *Reader) bySearch(bindings []*grant.Binding) {
	bindings = r.searches.known(bindings)
	if len(bindings) == 0 {
		return
	}
	used, err := inNamedCgroups(r.Host, bindings)
	for i, b := range bindings {
		_, gone := os.Stat(b.RuntimeRoot)
		switch {
		case err != nil, used[i], gone != nil && (!errors.Is(gone, fs.ErrNotExist) ||
			nodesCgroups(r.Host) != nil):
			b.Life, b.Left = grant.LifeUnknown, true
		default:
			b.Life, b.Left = grant.Dead, false
		}
		r.searches.keep(b)
	}
}
