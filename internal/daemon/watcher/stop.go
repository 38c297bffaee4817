package watcher

import (
	"fmt"
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
// and spares a container that turns out to be exempt. watch.Stop kills the processes.
func (w *Watcher) stopContainers(n *node.Node, r watch.Comparison) (err error) {
	if n.Mode() != grant.Enforce {
		return nil
	}
	for _, f := range w.tracker.Due(r, n.Policy.Rules) {
		if f.Kind == grant.OutsideLedger { // read its identity again: an earlier reading may have failed
			w.identities.forget(f.User)
			if f.User = w.identities.identify(n, w.roots, f.User); f.User.Exempt {
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

func (w *Watcher) countStopped(kind grant.FindingKind) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.status.Stopped == nil {
		w.status.Stopped = map[grant.FindingKind]uint64{}
	}
	w.status.Stopped[kind]++
}
