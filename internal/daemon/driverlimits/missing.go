package driverlimits

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
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// createTime is longer than a create takes with its hook. Until then a container's limit may still
// be on its way.
const createTime = 2 * time.Minute

// errNoAnswer means that nothing is known about the driver's limits.
var errNoAnswer = errors.New("the driver does not answer")

// cannotLimit is why the driver can never limit a container, and not only at the moment.
type cannotLimit struct{ error }

// limitMissing finds containers that the ledger says the driver limits and that have no limit,
// because the record was lost, and sets it. If a container cannot be limited, the ledger says so
// afterwards. If that is unknown (NVML hangs, the disk is full), nothing changes: the driver may
// limit it, and the next pass tries again.
func (l *Enforcer) limitMissing(ctx context.Context, n *node.Node) error {
	var failed []error
	for _, b := range l.unlimited(n) {
		err := l.limitRunning(ctx, n, b)
		var never cannotLimit
		if err != nil && !errors.As(err, &never) {
			failed = append(failed, fmt.Errorf("cannot have the driver hold container %q again: %w",
				grant.Printable(b.Container), err))
			l.retryMissing()
			if errors.Is(err, errNoAnswer) {
				break // it would be the same for each
			}
			continue
		}
		f := grant.Finding{Kind: grant.LimitChanged, Index: -1, Grant: b.Grant}
		f.User.Container = b.Container
		f.Message = fmt.Sprintf("container %q, which the driver is said to hold, had no limit; it is set",
			grant.Printable(b.Container))
		if err != nil { // with no lock held: a process that has locked the ledger may be waiting for this one
			n.Weaken(grant.Container{RuntimeRoot: b.RuntimeRoot, ID: b.Container, Bundle: b.Bundle})
			f.Message = fmt.Sprintf("container %q, which the driver is said to hold, has no limit, and "+
				"none can be set: %v; the ledger says now that nothing holds it",
				grant.Printable(b.Container), err)
			failed = append(failed, errors.New(f.Message))
		}
		l.driftCount.Add(1)
		l.log.WithFields(daemonlog.FindingFields(f)).Warn(f.Message)
		n.Found("found", f, grant.ReportFinding, f.Message)
	}
	return errors.Join(failed...)
}

// retryMissing makes the next pass look again, even if nothing has changed.
func (l *Enforcer) retryMissing() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.completedAt = time.Time{}
}

// unlimited returns the bindings of containers that run, that the ledger says the driver limits,
// and that are not in the record. It looks when the ledger has changed, and from time to time, and
// only at bindings of the driver, of which most nodes have none.
func (l *Enforcer) unlimited(n *node.Node) (found []grant.Binding) {
	changed, now := n.Ledger.Stamp(), time.Now() // before anything is read
	driven, err := drivenBindings(l.cache, n)
	if err != nil || len(driven) == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.load(n) != nil || l.completed == changed && changed.Before(l.completedAt) &&
		now.Sub(l.completedAt) < ledgercache.MaxAge {
		return nil
	}
	err = n.Ledger.View(func(tx *ledger.Tx) error {
		for _, b := range driven {
			isOf := func(f limitedCgroup) bool { return f.isOf(b.RuntimeRoot, b.Container) }
			if slices.ContainsFunc(l.known, isOf) {
				continue
			}
			is, err := tx.Bindings.Of(b.RuntimeRoot, b.Container)
			switch {
			case errors.Is(err, ledger.ErrNotFound): // it is gone by now
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

// drivenBindings returns the bindings that the driver limits, by the cached ledger.
func drivenBindings(cache *ledgercache.Cache, n *node.Node) (drivenBindings []grant.Binding, err error) {
	o, _, err := cache.Read(n, false)
	for _, g := range o.Grants {
		for _, b := range g.Bindings {
			if b.Driven {
				drivenBindings = append(drivenBindings, b)
			}
		}
	}
	return drivenBindings, err
}

// isCreated reports whether a container runs and its create is over.
func isCreated(n *node.Node, b grant.Binding) bool {
	init, known := n.Ledger.Containers.Init(b.RuntimeRoot, b.Container)
	if !known {
		return false
	}
	runs, err := n.Host.Runs(init)
	creates, _ := n.Host.Runs(b.Creator) // as long as its container, if that is not detached
	return err == nil && runs && (!creates || n.Host.Now().Sub(b.Created) > createTime)
}

// limitRunning limits a running container.
func (l *Enforcer) limitRunning(ctx context.Context, n *node.Node, b grant.Binding) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	f, err := runningCgroup(n, b)
	if err != nil {
		return err
	}
	return l.limitAgain(ctx, n, f)
}

// runningCgroup is the cgroup of a running container, which its runtime has recorded. All cgroups
// below that belong to the container.
func runningCgroup(n *node.Node, b grant.Binding) (f limitedCgroup, err error) {
	var g grant.Grant
	if err := n.Ledger.View(func(tx *ledger.Tx) (err error) {
		g, err = tx.Get(b.Grant)
		return err
	}); err != nil {
		return f, err
	}
	init, _ := n.Ledger.Containers.Init(b.RuntimeRoot, b.Container)
	f = limitedCgroup{Grant: g.ID, RuntimeRoot: b.RuntimeRoot, Container: b.Container, GPUs: g.GPUs}
	own, err := ownCgroupOf(n.Host, init.PID)
	var unread *fs.PathError
	switch {
	case errors.As(err, &unread): // for example of a process that has just ended
		return f, err
	case err != nil:
		return f, cannotLimit{err}
	}
	recorded, below := strings.CutPrefix(n.Ledger.Containers.Cgroup(b.RuntimeRoot, b.Container),
		cgroupRoot(n.Host))
	if !below || recorded == "" || recorded == "/" || !host.Within(own, recorded) {
		return f, cannotLimit{fmt.Errorf("its first process is in the cgroup %s, and its runtime recorded %q",
			own, recorded)}
	}
	f.Cgroup = recorded
	if f.Inode, err = inodeOf(f.dir(n.Host)); err != nil {
		return f, err
	}
	if runs, err := n.Host.Runs(init); err != nil || !runs {
		return f, fmt.Errorf("its first process has ended (%v)", err)
	}
	return f, nil
}

// limitAgain limits the cgroup of a running container. If the driver does not answer, it limits
// what it limited before: nothing is removed, and the cgroup is not recorded until the next pass.
func (l *Enforcer) limitAgain(ctx context.Context, n *node.Node, f limitedCgroup) error {
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
