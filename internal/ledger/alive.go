package ledger

import (
	"errors"
	"io/fs"
	"os"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// examine finds out from the kernel whether a binding's container is there, and its init's pid.
//
// The creator is asked before the runtime's state is read. It writes the state while it runs, so a state that is read
// after its end is the last; the other way round a container that came up in between would be taken for dead.
func (l *Ledger) examine(b *grant.Binding) {
	b.Life, b.PID, b.Left = grant.LifeUnknown, 0, false
	boot, err := l.bootID()
	if err != nil {
		return
	}
	if b.BootID != boot {
		b.Life = grant.Dead
		return
	}
	if !l.sees(b) || !isContainerID(b.Container) {
		return
	}
	created, err := l.Host.Runs(b.Creator)
	if err != nil {
		return
	}
	b.Life, b.PID = l.contained(b)
	if created {
		b.Life, b.Left = grant.Alive, false
	}
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

// contained tells whether the container's init runs or a process is in its cgroup. Without a pid namespace of its own
// a container's processes outlive its init.
func (l *Ledger) contained(b *grant.Binding) (grant.Life, int) {
	state, err := l.readState(b.RuntimeRoot, b.Container)
	if errors.Is(err, fs.ErrNotExist) {
		// Deleted, or never created. A directory without a state is what a runtime leaves that was killed.
		life := l.remains(b)
		b.Left = life != grant.Dead
		return life, 0
	}
	if err != nil {
		return grant.LifeUnknown, 0
	}
	runs, err := l.Host.Runs(state.init)
	if err != nil {
		return grant.LifeUnknown, 0
	}
	if runs {
		return grant.Alive, state.init.PID
	}
	populated, err := state.cgroup.populated(l.Host)
	switch {
	case err != nil:
		return grant.LifeUnknown, 0
	case populated:
		return grant.Alive, 0
	}
	return grant.Dead, 0
}

// remains tells whether anybody is left in the cgroups of a container that its runtime has forgotten.
func (l *Ledger) remains(b *grant.Binding) grant.Life {
	if len(b.Cgroups) == 0 {
		return l.unseen(b)
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

// unseen tells what can be told of a container without a state and without a cgroup on record. That there is no state
// proves nothing to one who does not see where it would lie: an agent in a pod has the runtime roots that it was given. So
// nobody may run in a cgroup of the container's name who can be its, and where the root itself is not there, the caller must be one who sees the
// node as it is: to that one it is gone with its engine, or was never made.
func (l *Ledger) unseen(b *grant.Binding) grant.Life {
	since := b.Creator.Start
	if b.Reserved { // by gpuledgerd, which may have been started after the container
		since = 0
	}
	if used, err := named(l.Host, b.Container, since); used || err != nil {
		return grant.LifeUnknown
	}
	if _, err := os.Stat(b.RuntimeRoot); err != nil && (!errors.Is(err, fs.ErrNotExist) || nodesCgroups(l.Host) != nil) {
		return grant.LifeUnknown
	}
	return grant.Dead
}

// Populated reports whether a process is in a cgroup or below it, a path from the root of each hierarchy. An error says that
// it cannot be told from here.
func (l *Ledger) Populated(path string) (bool, error) {
	return cgroup{relative: path}.populated(l.Host)
}
