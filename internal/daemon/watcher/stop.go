package watcher

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/daemon/daemonlog"
	"github.com/gpuledger/gpuledger/internal/grant"
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
// stood for the grace time (watch.Tracker.Due). It does nothing where the policy is not enforced,
// and spares a container that turns out to be exempt, or that was admitted. watch.Stop kills the
// processes.
func (w *Watcher) stopContainers(n *node.Node, r watch.Comparison) (err error) {
	if n.Mode() != grant.Enforce {
		return nil
	}
	for _, f := range w.tracker.Due(r, n.Policy.Rules) {
		if f.Kind == grant.OutsideLedger { // read its identity again: an earlier reading may have failed
			w.identities.forget(f.User)
			if f.User = w.identities.identify(n, w.roots, f.User); f.User.Exempt || w.isBound(n, f) {
				continue
			}
		}
		ended, e := watch.Stop(n.Host, f.User)
		switch {
		case e != nil:
			err = e
			n.Found("not-stopped", f, grant.StopContainer, e.Error())
		case ended > 0:
			message := fmt.Sprintf("stopped, %d processes, after %s: %s", ended,
				r.Taken.Sub(f.Since).Round(time.Second), f.Message)
			n.Found("stopped", f, grant.StopContainer, message)
			w.log.WithFields(daemonlog.FindingFields(f)).Warn(message)
			w.countStopped(f.Kind)
		}
	}
	return err
}

// isBound reports whether the container of a finding is bound to a grant that the watch does not
// know: its entry is damaged or missing. The container was admitted, so it keeps what it has.
func (w *Watcher) isBound(n *node.Node, f grant.Finding) bool {
	if f.Grant != "" {
		return false
	}
	isKnown := func(id grant.ID) bool {
		return slices.ContainsFunc(w.ledger.Grants, func(g grant.Grant) bool { return g.ID == id })
	}
	_, found := n.Ledger.Bindings.Find(func(b grant.Binding) bool {
		return b.Container == f.User.Container && !isKnown(b.Grant) &&
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
