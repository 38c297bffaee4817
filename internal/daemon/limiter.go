package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/cgmem"
	"github.com/gpuledger/gpuledger/internal/failpoint"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// limiter is the manager of the driver's own memory limits (docs/adr/0046): it sets them for the hook of a create, holds them against
// the ledger at every pass, and takes them off before or after a cgroup goes.
type limiter struct {
	node   func() *node.Node
	driver interface {
		Limit(context.Context, grant.Source, []grant.CgroupLimit) ([]grant.CgroupLimit, error)
		Close()
	}
	log  *logrus.Logger
	door door

	drifts atomic.Uint64 // limits that somebody else has changed

	mu    sync.Mutex // one change at a time
	known []leaf
	run   string       // the run directory that they are kept in
	read  ledger.Stamp // the ledger's values as of then are known
	asked time.Time    // when they were taken over
	warm  bool         // the driver has answered
}

func newLimiter(n func() *node.Node, config string, log *logrus.Logger) *limiter {
	driver := &drivers{asker{command: []string{beside("gpuledger"), "inventory", "limits"}, config: config, first: firstSample, later: laterSample}}
	return &limiter{node: n, driver: driver, log: log}
}

// drivers has a child process set and read the limits.
type drivers struct{ asker }

// Limit asks once; an answer that is about something else, or about less, is none.
func (d *drivers) Limit(ctx context.Context, source grant.Source, asks []grant.CgroupLimit) (answers []grant.CgroupLimit, err error) {
	line, err := json.Marshal(asks)
	if err != nil {
		return nil, fmt.Errorf("internal error: %w", err)
	}
	err = d.exchange(ctx, source, line, func(line []byte) error {
		answers = nil
		if err := json.Unmarshal(line, &answers); err != nil {
			return fmt.Errorf("NVML's answer cannot be understood: %w", err)
		}
		if !slices.EqualFunc(asks, answers, func(a, b grant.CgroupLimit) bool { return a.Cgroup == b.Cgroup && a.GPU == b.GPU }) {
			return errors.New("NVML's answer is to something else")
		}
		return nil
	})
	return answers, err
}

func (d *drivers) Close() { d.drop() }

func (l *limiter) Name() string { return "limits" }

// Stop leaves the limits where they are: containers outlive the daemon.
func (l *limiter) Stop() {
	l.door.shut()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.driver.Close()
}

// Ensure opens the door where the driver can limit memory, and looks after the limits that are set.
func (l *limiter) Ensure(ctx context.Context) error {
	n := l.node()
	inv, problem := n.Inventory()
	could := problem == nil && inv.Driver.MemoryLimits == grant.CanLimit && n.Policy.Enforcement.Limit != grant.LibraryBackend
	err := l.pass(ctx, n, could)
	if !could {
		l.door.shut()
		return err
	}
	return errors.Join(l.door.open(n.Policy.LimitSocket(), l.answer), err)
}

// take reads what is known of the run directory's limits. The lock is held.
func (l *limiter) take(n *node.Node) error {
	if l.run == n.Policy.RunDir {
		return nil
	}
	boot, err := n.Host.BootID()
	if err != nil {
		return err
	}
	known, err := loadLeaves(n.Policy.RunDir, boot)
	if err == nil {
		l.known, l.run, l.read = known.List, n.Policy.RunDir, ledger.Stamp{}
	}
	return err
}

// keep writes down what is known. The lock is held.
func (l *limiter) keep(n *node.Node, known []leaf) error {
	boot, err := n.Host.BootID()
	if err == nil {
		err = leaves{List: known}.save(n.Policy.RunDir, boot)
	}
	if err == nil {
		l.known = known
	}
	return err
}

// answer does what a program of ours asks for.
func (l *limiter) answer(ctx context.Context, r cgmem.Request, peer int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.node()
	if err := l.take(n); err != nil {
		return err
	}
	switch r.Op {
	case cgmem.Set:
		return l.set(ctx, n, r, peer)
	case cgmem.Apply:
		return l.apply(ctx, n, r.Grant)
	case cgmem.Clear:
		_, err := l.clear(ctx, n, func(f leaf) bool { return f.RuntimeRoot == r.RuntimeRoot && f.Container == r.Container })
		return err
	}
	return fmt.Errorf("gpuledgerd does not know the request %q", grant.Printable(string(r.Op)))
}

// set limits the container that is being created: its grant, its cgroup and what it may have are the ledger's and the kernel's word.
func (l *limiter) set(ctx context.Context, n *node.Node, r cgmem.Request, peer int) error {
	f, err := l.look(n, r, peer)
	if err != nil {
		return err
	}
	for _, other := range l.known {
		_, populated := other.there(n.Host)
		if other.Cgroup == f.Cgroup && other.Inode == f.Inode && populated && (other.Container != f.Container || other.RuntimeRoot != f.RuntimeRoot) {
			return fmt.Errorf("container %q is limited by its cgroup %s already", other.Container, f.Cgroup)
		}
	}
	known := slices.DeleteFunc(slices.Clone(l.known), func(o leaf) bool { return o.Cgroup == f.Cgroup })
	if err := l.keep(n, append(known, f)); err != nil {
		return fmt.Errorf("cannot write down what is to be limited: %w", err)
	}
	failpoint.Hit("limiter/recorded")
	err = l.order(ctx, n, f.limits(n.Host, true))
	failpoint.Hit("limiter/set")
	return err // what was set is taken off when the cgroup is empty, as any other
}

// look finds out from the ledger and the kernel what is asked for.
func (l *limiter) look(n *node.Node, r cgmem.Request, peer int) (f leaf, err error) {
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
		if err := descends(n, pid, b.Creator); err != nil {
			return f, err
		}
	}
	f = leaf{Grant: g.ID, RuntimeRoot: b.RuntimeRoot, Container: b.Container, GPUs: g.GPUs}
	if f.Cgroup, err = leafOf(n.Host, r.PID); err != nil {
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
		if err := descends(n, pid, b.Creator); err != nil {
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
func descends(n *node.Node, pid int, creator grant.Process) error {
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

// apply gives the containers of a grant what the ledger says now.
func (l *limiter) apply(ctx context.Context, n *node.Node, id grant.ID) error {
	var g grant.Grant
	if err := n.Ledger.View(func(tx *ledger.Tx) (err error) {
		g, err = tx.Get(id)
		return err
	}); err != nil {
		return err
	}
	for _, b := range g.Bindings {
		if b.Driven && !slices.ContainsFunc(l.known, func(f leaf) bool { return f.Container == b.Container && f.RuntimeRoot == b.RuntimeRoot }) {
			return fmt.Errorf("gpuledgerd has set no limit for container %q, which uses grant %s", b.Container, id)
		}
	}
	var asks []grant.CgroupLimit
	known := slices.Clone(l.known)
	for i := range known {
		if known[i].Grant == id {
			known[i].GPUs = g.GPUs
			if there, _ := known[i].there(n.Host); there {
				asks = append(asks, known[i].limits(n.Host, true)...)
			}
		}
	}
	if err := l.keep(n, known); err != nil {
		return err
	}
	return l.order(ctx, n, asks)
}

// order has the driver set limits, and believes nothing that it does not read back.
func (l *limiter) order(ctx context.Context, n *node.Node, asks []grant.CgroupLimit) error {
	answers, err := l.driver.Limit(ctx, n.Policy.Inventory, asks)
	if err != nil {
		return err
	}
	for i, a := range answers {
		switch {
		case a.Error != "":
			return errors.New(grant.Printable(a.Error))
		case asks[i].Hard != grant.NoLimit && !near(a.Hard, asks[i].Hard): // no limit may be told as the GPU's size
			return fmt.Errorf("the driver was told to limit %s to %s of GPU %s, and says %s", a.Cgroup, asks[i].Hard, a.GPU, a.Hard)
		}
	}
	return nil
}

// rounding is less than what a driver may round a limit by: it gives memory out in pages of up to 2 MiB.
const rounding = 2 * grant.MiB

func near(a, b grant.Bytes) bool { return max(a, b)-min(a, b) < rounding }

// clear takes the limits off the cgroups of containers that are gone, and forgets those whose cgroup is gone, too. In which somebody
// is left keeps its limit, whatever the ledger says. It returns how many were forgotten.
func (l *limiter) clear(ctx context.Context, n *node.Node, which func(leaf) bool) (int, error) {
	var asks []grant.CgroupLimit
	over := map[string]bool{}
	for _, f := range l.known {
		there, populated := f.there(n.Host)
		if populated || !which(f) {
			continue
		}
		over[f.Cgroup] = true
		if there {
			for _, ask := range f.limits(n.Host, true) {
				ask.Hard = grant.NoLimit
				asks = append(asks, ask)
			}
		}
	}
	if len(over) == 0 {
		return 0, nil
	}
	if len(asks) > 0 {
		if err := l.order(ctx, n, asks); err != nil && slices.ContainsFunc(l.known, func(f leaf) bool {
			there, _ := f.there(n.Host)
			return there && over[f.Cgroup]
		}) {
			return 0, fmt.Errorf("cannot take the driver's limit off a cgroup whose container is gone: %w", err)
		}
	}
	failpoint.Hit("limiter/cleared")
	return len(over), l.keep(n, slices.DeleteFunc(slices.Clone(l.known), func(f leaf) bool { return over[f.Cgroup] }))
}

// pass clears what is over, and holds what is set against the ledger and the driver.
func (l *limiter) pass(ctx context.Context, n *node.Node, could bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.take(n); err != nil {
		return err
	}
	gone, err := l.clear(ctx, n, func(leaf) bool { return true })
	if gone > 0 {
		l.log.WithField("cgroups", gone).Info("the driver's memory limits of containers that are gone are taken off")
	}
	switch {
	case err != nil:
		return err
	case len(l.known) == 0 && (!could || l.warm):
		return nil
	}
	if err := l.follow(ctx, n); err != nil {
		return err
	}
	var asks []grant.CgroupLimit
	for _, f := range l.known {
		asks = append(asks, f.limits(n.Host, false)...)
	}
	answers, err := l.driver.Limit(ctx, n.Policy.Inventory, asks) // the first time of none: a create need not wait for the driver's library
	if err != nil {
		return fmt.Errorf("cannot tell what the driver limits: %w", err)
	}
	l.warm = true
	return l.hold(ctx, n, asks, answers)
}

// follow takes over what the ledger has changed behind our back: a `grant --update` that died half-way.
func (l *limiter) follow(ctx context.Context, n *node.Node) error {
	changed, now := n.Ledger.Stamp(), time.Now()
	if l.read == changed && changed.Before(l.asked) && now.Sub(l.asked) < bookRest {
		return nil
	}
	var asks []grant.CgroupLimit
	known := slices.Clone(l.known)
	_ = n.Ledger.View(func(tx *ledger.Tx) error {
		for i, f := range known {
			// Of a grant that is over or damaged the containers keep what they have.
			if g, err := tx.Get(f.Grant); err == nil && !slices.Equal(f.GPUs, g.GPUs) {
				known[i].GPUs = g.GPUs
				asks = append(asks, known[i].limits(n.Host, true)...)
			}
		}
		return nil
	})
	if len(asks) > 0 {
		if err := l.order(ctx, n, asks); err != nil {
			return err
		}
		if err := l.keep(n, known); err != nil {
			return err
		}
		l.log.WithField("limits", len(asks)).Info("the driver's memory limits follow the ledger")
	}
	l.read, l.asked = changed, now
	return nil
}

// hold sets again what is not as it should be, and says so.
func (l *limiter) hold(ctx context.Context, n *node.Node, asks, answers []grant.CgroupLimit) error {
	var again []grant.CgroupLimit
	var wrong []string
	for i, a := range answers {
		if a.Error != "" {
			wrong = append(wrong, grant.Printable(a.Error))
			continue
		}
		if near(a.Hard, asks[i].Hard) {
			continue
		}
		asks[i].Set = true
		again = append(again, asks[i])
		f := l.found(n, a, asks[i].Hard)
		wrong = append(wrong, f.Message)
		l.log.WithFields(fields(f)).Warn(f.Message)
		n.Found("found", f, grant.ReportFinding, f.Message)
		l.drifts.Add(1)
	}
	if len(again) > 0 {
		if err := l.order(ctx, n, again); err != nil {
			wrong = append(wrong, err.Error())
		}
	}
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}

// found is a limit that somebody else has changed.
func (l *limiter) found(n *node.Node, a grant.CgroupLimit, want grant.Bytes) grant.Finding {
	f := grant.Finding{Kind: grant.LimitChanged, GPU: a.GPU, Index: -1, Bytes: a.Hard}
	limit := a.Hard.String()
	if a.Hard == grant.NoLimit {
		limit, f.Bytes = "none", 0
	}
	if i := slices.IndexFunc(l.known, func(f leaf) bool { return f.dir(n.Host) == a.Cgroup }); i >= 0 {
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
