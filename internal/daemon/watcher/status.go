package watcher

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/daemon/daemonlog"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// setFailure records that nothing is known any more. What was recorded as outside the ledger stays
// so: no grant may get what may still be in use.
func (w *Watcher) setFailure(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status.Failure = err.Error()
}

// logChanges writes what has changed to the audit log and to the daemon's log.
func (w *Watcher) logChanges(n *node.Node, news watch.Changes) {
	for _, f := range news.Begun {
		reaction := w.reaction(n, f)
		n.Found("found", f, reaction, f.Message)
		w.log.WithFields(daemonlog.FindingFields(f)).WithField("reaction", reaction).Warn(f.Message)
	}
	for _, f := range news.Ended {
		n.Found("over", f, "", f.Message)
		w.log.WithFields(daemonlog.FindingFields(f)).Info("over: " + f.Message)
	}
}

// setStatus is what metrics and the page show from now on.
func (w *Watcher) setStatus(r watch.Comparison) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status.Failure = ""
	w.status.Comparison = r
	w.status.Samples++
	w.status.Events, w.status.XIDs = maps.Clone(w.tracker.Events), maps.Clone(w.tracker.XIDs)
	w.status.Changes = w.cache.Changes()
	w.status.AddHistory(r, w.ledger.Grants)
}

// Status returns a copy of what was found last.
func (w *Watcher) Status() watch.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.status
	s.History = append([]watch.HistorySample(nil), s.History...)
	s.Stopped = maps.Clone(s.Stopped)
	return s
}

// Stale is why the inventory should be taken again, "" if it need not.
func (w *Watcher) Stale() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status.Stale
}

// replaceFound replaces a record of what is in use outside the ledger if that is what could not be
// read. Without the record neither this program nor a placement can read the ledger. All memory
// counts as taken until the next pass.
func (w *Watcher) replaceFound(n *node.Node, err error) error {
	var unreadable *ledger.FoundError
	inv, problem := n.Inventory()
	if !errors.As(err, &unreadable) || problem != nil {
		return nil
	}
	all := ledger.Found{Outside: map[string]grant.Bytes{}}
	for _, g := range inv.GPUs {
		all.Outside[g.UUID] = g.Memory
		for _, m := range g.MIG {
			all.Outside[m.UUID] = m.Memory
		}
	}
	w.recorded = ledger.Found{} // the next pass writes what it finds
	if err := n.Ledger.SetFound(all); err != nil {
		return fmt.Errorf("cannot replace the record of what is used outside the ledger: %w", err)
	}
	return nil
}

// recordEvery is how often unchanged use outside the ledger is recorded again, so that its age can
// be seen.
const recordEvery = time.Minute

// record writes files of the run directory: what placements count as taken, and what `gpuledger
// inspect` shows.
func (w *Watcher) record(n *node.Node, r watch.Comparison, news bool) error {
	found := ledger.Found{Outside: r.Outside(), Excess: r.Excess(), Held: r.Held()}
	if w.recorded.Outside == nil { // as the last gpuledgerd left it, in this boot
		err := n.Ledger.View(func(tx *ledger.Tx) (err error) {
			w.recorded, err = tx.Found()
			return err
		})
		if err != nil {
			return fmt.Errorf("cannot tell what was used outside the ledger: %w", err)
		}
	}
	w.keepUnsettled(n.Host, r, &found)
	same := maps.Equal(found.Outside, w.recorded.Outside) && slices.Equal(found.Excess, w.recorded.Excess) &&
		maps.EqualFunc(found.Held, w.recorded.Held, slices.Equal) &&
		(w.recordedStamp == host.Stamp{} || n.Ledger.FoundStamp() == w.recordedStamp)
	// after the clock was set back, what was written last is from the future
	old := r.Taken.Sub(w.recordedAt).Abs() > recordEvery
	if !same || len(found.Outside)+len(found.Held) > 0 && old {
		if err := n.Ledger.SetFound(found); err != nil {
			return fmt.Errorf("cannot record what is used outside the ledger: %w", err)
		}
		w.recorded, w.recordedAt, w.recordedStamp = found, r.Taken, n.Ledger.FoundStamp()
	}
	if !news && !r.Differs(w.saved) && r.Taken.Sub(w.saved.Taken).Abs() < saveEvery {
		return nil
	}
	boot, err := n.Host.BootID()
	if err == nil {
		err = watch.Save(n.Policy.RunDir, boot, r)
	}
	if err == nil {
		w.saved = r
	}
	return err
}

// keepUnsettled adds from the last record what a comparison may lack, or it would be granted while
// it is in use. That is memory of a GPU that has not answered in a sample, or of which the watch
// has had too few samples. It is also processes that have the GPU: those that do not use it are
// known only after all open files were read. Processes that have ended are left out.
func (w *Watcher) keepUnsettled(h host.Host, r watch.Comparison, found *ledger.Found) {
	for _, device := range slices.Sorted(maps.Keys(w.recorded.Outside)) {
		bytes := w.recorded.Outside[device]
		if bytes <= found.Outside[device] || w.isSettled(r, device) {
			continue
		}
		found.Outside[device] = bytes
		isOther := func(e grant.Excess) bool { return e.GPU != device }
		found.Excess = append(
			slices.DeleteFunc(found.Excess, func(e grant.Excess) bool { return !isOther(e) }),
			slices.DeleteFunc(slices.Clone(w.recorded.Excess), isOther)...)
	}
	for device, processes := range w.recorded.Held {
		if w.looked && w.isSettled(r, device) {
			continue
		}
		for _, p := range processes {
			runs, unknown := h.Runs(p)
			if (runs || unknown != nil) && len(found.Held[device]) < watch.MaxHolders &&
				!slices.Contains(found.Held[device], p) {
				found.Held[device] = append(found.Held[device], p)
			}
		}
	}
}

// isSettled reports whether what a comparison has of a GPU or MIG device is all that is in use. The
// driver does not list the MIG devices of a GPU that does not answer. A device that is not in the
// inventory may be one of those.
func (w *Watcher) isSettled(r watch.Comparison, device string) bool {
	for _, g := range w.ledger.Inventory.GPUs {
		isIt := func(m grant.MIGDevice) bool { return m.UUID == device }
		if g.UUID == device || slices.ContainsFunc(g.MIG, isIt) {
			return w.tracker.IsSettled(g.UUID)
		}
	}
	return !slices.ContainsFunc(r.GPUs, func(g watch.GPUUse) bool { return !w.tracker.IsSettled(g.UUID) })
}

// saveEvery is how old the report file may get while the use hardly changes.
const saveEvery = 2500 * time.Millisecond
