// Package watcher is the watch of gpuledgerd, one of the managers that package daemon runs. In
// every pass it takes a sample of the GPUs' use, has package watch compare it with the ledger,
// records and logs the findings, and stops the containers that policy wants stopped (stop.go). It
// also writes the records by which the shim limits grants: gates and overheads.
//
// Package watch decides what is a finding and when it is due. This package decides whether anything
// is done about it: where the policy is not enforced, it only reports.
package watcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/daemon/daemonlog"
	"github.com/gpuledger/gpuledger/internal/daemon/nvmlchild"
	"github.com/gpuledger/gpuledger/internal/daemon/schedule"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/mpsstate"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// Watcher compares what is used of the GPUs with the ledger in every pass. It only reports, unless
// policy says that containers are to be stopped. It also writes the records by which the shim
// limits grants.
type Watcher struct {
	node    func() *node.Node
	sampler interface {
		Sample(context.Context, grant.Source, bool) (grant.Sample, error)
		Renew(lost bool)
		Close()
	}
	roots []string // where runtimes keep the states of containers, beside the usual places
	log   *logrus.Logger

	processes      watch.ProcessTable
	pids           []int // reused by each pass
	listed         []int // those that the driver lists
	exitsCondition daemonlog.Condition
	users          *watch.ProcessUsers
	usersKey       processUsersKey // of users
	tracker        watch.Tracker
	cache          ledgerReader
	ledger         grants.Overview // as of the last pass
	identities     identityCache
	OtherFindings  func() []grant.Finding // findings that another manager has reported; nil: none
	overheads      overheadWriter
	gates          gateSetter
	nodes          func(grant.Inventory) map[uint64]string
	opened         map[string][]grant.Process // those that had a GPU's node open, by GPU
	look           *watch.Look                // reads opened again; nil: not now
	looked         bool                       // one look has read the open files of all processes
	lookBegan      time.Time
	lookTook       time.Duration    // so far
	nextLook       time.Time        // when opened is read again
	next           time.Time        // no pass before
	recorded       ledger.Found     // as last recorded
	recordedAt     time.Time        // when that was
	recordedStamp  host.Stamp       // of the record as it was written then
	saved          watch.Comparison // as last saved
	failure        error            // of the last pass

	notStopped map[string]lateStop // by container, as is recorded

	mu     sync.Mutex
	status watch.Status
}

// ledgerReader is what the watch needs of a ledgercache.Cache.
type ledgerReader interface {
	Read(n *node.Node, anew bool) (o grants.Overview, fresh bool, err error)
	Changes() map[string]uint64
}

func New(n func() *node.Node, ledger ledgerReader, config string, roots []string,
	log *logrus.Logger) *Watcher {
	inventory := func() host.Stamp { return n().InventoryStamp() }
	return &Watcher{node: n, cache: ledger, sampler: nvmlchild.NewSampler(config, inventory),
		roots: roots, log: log,
		processes: watch.ProcessTable{Host: n().Host}, nodes: watch.GPUDevices,
		exitsCondition: daemonlog.Condition{Log: log}}
}

func (w *Watcher) Name() string { return "watch" }
func (w *Watcher) Stop() {
	w.sampler.Close()
	w.processes.Close()
	if w.look != nil {
		w.look.Close()
	}
	w.overheads.closeAll()
}

// Ensure takes a sample and does what policy says about it. If a pass costs much, it skips the next
// calls.
func (w *Watcher) Ensure(ctx context.Context) error {
	if time.Now().Before(w.next) {
		return w.failure
	}
	began, worked := time.Now(), schedule.CPUTime()
	w.failure = w.pass(ctx, w.node())
	w.next = began.Add(min(passFactor*(schedule.CPUTime()-worked), maxPassRest))
	return w.failure
}

// How many times the processor time of a pass the watch rests, and for how long at most: less than
// a second, so that it looks again in the next pass.
const (
	passFactor  = 20
	maxPassRest = 900 * time.Millisecond
)

func (w *Watcher) pass(ctx context.Context, n *node.Node) error {
	sample, err := w.sampler.Sample(ctx, n.Policy.Inventory,
		n.Policy.Enforcement.Compute == grant.ThrottleShare) // the throttle goes by the shares
	if err != nil {
		w.setFailure(err)
		return err
	}
	w.findOpenGPUs(n)
	report, err := w.compare(n, sample)
	if err != nil {
		w.setFailure(err)
		return errors.Join(err, w.replaceFound(n, err))
	}
	// found by the inventory: a sample lacks a GPU that was away when its NVML was loaded
	w.sampler.Renew(slices.ContainsFunc(report.Findings, func(f grant.Finding) bool {
		return f.Kind == grant.GPULost && f.Grant == ""
	}))
	var wrong error // the configuration is checked for both
	w.tracker.Grace, wrong = grant.ParseDuration(n.Policy.Daemon.Grace)
	w.tracker.Interval, _ = grant.ParseDuration(n.Policy.Daemon.Interval)
	news := w.tracker.Update(&report)
	w.logChanges(n, news)
	if w.OtherFindings != nil {
		report.Findings = append(report.Findings, w.OtherFindings()...)
	}
	w.setStatus(report)
	w.overheads.update(n, report)
	w.gates.update(n, w.ledger.Grants, report)
	err = w.record(n, report, len(news.Begun)+len(news.Ended) > 0)
	if wrong == nil {
		wrong = w.stopContainers(n, report)
	}
	return errors.Join(err, wrong) // a full disk does not keep containers from being stopped
}

// findOpenGPUs finds the processes that have a GPU's node open. The driver reports only those that
// use the GPU. Each pass reads so many open files that it is not held up.
func (w *Watcher) findOpenGPUs(n *node.Node) {
	began := time.Now()
	if w.look == nil {
		inv, problem := n.Inventory()
		if problem != nil || began.Before(w.nextLook) {
			return
		}
		nodes := w.nodes(inv)
		w.look, w.lookTook = watch.NewLook(n.Host, nodes), 0
		w.lookBegan = began
		w.processes.HasGPUOpen = func(pid int) bool { // other pids are looked up for other reasons
			return !slices.Contains(w.listed, pid) || watch.HasGPUOpen(n.Host, nodes, pid)
		}
	}
	done := w.look.Step(filesEachPass)
	w.looked = w.looked || done
	w.opened = w.look.Known(w.opened)
	w.lookTook += time.Since(began)
	if done || began.Sub(w.lookBegan) > watch.MaxRest {
		w.look.Close()
		w.look, w.nextLook = nil, time.Now().Add(watch.OpenRest(w.lookTook))
	}
}

// filesEachPass is how many open files a pass reads, with what processes cost: those of 500
// processes.
const filesEachPass = 40_000

// compare compares a sample with the ledger. A new finding is confirmed with a ledger that was read
// after the sample: a container that has just started may have its grant only there.
func (w *Watcher) compare(n *node.Node, sample grant.Sample) (watch.Comparison, error) {
	identify := func(u grant.User) grant.User { return w.identities.identify(n, w.roots, u) }
	serves := func(uuid string, p grant.Process) bool {
		return mpsstate.Serves(n.Host, n.Policy.RunDir, uuid, p)
	}
	for anew := false; ; anew = true {
		o, fresh, err := w.cache.Read(n, anew)
		if err != nil {
			return watch.Comparison{}, fmt.Errorf("cannot hold what is used against the ledger: %w", err)
		}
		w.ledger = o
		acl := n.Policy.Enforcement.UserNodes == grant.UserNodesACL
		processes := w.readProcesses(sample, o.Grants, acl)
		input := watch.Input{Sample: sample, Processes: processes, Grants: o.Grants, Inventory: o.Inventory,
			Identify: identify, Serves: serves, Open: w.opened,
			UserNodes: acl}
		input.Users = w.processUsers(input)
		if report := watch.Compare(input); fresh || !w.tracker.HasNew(report) {
			return report, nil
		}
	}
}

func (w *Watcher) readProcesses(sample grant.Sample, grants []grant.Grant,
	acl bool) map[int]watch.ProcessInfo {
	w.pids = append(w.pids[:0], watch.InitPIDs(grants)...)
	first := len(w.pids)
	for _, g := range sample.GPUs {
		for _, p := range g.Processes {
			w.pids = append(w.pids, p.PID)
		}
	}
	last := len(w.pids)
	for _, processes := range w.opened {
		for _, p := range processes {
			w.pids = append(w.pids, p.PID)
		}
	}
	w.listed, w.processes.UserNodes = w.pids[first:last], acl
	processes := w.processes.Lookup(w.pids)
	w.exitsCondition.Update(w.processes.ExitWatchError(), "that a process has ended is noticed late")
	return processes
}

// processUsersKey identifies a state of the ledger's grants and of the processes.
type processUsersKey struct {
	// the first: a new reading of the ledger has others, and this pointer keeps these from being
	// freed
	grants  *grant.Grant
	count   int
	changes uint64 // of the processes
	acl     bool
}

// processUsers returns the last ones, if the ledger was not read again and no process has come,
// gone or moved.
func (w *Watcher) processUsers(in watch.Input) *watch.ProcessUsers {
	of := processUsersKey{count: len(in.Grants), changes: w.processes.Changes(), acl: in.UserNodes}
	if len(in.Grants) > 0 {
		of.grants = &in.Grants[0]
	}
	if w.users == nil || of != w.usersKey {
		w.users, w.usersKey = watch.NewProcessUsers(in.Grants, in.Processes, in.UserNodes), of
	}
	return w.users
}
