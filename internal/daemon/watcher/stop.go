package watcher

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/daemon/daemonlog"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// reaction returns what gpuledgerd does about a finding: what policy says, or only a report where
// the policy is not enforced.
func (w *Watcher) reaction(n *node.Node, f grant.Finding) grant.Reaction {
	if n.Mode() != grant.Enforce {
		return grant.ReportFinding
	}
	return watch.Reaction(f, n.Policy.Rules)
}

// stopContainers stops the containers of the findings that are due: policy says stop, and they have
// stood for the grace time (watch.Tracker.Due). It does nothing where the policy is not enforced.
// watch.Stop kills the processes of all of them. That one could not be stopped is recorded once.
func (w *Watcher) stopContainers(n *node.Node, r watch.Comparison) (err error) {
	if n.Mode() != grant.Enforce {
		return nil
	}
	var due []grant.Finding
	var users []grant.User
	for _, f := range w.tracker.Due(r, n.Policy.Rules) {
		if !w.isSpared(n, r, &f) {
			due, users = append(due, f), append(users, f.User)
		}
	}
	w.endLateStops(n, r.Taken)
	for i, s := range watch.Stop(n.Host, users, w.isNotStopped) {
		switch f := due[i]; {
		case s.Err != nil:
			err = s.Err
			if !w.isNotStopped(f.User) {
				n.Found("not-stopped", f, grant.StopContainer, s.Err.Error())
			}
			w.notStopped[f.User.Key()] = lateStop{f, s.Processes}
		case s.Processes > 0:
			w.stopped(n, f, s.Processes, r.Taken)
		}
	}
	return err
}

// stopped records that the processes of a finding's container were killed and have ended.
func (w *Watcher) stopped(n *node.Node, f grant.Finding, processes int, at time.Time) {
	message := fmt.Sprintf("stopped, %d processes, after %s: %s", processes,
		at.Sub(f.Since).Round(time.Second), f.Message)
	n.Found("stopped", f, grant.StopContainer, message)
	w.log.WithFields(daemonlog.FindingFields(f)).Warn(message)
	w.countStopped(f.Kind)
}

// lateStop is a container that could not be stopped.
type lateStop struct {
	grant.Finding
	killed int // how many of its processes were, and have not ended
}

// isNotStopped reports whether a container could not be stopped before. One whose processes hang in
// the driver stays until the node boots, and is due again after each grace.
func (w *Watcher) isNotStopped(u grant.User) bool {
	_, known := w.notStopped[u.Key()]
	return known
}

// endLateStops forgets the containers that could not be stopped and have ended since. Those whose
// processes were killed are recorded as stopped then.
func (w *Watcher) endLateStops(n *node.Node, at time.Time) {
	if w.notStopped == nil {
		w.notStopped = map[string]lateStop{}
	}
	maps.DeleteFunc(w.notStopped, func(_ string, late lateStop) bool {
		if slices.ContainsFunc(late.User.Processes, func(p grant.Process) bool {
			runs, unknown := n.Host.Runs(p)
			return runs || unknown != nil
		}) {
			return false
		}
		if late.killed > 0 {
			w.stopped(n, late.Finding, late.killed, at)
		}
		return true
	})
}

// isSpared reports whether a container that is due is not stopped: it turns out to be exempt, it
// was admitted, or its grant was raised. The comparison may be many seconds old: since then this
// program may have waited for the ledger's lock. isSpared renews the finding's user.
func (w *Watcher) isSpared(n *node.Node, r watch.Comparison, f *grant.Finding) bool {
	switch f.Kind {
	case grant.OverGrant:
		return isRaised(n, r, *f)
	case grant.OutsideLedger: // read its identity again: an earlier reading may have failed
		w.identities.forget(f.User)
		f.User = w.identities.identify(n, w.roots, f.User)
		return f.User.Exempt || w.isBound(n, *f)
	}
	return false
}

// isRaised reports whether policy does not want the container of a finding stopped by its grant as
// the ledger has it now. If the grant is gone or cannot be read, the next pass decides.
func isRaised(n *node.Node, r watch.Comparison, f grant.Finding) bool {
	var now grant.Grant
	err := n.Ledger.View(func(tx *ledger.Tx) (err error) {
		now, err = tx.Entry(f.Grant)
		return err
	})
	use := slices.IndexFunc(r.Grants, func(u watch.GrantUse) bool {
		return u.ID == f.Grant && u.GPU == f.GPU
	})
	share := slices.IndexFunc(now.GPUs, func(s grant.Share) bool { return s.UUID == f.GPU })
	if err != nil || use < 0 || share < 0 {
		return true
	}
	used := r.Grants[use].Used
	f.Bytes = used - min(used, now.GPUs[share].Memory)
	return watch.Reaction(f, n.Policy.Rules) != grant.StopContainer
}

// isBound reports whether the container of a finding has a binding that the watch did not know when
// it compared: the binding is new, or its grant's entry is damaged or missing. The container was
// admitted, so it keeps what it has.
func (w *Watcher) isBound(n *node.Node, f grant.Finding) bool {
	if f.Grant != "" {
		return false
	}
	isKnown := func(b grant.Binding) bool {
		return slices.ContainsFunc(w.ledger.Grants, func(g grant.Grant) bool {
			return g.ID == b.Grant && slices.ContainsFunc(g.Bindings, func(known grant.Binding) bool {
				return known.RuntimeRoot == b.RuntimeRoot && known.Container == b.Container
			})
		})
	}
	_, found := n.Ledger.Bindings.Find(func(b grant.Binding) bool {
		return b.Container == f.User.Container && !isKnown(b) &&
			(len(b.Cgroups) == 0 || slices.Contains(b.Cgroups, f.User.Cgroup))
	})
	return found
}

func (w *Watcher) countStopped(kind grant.FindingKind) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.status.Stopped == nil {
		w.status.Stopped = map[grant.FindingKind]uint64{}
	}
	w.status.Stopped[kind]++
}
