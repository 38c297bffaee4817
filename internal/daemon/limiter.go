package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/cgmem"
	"github.com/gpuledger/gpuledger/internal/daemon/daemonlog"
	"github.com/gpuledger/gpuledger/internal/daemon/ledgercache"
	"github.com/gpuledger/gpuledger/internal/daemon/nvmlchild"
	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// limiter is the manager of the driver's own memory limits (docs/adr/0046): it sets them for the hook of a create, holds them against
// the ledger at every pass, and takes them off before or after a cgroup goes.
type LimitManager struct {
	node   func() *node.Node
	driver interface {
		Limit(context.Context, grant.Source, []grant.CgroupLimit) ([]grant.CgroupLimit, error)
		Close()
	}
	cache  *ledgercache.Cache // as it was last read
	log    *logrus.Logger
	socket requestSocket

	driftCount atomic.Uint64 // limits that somebody else has changed
	current    atomic.Pointer[[]grant.Finding]

	mu         sync.Mutex // one change at a time
	known      []limitedCgroup
	tracker    watch.Tracker
	pending    map[cgroupGPU]bool // ordered and not seen yet: what is wrong there nobody else has changed
	runDir     string             // the run directory that they are kept in
	followed   ledger.Stamp       // the ledger's values as of then are known
	followedAt time.Time          // when they were taken over
	answered   bool               // the driver has answered

	completed   ledger.Stamp // the bindings as of then have limits
	completedAt time.Time    // when that was looked for
}

func newLimitManager(n func() *node.Node, ledger *ledgercache.Cache, config string, log *logrus.Logger) *LimitManager {
	return &LimitManager{node: n, driver: nvmlchild.NewLimitSetter(config), cache: ledger, log: log}
}

func (l *LimitManager) Name() string { return "limits" }

// Stop leaves the limits where they are: containers outlive the daemon.
func (l *LimitManager) Stop() {
	l.socket.close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.driver.Close()
}

// Ensure opens the door where the driver can limit memory or limits stand, and looks after those. Whether a new container gets one is
// not the door's to say, but policy's and the inventory's at its create: one that is open stays so, for those that have been admitted. It is
// shut while nothing is limited and no answer could be a good one: the driver is silent, or what is limited cannot be read.
func (l *LimitManager) Ensure(ctx context.Context) error {
	n := l.node()
	inv, problem := n.Inventory()
	could := problem == nil && inv.Driver.MemoryLimits == grant.CanLimit && n.Policy.Enforcement.Limit != grant.LibraryBackend
	stand, err := l.check(ctx, n, could)
	unable := err != nil
	err = errors.Join(err, l.limitMissing(ctx, n))
	switch {
	case unable && !stand: // so a create takes what else there is, and is not refused by its hook
		l.socket.close()
	case could || stand || l.socket.isOpen():
		err = errors.Join(l.socket.open(n.Policy.LimitSocket(), l.handle), err)
	}
	return err
}

// take reads what is known of the run directory's limits. The lock is held.
func (l *LimitManager) load(n *node.Node) error {
	if l.runDir == n.Policy.RunDir {
		return nil
	}
	boot, err := n.Host.BootID()
	if err != nil {
		return err
	}
	known, err := loadRecord(n.Policy.RunDir, boot)
	if err == nil {
		l.known, l.pending, l.runDir, l.followed = known.List, nil, n.Policy.RunDir, ledger.Stamp{}
	}
	return err
}

// keep writes down what is known. The lock is held.
func (l *LimitManager) save(n *node.Node, known []limitedCgroup) error {
	boot, err := n.Host.BootID()
	if err == nil {
		err = recordFile{List: known}.save(n.Policy.RunDir, boot)
	}
	if err == nil {
		l.known = known
		maps.DeleteFunc(l.pending, func(p cgroupGPU, _ bool) bool {
			return !slices.ContainsFunc(known, func(f limitedCgroup) bool { return f.dir(n.Host) == p.cgroup })
		})
	}
	return err
}

// answer does what a program of ours asks for.
func (l *LimitManager) handle(ctx context.Context, r cgmem.Request, peer int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.node()
	if err := l.load(n); err != nil {
		return err
	}
	switch r.Op {
	case cgmem.Set:
		return l.limitCreated(ctx, n, r, peer)
	case cgmem.Apply:
		return l.updateGrant(ctx, n, r.Grant, reduction{})
	case cgmem.Lower:
		by, _, err := n.Host.Process(peer)
		if err != nil {
			return fmt.Errorf("cannot tell who asks: %w", err)
		}
		return l.updateGrant(ctx, n, r.Grant, reduction{To: r.To, By: by})
	case cgmem.Clear:
		_, err := l.clear(ctx, n, func(f limitedCgroup) bool { return f.RuntimeRoot == r.RuntimeRoot && f.Container == r.Container })
		return err
	}
	return fmt.Errorf("gpuledgerd does not know the request %q", grant.Printable(string(r.Op)))
}

// set limits the container that is being created: its grant, its cgroup and what it may have are the ledger's and the kernel's word.
func (l *LimitManager) limitCreated(ctx context.Context, n *node.Node, r cgmem.Request, peer int) error {
	f, err := l.identify(n, r, peer)
	if err != nil {
		return err
	}
	return l.limitOrUndo(ctx, n, f)
}

// limit gives a leaf its limits. What of them was set is taken off again where one cannot be: the container does not start, or starts
// with nothing that holds it.
func (l *LimitManager) limitOrUndo(ctx context.Context, n *node.Node, f limitedCgroup) error {
	t, err := l.limitAndRecord(ctx, n, f)
	if err == nil && t.err() != nil {
		l.undo(ctx, n, f)
		err = t.err()
	}
	return err
}

// impose writes a leaf down and has the driver limit it; the trouble is the driver's.
func (l *LimitManager) limitAndRecord(ctx context.Context, n *node.Node, f limitedCgroup) (t limitErrors, err error) {
	for _, other := range l.known {
		_, populated := other.exists(n.Host)
		if other.Cgroup == f.Cgroup && other.Inode == f.Inode && populated && (other.Container != f.Container || other.RuntimeRoot != f.RuntimeRoot) {
			return t, fmt.Errorf("container %q is limited by its cgroup %s already", other.Container, f.Cgroup)
		}
	}
	known := slices.DeleteFunc(slices.Clone(l.known), func(o limitedCgroup) bool { return o.Cgroup == f.Cgroup })
	if err := l.save(n, append(known, f)); err != nil {
		return t, fmt.Errorf("cannot write down what is to be limited: %w", err)
	}
	failpoint.Hit("limiter/recorded")
	t = l.setLimits(ctx, n, f.limits(n.Host, true))
	failpoint.Hit("limiter/set")
	return t, nil
}

// revoke takes off what of the limits of the leaf that was written down last is set.
func (l *LimitManager) undo(ctx context.Context, n *node.Node, f limitedCgroup) {
	l.known[len(l.known)-1].released = true
	_, _ = l.clear(ctx, n, func(o limitedCgroup) bool { return o.Cgroup == f.Cgroup }) // else the next pass
}

// look finds out from the ledger and the kernel what is asked for.
func (l *LimitManager) identify(n *node.Node, r cgmem.Request, peer int) (f limitedCgroup, err error) {
	var g grant.Grant
	var b grant.Binding
	err = n.Ledger.View(func(tx *ledger.Tx) error {
		if b, err = tx.Binding(r.RuntimeRoot, r.Container); err == nil {
			g, err = tx.Get(b.Grant)
		}
		return err
	})
	switch {
	case err != nil:
		return f, fmt.Errorf("the ledger does not tell its grant: %w", err)
	case b.Life != grant.Alive || !b.Driven || g.Mode != grant.Limit:
		return f, fmt.Errorf("the ledger has no create of container %q that the driver is to limit", r.Container)
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
	if runs, err := n.Host.Runs(init); err != nil || !runs { // else all of this could be about another of that pid
		return f, fmt.Errorf("its first process has ended (%v)", err)
	}
	return f, nil
}

// maxAncestors is how far a runtime's child may be from it: crun forks, and a hook may be behind a script.
const maxAncestors = 8

// descends is nil where a process is one that a container's creator has started.
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

// apply gives the containers of a grant what the ledger says now, or less.
func (l *LimitManager) updateGrant(ctx context.Context, n *node.Node, id grant.ID, to reduction) error {
	var g grant.Grant
	if err := n.Ledger.View(func(tx *ledger.Tx) (err error) {
		g, err = tx.Get(id)
		return err
	}); err != nil {
		return err
	}
	for _, b := range g.Bindings {
		if b.Driven && !slices.ContainsFunc(l.known, func(f limitedCgroup) bool { return f.Container == b.Container && f.RuntimeRoot == b.RuntimeRoot }) {
			return fmt.Errorf("gpuledgerd has set no limit for container %q, which uses grant %s", b.Container, id)
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

// order has the driver set limits, and believes nothing that it does not read back. One that cannot be set keeps no other from it.
func (l *LimitManager) setLimits(ctx context.Context, n *node.Node, asks []grant.CgroupLimit) (t limitErrors) {
	if len(asks) == 0 {
		return t
	}
	l.addPending(asks)
	answers, err := l.driver.Limit(ctx, n.Policy.Inventory, asks)
	if err != nil {
		l.answered, t.noAnswer = false, true // the next pass finds out whether it answers
	}
	for i, ask := range asks {
		switch {
		case err != nil:
			t.add(ask.Cgroup, err.Error())
		case answers[i].Error != "":
			t.add(ask.Cgroup, grant.Printable(answers[i].Error))
		case ask.Hard != grant.NoLimit && !roughlyEqual(answers[i].Hard, ask.Hard): // no limit may be told as the GPU's size
			t.add(ask.Cgroup, fmt.Sprintf("the driver was told to limit %s to %s of GPU %s, and says %s", ask.Cgroup, ask.Hard, ask.GPU, answers[i].Hard))
		default:
			delete(l.pending, cgroupGPUOf(ask))
		}
	}
	return t
}

func (l *LimitManager) addPending(asks []grant.CgroupLimit) {
	if l.pending == nil {
		l.pending = map[cgroupGPU]bool{}
	}
	for _, ask := range asks {
		l.pending[cgroupGPUOf(ask)] = true
	}
}

// rounding is less than what a driver may round a limit by: it gives memory out in pages of up to 2 MiB.
const rounding = 2 * grant.MiB

func roughlyEqual(a, b grant.Bytes) bool { return max(a, b)-min(a, b) < rounding }

// clear takes the limits off the cgroups of containers that are gone, and off those that are not to be held, and forgets them with
// those whose cgroup is gone, too. In which somebody is left keeps its limit, whatever becomes of its grant. One that cannot be
// cleared is tried again, and keeps no other. It returns how many were forgotten.
func (l *LimitManager) clear(ctx context.Context, n *node.Node, which func(limitedCgroup) bool) (int, error) {
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
	l.known = known // what is over is not held any more
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

// pass takes off what is over, holds what is set against the ledger and the driver, and reports whether limits stand. Whatever of
// that fails keeps the rest from nothing.
func (l *LimitManager) check(ctx context.Context, n *node.Node, could bool) (stand bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.load(n); err != nil {
		return false, err
	}
	err = l.followLedger(n)
	gone, e := l.clear(ctx, n, func(limitedCgroup) bool { return true })
	if gone > 0 {
		l.log.WithField("cgroups", gone).Info("the driver's memory limits of containers that are gone are taken off")
	}
	err = errors.Join(err, e, l.repairDrifts(ctx, n, could))
	return len(l.known) > 0, err
}

// follow takes over what the ledger has changed behind our back: a `grant --update` that died half-way, and a container that it says
// has started with nothing that holds it.
func (l *LimitManager) followLedger(n *node.Node) error {
	changed, now := n.Ledger.Stamp(), time.Now()
	lowers := slices.ContainsFunc(l.known, func(f limitedCgroup) bool { return f.Reduction.By.PID != 0 })
	if len(l.known) == 0 || !lowers && l.followed == changed && changed.Before(l.followedAt) && now.Sub(l.followedAt) < ledgercache.MaxAge {
		return nil
	}
	var moved []grant.CgroupLimit
	known := slices.Clone(l.known)
	if err := n.Ledger.View(func(tx *ledger.Tx) error {
		for i, f := range known {
			if b, err := tx.Binding(f.RuntimeRoot, f.Container); err == nil && !b.Driven {
				known[i].released = true
			}
			// Of a grant that is over or damaged the containers keep what they have.
			g, err := tx.Get(f.Grant)
			if err != nil {
				continue
			}
			if !f.Reduction.inProgress(n.Host) {
				known[i].Reduction = reduction{}
			}
			if want := f.Reduction.apply(n.Host, g.GPUs); !slices.Equal(f.GPUs, want) {
				known[i].GPUs = want
				moved = append(moved, known[i].limits(n.Host, true)...)
			}
		}
		return nil
	}); err != nil {
		return fmt.Errorf("cannot hold the driver's limits against the ledger: %w", err)
	}
	if len(moved) > 0 {
		if err := l.save(n, known); err != nil {
			return err
		}
		l.addPending(moved) // and hold sets them
		l.log.WithField("limits", len(moved)).Info("the driver's memory limits follow the ledger")
	}
	l.known, l.followed, l.followedAt = known, changed, now
	return nil
}

// hold sets again what is not as it should be, and says so where somebody else has changed it.
func (l *LimitManager) repairDrifts(ctx context.Context, n *node.Node, could bool) error {
	var asks, again []grant.CgroupLimit
	for _, f := range l.known {
		if !f.released {
			asks = append(asks, f.limits(n.Host, false)...)
		}
	}
	if len(asks) == 0 && (!could || l.answered) {
		l.reportDrifts(n, nil)
		return nil
	}
	answers, err := l.driver.Limit(ctx, n.Policy.Inventory, asks) // the first time of none: a create need not wait for the driver's library
	if err != nil {
		return fmt.Errorf("cannot tell what the driver limits: %w", err)
	}
	l.answered = true
	var drifts []grant.Finding
	var t limitErrors
	for i, a := range answers {
		switch ask := asks[i]; {
		case a.Error != "":
			t.add(a.Cgroup, grant.Printable(a.Error))
		case roughlyEqual(a.Hard, ask.Hard):
			delete(l.pending, cgroupGPUOf(ask))
		default:
			if !l.pending[cgroupGPUOf(ask)] {
				drifts = append(drifts, l.driftOf(n, a, ask.Hard))
			}
			ask.Set = true
			again = append(again, ask)
		}
	}
	l.reportDrifts(n, drifts)
	return errors.Join(t.err(), l.setLimits(ctx, n, again).err())
}

// tell counts what somebody else has changed, and says it when it is new and when it is over, as the watch does: who changes a limit
// as often as it is put right fills no log.
func (l *LimitManager) reportDrifts(n *node.Node, drifts []grant.Finding) {
	l.driftCount.Add(uint64(len(drifts)))
	news := l.tracker.Update(&watch.Report{Taken: n.Host.Now(), Findings: drifts})
	stands := l.Findings()
	for _, f := range news.Begun {
		l.log.WithFields(daemonlog.FindingFields(f)).Warn(f.Message)
		n.Found("found", f, grant.ReportFinding, f.Message)
		stands = append(stands, f)
	}
	for _, f := range news.Ended {
		l.log.WithFields(daemonlog.FindingFields(f)).Info("over: " + f.Message)
		n.Found("over", f, "", f.Message)
		stands = slices.DeleteFunc(stands, func(s grant.Finding) bool { return s.Key() == f.Key() })
	}
	l.current.Store(&stands)
}

// Stands is what was told and is not over.
func (l *LimitManager) Findings() []grant.Finding {
	if stands := l.current.Load(); stands != nil {
		return slices.Clone(*stands)
	}
	return nil
}

// found is a limit that somebody else has changed.
func (l *LimitManager) driftOf(n *node.Node, a grant.CgroupLimit, want grant.Bytes) grant.Finding {
	f := grant.Finding{Kind: grant.LimitChanged, GPU: a.GPU, Index: -1, Bytes: a.Hard}
	limit := a.Hard.String()
	if a.Hard == grant.NoLimit {
		limit, f.Bytes = "none", 0
	}
	if i := slices.IndexFunc(l.known, func(f limitedCgroup) bool { return f.dir(n.Host) == a.Cgroup }); i >= 0 {
		f.Grant, f.User.Container, f.User.Cgroup = l.known[i].Grant, l.known[i].Container, l.known[i].Cgroup
		for _, s := range l.known[i].GPUs {
			if s.UUID == a.GPU {
				f.Index = s.Index
			}
		}
	}
	f.Message = fmt.Sprintf("the driver's limit of container %q on GPU %d was %s and not %s: somebody else has changed it; it is set again", grant.Printable(f.User.Container), f.Index, limit, want)
	return f
}
