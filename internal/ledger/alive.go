package ledger

import (
	"errors"
	"io/fs"
	"os"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// examine finds out from the kernel whether the containers of bindings are there, and their inits'
// pids. Where that takes a look at all processes of the node, it takes one for all of them.
func (l *Ledger) examine(bindings ...*grant.Binding) {
	var unseen []*grant.Binding
	for _, b := range bindings {
		if l.ask(b) {
			unseen = append(unseen, b)
		}
	}
	l.unseen(unseen)
}

// ask examines a binding, without a look at all processes: it reports whether it takes one.
//
// The creator is asked before the runtime's state is read. It writes the state while it runs, so a
// state that is read after its end is the last; the other way round a container that came up in
// between would be taken for dead.
func (l *Ledger) ask(b *grant.Binding) (unseen bool) {
	b.Life, b.PID, b.Left = grant.LifeUnknown, 0, false
	boot, err := l.bootID()
	if err != nil {
		return false
	}
	if b.BootID != boot {
		b.Life = grant.Dead
		return false
	}
	if !l.sees(b) || !isContainerID(b.Container) {
		return false
	}
	created, err := l.Host.Runs(b.Creator)
	if err != nil {
		return false
	}
	b.Life, b.PID, unseen = l.contained(b)
	if created {
		b.Life, b.Left = grant.Alive, false
	}
	return unseen && !created
}

// sees reports whether the binding's pids and start times mean here what they meant to its writer.
func (l *Ledger) sees(b *grant.Binding) bool {
	pids, err := l.pidNS()
	if err != nil || pids != b.PIDNS {
		return false
	}
	time, err := l.timeNS()
	return err == nil && time == b.TimeNS
}

// contained tells whether the container's init runs or a process is in its cgroup. Without a pid
// namespace of its own a container's processes outlive its init. Of one without a state and without
// a cgroup on record it cannot tell: unseen does.
func (l *Ledger) contained(b *grant.Binding) (life grant.Life, pid int, unseen bool) {
	state, err := l.readState(b.RuntimeRoot, b.Container)
	if errors.Is(err, fs.ErrNotExist) {
		// Deleted, or never created. A directory without a state is what a runtime leaves that was
		// killed.
		life := l.remains(b)
		b.Left = life != grant.Dead
		return life, 0, len(b.Cgroups) == 0
	}
	if err != nil {
		return grant.LifeUnknown, 0, false
	}
	runs, err := l.Host.Runs(state.init)
	if err != nil {
		return grant.LifeUnknown, 0, false
	}
	if runs {
		return grant.Alive, state.init.PID, false
	}
	populated, err := state.cgroup.populated(l.Host)
	switch {
	case err != nil:
		return grant.LifeUnknown, 0, false
	case populated:
		return grant.Alive, 0, false
	}
	return grant.Dead, 0, false
}

// remains reports whether a process is left in the cgroups of a container that its runtime has
// forgotten.
func (l *Ledger) remains(b *grant.Binding) grant.Life {
	if len(b.Cgroups) == 0 {
		return grant.LifeUnknown
	}
	life := grant.Dead
	for _, path := range b.Cgroups {
		switch populated, err := l.Populated(path); {
		case populated:
			return grant.Alive
		case err != nil:
			life = grant.LifeUnknown
		}
	}
	return life
}

// unseen finds out what it can about containers without a state and without a cgroup on record.
// That there is no state proves nothing to a program that does not see where the state would lie:
// an agent in a pod has only the runtime roots that it was given. So a container is dead only if no
// process that can be its own runs in a cgroup of its name. If the root itself is missing, the
// caller must also see the node as it is: then the root is gone with its engine, or was never made.
func (l *Ledger) unseen(bindings []*grant.Binding) {
	bindings = l.glance.known(bindings)
	if len(bindings) == 0 {
		return
	}
	used, err := named(l.Host, bindings)
	for i, b := range bindings {
		_, gone := os.Stat(b.RuntimeRoot)
		switch {
		case err != nil, used[i], gone != nil && (!errors.Is(gone, fs.ErrNotExist) ||
			nodesCgroups(l.Host) != nil):
			b.Life, b.Left = grant.LifeUnknown, true
		default:
			b.Life, b.Left = grant.Dead, false
		}
		l.glance.keep(b)
	}
}

// Populated reports whether a process is in a cgroup or below it, a path from the root of each
// hierarchy. An error says that it cannot be told from here.
func (l *Ledger) Populated(path string) (bool, error) {
	return cgroup{relative: path}.populated(l.Host)
}
