package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/daemon/daemonlog"
	"github.com/gpuledger/gpuledger/internal/daemon/ledgercache"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// createTime is longer than a create takes with its hook: until it is over the limit of a container may still be on its way.
const createTime = 2 * time.Minute

// errSilent: nothing is known of what the driver limits.
var errNoAnswer = errors.New("the driver does not answer")

// unholdable is why a container cannot be held by the driver at all, and not only now.
type cannotLimit struct{ error }

// complete looks for containers that the driver is said to hold and that have no limit (who wrote down what is limited may have lost it),
// and sets it. Of one that cannot be held the ledger says so; where that is not known (NVML hangs, the disk is full) all stays as it is, for the
// driver may hold it, and the next pass looks again.
func (l *LimitManager) limitMissing(ctx context.Context, n *node.Node) error {
	var failed []error
	for _, b := range l.unlimited(n) {
		err := l.limitRunning(ctx, n, b)
		var never cannotLimit
		if err != nil && !errors.As(err, &never) {
			failed = append(failed, fmt.Errorf("cannot have the driver hold container %q again: %w", grant.Printable(b.Container), err))
			l.retryMissing()
			if errors.Is(err, errNoAnswer) {
				break // it would be so of each
			}
			continue
		}
		f := grant.Finding{Kind: grant.LimitChanged, Index: -1, Grant: b.Grant}
		f.User.Container = b.Container
		f.Message = fmt.Sprintf("container %q, which the driver is said to hold, had no limit; it is set", grant.Printable(b.Container))
		if err != nil { // with nothing locked: who has the ledger may be waiting for us
			n.Weaken(grant.Container{RuntimeRoot: b.RuntimeRoot, ID: b.Container, Bundle: b.Bundle})
			f.Message = fmt.Sprintf("container %q, which the driver is said to hold, has no limit, and none can be set: %v; the ledger says now that nothing holds it", grant.Printable(b.Container), err)
			failed = append(failed, errors.New(f.Message))
		}
		l.driftCount.Add(1)
		l.log.WithFields(daemonlog.FindingFields(f)).Warn(f.Message)
		n.Found("found", f, grant.ReportFinding, f.Message)
	}
	return errors.Join(failed...)
}

// lookAgain has the next pass look, though nothing has changed.
func (l *LimitManager) retryMissing() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.completedAt = time.Time{}
}

// unheld are the bindings of containers that run, are said to be held by the driver, and are in none of the leaves. It looks when the ledger
// has changed, and now and then; at those alone that can be meant, of which most nodes have none.
func (l *LimitManager) unlimited(n *node.Node) (found []grant.Binding) {
	changed, now := n.Ledger.Stamp(), time.Now() // before anything is read
	driven, err := l.drivenBindings(n)
	if err != nil || len(driven) == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.load(n) != nil || l.completed == changed && changed.Before(l.completedAt) && now.Sub(l.completedAt) < ledgercache.MaxAge {
		return nil
	}
	err = n.Ledger.View(func(tx *ledger.Tx) error {
		for _, b := range driven {
			known := slices.ContainsFunc(l.known, func(f limitedCgroup) bool { return f.Container == b.Container && f.RuntimeRoot == b.RuntimeRoot })
			if known {
				continue
			}
			is, err := tx.Binding(b.RuntimeRoot, b.Container)
			switch {
			case errors.Is(err, ledger.ErrNotFound): // gone since
			case err != nil:
				return err
			case is.Driven && is.Life == grant.Alive && isCreated(n, is):
				found = append(found, is)
			}
		}
		return nil
	})
	if err == nil {
		l.completed, l.completedAt = changed, now
	}
	return found
}

// driven are the bindings that the ledger says the driver holds, as it was last read.
func (l *LimitManager) drivenBindings(n *node.Node) (drivenBindings []grant.Binding, err error) {
	o, _, err := l.cache.Read(n, false)
	for _, g := range o.Grants {
		for _, b := range g.Bindings {
			if b.Driven {
				drivenBindings = append(drivenBindings, b)
			}
		}
	}
	return drivenBindings, err
}

// made reports whether a container runs and its create is over.
func isCreated(n *node.Node, b grant.Binding) bool {
	init, known := n.Ledger.ContainerInit(b.RuntimeRoot, b.Container)
	if !known {
		return false
	}
	runs, err := n.Host.Runs(init)
	creates, _ := n.Host.Runs(b.Creator) // as long as its container, where that is not detached
	return err == nil && runs && (!creates || n.Host.Now().Sub(b.Created) > createTime)
}

// resume limits a container that runs already, by the cgroup that its runtime has recorded: what is below that is the container's own.
func (l *LimitManager) limitRunning(ctx context.Context, n *node.Node, b grant.Binding) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var g grant.Grant
	if err := n.Ledger.View(func(tx *ledger.Tx) (err error) {
		g, err = tx.Get(b.Grant)
		return err
	}); err != nil {
		return err
	}
	init, _ := n.Ledger.ContainerInit(b.RuntimeRoot, b.Container)
	f := limitedCgroup{Grant: g.ID, RuntimeRoot: b.RuntimeRoot, Container: b.Container, GPUs: g.GPUs}
	own, err := ownCgroupOf(n.Host, init.PID)
	var unread *fs.PathError
	switch {
	case errors.As(err, &unread): // as of a process that has just ended
		return err
	case err != nil:
		return cannotLimit{err}
	}
	recorded, below := strings.CutPrefix(n.Ledger.ContainerCgroup(b.RuntimeRoot, b.Container), cgroupRoot(n.Host))
	if !below || recorded == "" || recorded == "/" || own != recorded && !strings.HasPrefix(own, recorded+"/") {
		return cannotLimit{fmt.Errorf("its first process is in the cgroup %s, and its runtime recorded %q", own, recorded)}
	}
	f.Cgroup = recorded
	if f.Inode, err = inodeOf(f.dir(n.Host)); err != nil {
		return err
	}
	if runs, err := n.Host.Runs(init); err != nil || !runs {
		return fmt.Errorf("its first process has ended (%v)", err)
	}
	return l.limitAgain(ctx, n, f)
}

// reimpose limits the leaf of a container that runs. Where the driver is silent, what it limits is what it limited before: nothing is taken
// off, and the leaf is forgotten until the next pass.
func (l *LimitManager) limitAgain(ctx context.Context, n *node.Node, f limitedCgroup) error {
	before := l.known
	t, err := l.limitAndRecord(ctx, n, f)
	switch {
	case err != nil:
		return err
	case t.noAnswer:
		return errors.Join(fmt.Errorf("%w: %w", errNoAnswer, t.err()), l.save(n, before))
	case t.err() != nil:
		l.undo(ctx, n, f)
		return cannotLimit{t.err()}
	}
	return nil
}
