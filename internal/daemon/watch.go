package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/daemon/daemonlog"
	"github.com/gpuledger/gpuledger/internal/daemon/nvmlchild"
	"github.com/gpuledger/gpuledger/internal/daemon/schedule"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// watcher is the manager that holds what is used of the GPUs against the ledger. It only reports, unless policy says that
// containers are to be stopped.
type WatchManager struct {
	node    func() *node.Node
	sampler interface {
		Sample(context.Context, grant.Source) (grant.Sample, error)
		Close()
	}
	roots []string // where runtimes keep states, beside the usual places
	log   *logrus.Logger

	processes      watch.ProcessTable
	pids           []int // that it was asked for
	vigilCondition daemonlog.Condition
	users          *watch.ProcessUsers
	usersKey       processUsersKey // what it is of
	tracker        watch.Tracker
	cache          ledgerReader
	ledger         node.Overview // as of the last pass
	identities     identityCache
	OtherFindings  func() []grant.Finding // what another manager has found and told
	overheads      overheadWriter
	gates          gateSetter
	nodes          func(grant.Inventory) map[uint64]string
	opened         map[string][]int // who had a GPU's node open when that was looked for last
	nextLook       time.Time        // when it is looked for again
	recordedHeld   map[string][]grant.Process
	next           time.Time              // not before
	recorded       map[string]grant.Bytes // what was last recorded as outside the ledger
	recordedAt     time.Time              // when
	saved          watch.Report           // for who asks what is used
	failure        error                  // of the last pass

	mu     sync.Mutex
	status watch.Status
}

// ledgerReader is what the watch needs of a ledgercache.Cache.
type ledgerReader interface {
	Read(n *node.Node, anew bool) (o node.Overview, fresh bool, err error)
	Changes() map[string]uint64
}

func newWatchManager(n func() *node.Node, ledger ledgerReader, config string, roots []string, log *logrus.Logger) *WatchManager {
	return &WatchManager{node: n, cache: ledger, sampler: nvmlchild.NewSampler(config), roots: roots, log: log, processes: watch.ProcessTable{Host: n().Host}, nodes: watch.GPUDevices, vigilCondition: daemonlog.Condition{Log: log}}
}

func (w *WatchManager) Name() string { return "watch" }
func (w *WatchManager) Stop() {
	w.sampler.Close()
	w.processes.Close()
	w.overheads.closeAll()
}

// Ensure takes a sample and does what policy says about it, and rests for a while where the interval is shorter than that is worth.
func (w *WatchManager) Ensure(ctx context.Context) error {
	if time.Now().Before(w.next) {
		return w.failure
	}
	began, worked := time.Now(), schedule.CPUTime()
	w.failure = w.pass(ctx, w.node())
	w.next = began.Add(min(passFactor*(schedule.CPUTime()-worked), maxPassRest))
	return w.failure
}

// passRest is how many times as long as it worked the watch rests, and maxPassRest how long at most: a tick of a second later it looks
// again, whatever it cost.
const (
	passFactor  = 20
	maxPassRest = 900 * time.Millisecond
)

func (w *WatchManager) pass(ctx context.Context, n *node.Node) error {
	sample, err := w.sampler.Sample(ctx, n.Policy.Inventory)
	if err != nil {
		w.setFailure(err)
		return err
	}
	w.findOpenGPUs(n)
	report, err := w.compare(n, sample)
	if err != nil {
		w.setFailure(err)
		return err
	}
	var wrong error // the configuration is checked for both
	w.tracker.Grace, wrong = time.ParseDuration(n.Policy.Daemon.Grace)
	w.tracker.Interval, _ = time.ParseDuration(n.Policy.Daemon.Interval)
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
	return errors.Join(err, wrong) // a full disk saves nobody from being stopped
}

// openRest is how long the open files of the node's processes are not looked at again, and openShare how many times as long as the look
// took: it takes some 10 milliseconds for 400 processes.
const (
	openEvery  = 5 * time.Second
	openFactor = 100
)

// look finds out who has a GPU's node open. The driver tells only who uses the GPU.
func (w *WatchManager) findOpenGPUs(n *node.Node) {
	began := time.Now()
	if began.Before(w.nextLook) {
		return
	}
	inv, problem := n.Inventory()
	if problem != nil {
		return
	}
	w.opened = watch.OpenGPUs(n.Host, w.nodes(inv))
	w.nextLook = time.Now().Add(max(openEvery, openFactor*time.Since(began)))
}

// judge holds a sample against the ledger. What is new is held against a ledger that was read after the sample: a container that
// has just started may have its grant only there.
func (w *WatchManager) compare(n *node.Node, sample grant.Sample) (watch.Report, error) {
	for anew := false; ; anew = true {
		o, fresh, err := w.cache.Read(n, anew)
		if err != nil {
			return watch.Report{}, fmt.Errorf("cannot hold what is used against the ledger: %w", err)
		}
		w.ledger = o
		people := w.readProcesses(sample, o.Grants)
		scene := watch.Input{Sample: sample, Processes: people, Grants: o.Grants, Inventory: o.Inventory, Users: w.processUsers(o.Grants, people),
			Identify: func(u grant.User) grant.User { return w.identities.identify(n, w.roots, u) }, Serves: n.MPSServes, Open: w.opened}
		if report := watch.Compare(scene); fresh || !w.tracker.HasNew(report) {
			return report, nil
		}
	}
}

func (w *WatchManager) readProcesses(sample grant.Sample, grants []grant.Grant) map[int]watch.ProcessInfo {
	w.pids = append(w.pids[:0], watch.InitPIDs(grants)...)
	for _, g := range sample.GPUs {
		for _, p := range g.Processes {
			w.pids = append(w.pids, p.PID)
		}
	}
	for _, pids := range w.opened {
		w.pids = append(w.pids, pids...)
	}
	people := w.processes.Lookup(w.pids)
	w.vigilCondition.Update(w.processes.VigilError(), "that a process has ended is noticed late")
	return people
}

// grouping tells one state of the ledger's grants and of the processes from another.
type processUsersKey struct {
	grants  *grant.Grant // the first: who reads the ledger anew makes others, and these are not made use of anew while they are pointed to
	count   int
	changes uint64 // of the processes
}

// castFor is the last one, where neither the ledger was read again since nor a process has come, gone or moved.
func (w *WatchManager) processUsers(grants []grant.Grant, people map[int]watch.ProcessInfo) *watch.ProcessUsers {
	of := processUsersKey{count: len(grants), changes: w.processes.Changes()}
	if len(grants) > 0 {
		of.grants = &grants[0]
	}
	if w.users == nil || of != w.usersKey {
		w.users, w.usersKey = watch.NewProcessUsers(grants, people), of
	}
	return w.users
}

// blind says that nothing is known any more. What was recorded as outside the ledger stays so: nobody is granted what somebody
// may still use.
func (w *WatchManager) setFailure(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status.Failure = err.Error()
}

// tell writes what has changed to the audit log and to the daemon's own.
func (w *WatchManager) logChanges(n *node.Node, news watch.Changes) {
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

// reaction is what policy wants. Where refusals are only recorded, nothing is stopped either.
func (w *WatchManager) reaction(n *node.Node, f grant.Finding) grant.Reaction {
	if n.Mode() != grant.Enforce {
		return grant.ReportFinding
	}
	return watch.Reaction(f, n.Policy.Rules)
}

// show is what metrics and the page have from now on.
func (w *WatchManager) setStatus(r watch.Report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status.Failure = ""
	w.status.Report = r
	w.status.Samples++
	w.status.Events, w.status.XIDs = maps.Clone(w.tracker.Events), maps.Clone(w.tracker.XIDs)
	w.status.Changes = w.cache.Changes()
	w.status.AddHistory(r, w.ledger.Grants)
}

// State is a copy of what was last found.
func (w *WatchManager) Status() watch.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.status
	s.History = append([]watch.HistorySample(nil), s.History...)
	s.Stopped = maps.Clone(s.Stopped)
	return s
}

// Stale is why the inventory should be taken again, "" if it need not.
func (w *WatchManager) Stale() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status.Stale
}

// remind is how often what is outside the ledger is recorded again while it does not change, so that its age can be seen.
const recordEvery = time.Minute

// record writes the run directory's files: what every placement counts as taken, and what `gpuledger inspect` shows.
func (w *WatchManager) record(n *node.Node, r watch.Report, news bool) error {
	outside, held := r.Outside(), r.Held()
	if w.recorded == nil {
		w.recorded = w.ledger.Outside // as who ran before us left it
		if len(w.ledger.Held) > 0 {
			w.recordedHeld = map[string][]grant.Process{"": nil} // and this is written anew
		}
	}
	same := maps.Equal(outside, w.recorded) && maps.EqualFunc(held, w.recordedHeld, slices.Equal)
	if !same || len(outside)+len(held) > 0 && r.Taken.Sub(w.recordedAt) > recordEvery {
		if err := n.Ledger.SetFound(outside, held); err != nil {
			return fmt.Errorf("cannot record what is used outside the ledger: %w", err)
		}
		w.recorded, w.recordedHeld, w.recordedAt = outside, held, r.Taken
	}
	if !news && !r.Differs(w.saved) && r.Taken.Sub(w.saved.Taken) < saveEvery {
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

// saveRest is how old the file may get that tells what is used, while that hardly changes.
const saveEvery = 2500 * time.Millisecond

// react stops the containers that policy wants stopped, once their findings stand for the grace time.
func (w *WatchManager) stopContainers(n *node.Node, r watch.Report) (err error) {
	if n.Mode() != grant.Enforce {
		return nil
	}
	for _, f := range w.tracker.Due(r, n.Policy.Rules) {
		if f.Kind == grant.OutsideLedger { // nobody is stopped because somebody could not be asked a while ago who he is
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
			message := fmt.Sprintf("stopped, %d processes, after %s: %s", ended, r.Taken.Sub(f.Since).Round(time.Second), f.Message)
			n.Found("stopped", f, grant.StopContainer, message)
			w.log.WithFields(daemonlog.FindingFields(f)).Warn(message)
			w.countStopped(f.Kind)
		}
	}
	return err
}

func (w *WatchManager) countStopped(kind grant.FindingKind) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.status.Stopped == nil {
		w.status.Stopped = map[grant.FindingKind]uint64{}
	}
	w.status.Stopped[kind]++
}

// bystanders remembers who containers without grants are. To find out takes their specs.
type identityCache struct{ known map[string]containerIdentity }

type containerIdentity struct {
	pod    grant.Identity
	engine grant.Engine
	exempt bool
	known  bool // a runtime has a container of the id, in this cgroup
	asked  time.Time
}

// identityRest is how long it is remembered: policy may exempt a container, or not any more.
const identityAge = 10 * time.Second

// stateRoots are where engines have their runtimes keep the states of containers, and which engine it is, where one alone does it there.
var stateRoots = []struct {
	pattern string
	engine  grant.Engine
}{{"/run/containerd/runc/*", grant.Containerd}, {"/run/docker/runtime-runc/*", grant.Docker}, {"/run/runc", ""}, {"/run/crun", ""}}

func engineOf(root string) grant.Engine {
	for _, s := range stateRoots {
		if is, _ := filepath.Match(s.pattern, root); is {
			return s.engine
		}
	}
	return ""
}

// forget has him be asked for again.
func (b *identityCache) forget(u grant.User) { delete(b.known, u.Key()) }

func (b *identityCache) identify(n *node.Node, roots []string, u grant.User) grant.User {
	if b.known == nil || len(b.known) > 4096 {
		b.known = map[string]containerIdentity{}
	}
	who, found := b.known[u.Key()]
	if !found || time.Since(who.asked) > identityAge {
		who = containerIdentity{asked: time.Now()}
		for _, s := range stateRoots {
			dirs, _ := filepath.Glob(s.pattern)
			roots = append(roots[:len(roots):len(roots)], dirs...)
		}
		pod, exempt, root, init := n.Bystander(roots, u.Engine, u.Container)
		// Whoever may make cgroups, as each user in a session of his, can give one the name of a container's.
		if who.known = watch.IsIn(n.Host, init, u.Cgroup); who.known {
			who.pod, who.exempt, who.engine = pod, exempt, engineOf(root)
		}
		b.known[u.Key()] = who
	}
	if who.pod != (grant.Identity{}) {
		u.Pod = who.pod
	}
	u.Exempt, u.Engine = who.exempt, cmp.Or(u.Engine, who.engine)
	if !who.known && watch.ParseCgroup(u.Cgroup).Container == "" { // it has a pid namespace of its own, but perhaps no cgroup
		u.Cgroup = ""
	}
	return u
}
