package driverlimits

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpuledger/gpuledger/internal/cgmem"
	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// limitCreated limits a container that is being created. The grant, the cgroup and the limits come
// from the ledger and the kernel, not from the request.
func (l *Enforcer) limitCreated(ctx context.Context, n *node.Node, r cgmem.Call, peer int) error {
	f, err := identify(n, r, peer)
	if err != nil {
		return err
	}
	return l.limitOrUndo(ctx, n, f)
}

// limitOrUndo sets a cgroup's limits, or removes all of them again if one cannot be set. In that
// case the container does not start, or starts without them.
func (l *Enforcer) limitOrUndo(ctx context.Context, n *node.Node, f limitedCgroup) error {
	t, err := l.limitAndRecord(ctx, n, f)
	if err == nil && t.err() != nil {
		l.undo(ctx, n, f)
		err = t.err()
	}
	return err
}

// limitAndRecord records a cgroup and then sets its limits. It returns the
// errors of the driver, or why the cgroup could not be recorded.
func (l *Enforcer) limitAndRecord(ctx context.Context, n *node.Node, f limitedCgroup) (limitErrors, error) {
	for _, other := range l.known {
		_, populated := other.exists(n.Host)
		if other.Cgroup == f.Cgroup && other.Inode == f.Inode && populated &&
			!other.isOf(f.RuntimeRoot, f.Container) {
			return limitErrors{}, fmt.Errorf("container %q is limited by its cgroup %s already",
				other.Container, f.Cgroup)
		}
	}
	known := slices.DeleteFunc(slices.Clone(l.known),
		func(o limitedCgroup) bool { return o.Cgroup == f.Cgroup })
	if err := l.save(n, append(known, f)); err != nil {
		return limitErrors{}, fmt.Errorf("cannot write down what is to be limited: %w", err)
	}
	failpoint.Hit("limiter/recorded")
	t := l.setLimits(ctx, n, f.limits(n.Host, true))
	failpoint.Hit("limiter/set")
	return t, nil
}

// undo removes the limits of the cgroup that was recorded last.
func (l *Enforcer) undo(ctx context.Context, n *node.Node, f limitedCgroup) {
	l.known[len(l.known)-1].released = true
	// if it fails, the next pass does it
	_, _ = l.clear(ctx, n, func(o limitedCgroup) bool { return o.Cgroup == f.Cgroup })
}

// identify finds a request's grant and cgroup, by the ledger and the kernel.
func identify(n *node.Node, r cgmem.Call, peer int) (f limitedCgroup, err error) {
	var g grant.Grant
	var b grant.Binding
	err = n.Ledger.View(func(tx *ledger.Tx) error {
		if b, err = tx.Bindings.Of(r.RuntimeRoot, r.Container); err == nil {
			g, err = tx.Get(b.Grant)
		}
		return err
	})
	switch {
	case err != nil:
		return f, fmt.Errorf("cannot read its grant from the ledger: %w", err)
	case b.Life != grant.Alive || !b.Driven || g.Mode != grant.Limit:
		return f, fmt.Errorf("the ledger has no create of container %q that the driver is to limit",
			r.Container)
	}
	init, _, err := n.Host.Process(r.PID)
	if err != nil {
		return f, fmt.Errorf("its first process cannot be found: %w", err)
	}
	for _, pid := range []int{peer, r.PID} {
		if err := checkDescends(n, pid, b.Creator); err != nil {
			return f, err
		}
	}
	f = limitedCgroup{Grant: g.ID, RuntimeRoot: b.RuntimeRoot, Container: b.Container, GPUs: g.GPUs}
	if f.Cgroup, err = ownCgroupOf(n.Host, r.PID); err != nil {
		return f, err
	}
	if f.Inode, err = inodeOf(f.dir(n.Host)); err != nil {
		return f, err
	}
	procs, err := os.ReadFile(filepath.Join(f.dir(n.Host), "cgroup.procs"))
	if err != nil {
		return f, err
	}
	for _, word := range strings.Fields(string(procs)) {
		pid, _ := strconv.Atoi(word)
		if err := checkDescends(n, pid, b.Creator); err != nil {
			return f, fmt.Errorf("its cgroup %s has others in it: %w", f.Cgroup, err)
		}
	}
	// else what was read may be about another process with its pid
	if runs, err := n.Host.Runs(init); err != nil || !runs {
		return f, fmt.Errorf("its first process has ended (%v)", err)
	}
	return f, nil
}

// maxAncestors is how many processes may be between a runtime and its child: crun forks, and a hook
// may be called by a script.
const maxAncestors = 8

// checkDescends is nil if a container's creator has started the process.
func checkDescends(n *node.Node, pid int, creator grant.Process) error {
	for at := range maxAncestors {
		p, parent, err := n.Host.Process(pid)
		switch {
		case err != nil:
			return fmt.Errorf("cannot tell who started process %d: %w", pid, err)
		case p == creator && at > 0:
			return nil
		}
		if pid = parent; pid <= 1 {
			break
		}
	}
	return fmt.Errorf("process %d is not of the create that the ledger knows", pid)
}

// updateGrant sets the limits of a grant's containers to what the ledger says now, or to less.
func (l *Enforcer) updateGrant(ctx context.Context, n *node.Node, id grant.ID, to reduction) error {
	var g grant.Grant
	if err := n.Ledger.View(func(tx *ledger.Tx) (err error) {
		g, err = tx.Get(id)
		return err
	}); err != nil {
		return err
	}
	for _, b := range g.Bindings {
		isOf := func(f limitedCgroup) bool { return f.isOf(b.RuntimeRoot, b.Container) }
		if b.Driven && !slices.ContainsFunc(l.known, isOf) {
			return fmt.Errorf("gpuledgerd has set no limit for container %q, which uses grant %s",
				b.Container, id)
		}
	}
	var asks []grant.CgroupLimit
	known := slices.Clone(l.known)
	for i := range known {
		if known[i].Grant == id && !known[i].released {
			known[i].GPUs, known[i].Reduction = to.apply(n.Host, g.GPUs), to
			if there, _ := known[i].exists(n.Host); there {
				asks = append(asks, known[i].limits(n.Host, true)...)
			}
		}
	}
	if err := l.save(n, known); err != nil {
		return err
	}
	return l.setLimits(ctx, n, asks).err()
}

// setLimits sets limits, and reads each back. One that cannot be set does not prevent the others.
func (l *Enforcer) setLimits(ctx context.Context, n *node.Node, asks []grant.CgroupLimit) (t limitErrors) {
	if len(asks) == 0 {
		return t
	}
	l.pending.add(asks)
	answers, err := l.driver.Limit(ctx, n.Policy.Inventory, asks)
	if err != nil {
		l.answered, t.noAnswer = false, true // the next pass asks again
	}
	for i, ask := range asks {
		switch {
		case err != nil:
			t.add(ask.Cgroup, err.Error())
		case answers[i].Error != "":
			t.add(ask.Cgroup, grant.Printable(answers[i].Error))
		// no limit may be reported as the GPU's size
		case ask.Hard != grant.NoLimit && !roughlyEqual(answers[i].Hard, ask.Hard):
			t.add(ask.Cgroup, fmt.Sprintf("the driver was asked to limit %s to %s of GPU %s, and reports %s",
				ask.Cgroup, ask.Hard, ask.GPU, answers[i].Hard))
		default:
			delete(l.pending, cgroupGPUOf(ask))
		}
	}
	return t
}

// pendingLimits are limits that were set and not read back yet. A wrong value there is no drift.
type pendingLimits map[cgroupGPU]bool

func (p *pendingLimits) add(asks []grant.CgroupLimit) {
	if *p == nil {
		*p = pendingLimits{}
	}
	for _, ask := range asks {
		(*p)[cgroupGPUOf(ask)] = true
	}
}

// rounding is more than a driver rounds a limit by: it allocates memory in pages of up to 2 MiB.
const rounding = 2 * grant.MiB

func roughlyEqual(a, b grant.Bytes) bool { return max(a, b)-min(a, b) < rounding }

// clear removes the limits of released cgroups and of those without processes, and forgets these
// cgroups and those that are gone. A cgroup with processes keeps its limits, whatever becomes of
// its grant. A limit that cannot be removed is tried again in the next pass, and does not prevent
// the others. It returns how many cgroups were forgotten.
func (l *Enforcer) clear(ctx context.Context, n *node.Node, which func(limitedCgroup) bool) (int, error) {
	var asks []grant.CgroupLimit
	known, ends := slices.Clone(l.known), false
	for i, f := range known {
		there, populated := f.exists(n.Host)
		if !which(f) || populated && !f.released {
			continue
		}
		known[i].released, ends = true, true
		if there {
			for _, ask := range f.limits(n.Host, true) {
				ask.Hard = grant.NoLimit
				asks = append(asks, ask)
			}
		}
	}
	if !ends {
		return 0, nil
	}
	t := l.setLimits(ctx, n, asks)
	failpoint.Hit("limiter/cleared")
	all := len(known)
	left := slices.DeleteFunc(slices.Clone(known), func(f limitedCgroup) bool {
		there, _ := f.exists(n.Host)
		return f.released && which(f) && !(there && t.failed[f.dir(n.Host)])
	})
	l.known = known // released cgroups are not checked any more
	if len(left) == all {
		return 0, t.wrap("cannot take the driver's limits off")
	}
	if err := l.save(n, left); err != nil {
		return 0, err
	}
	for dir := range t.failed {
		if !slices.ContainsFunc(left, func(f limitedCgroup) bool { return f.dir(n.Host) == dir }) {
			t.remove(dir)
		}
	}
	return all - len(left), t.wrap("cannot take the driver's limits off")
}
