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

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// watcher is the manager that holds what is used of the GPUs against the ledger. It only reports, unless policy says that
// containers are to be stopped.
type watcher struct {
	node    func() *node.Node
	sampler interface {
		Sample(context.Context, grant.Source) (grant.Sample, error)
		Close()
	}
	roots []string // where runtimes keep states, beside the usual places
	log   *logrus.Logger

	census    watch.ProcessTable
	pids      []int // that it was asked for
	unheld    remark
	cast      *watch.ProcessUsers
	castOf    grouping // what it is of
	tracker   watch.Tracker
	book      *book
	ledger    node.Overview // as of the last pass
	others    bystanders
	alsoFound func() []grant.Finding // what another manager has found and told
	overheads
	throttles
	nodes   func(grant.Inventory) map[uint64]string
	opened  map[string][]int // who had a GPU's node open when that was looked for last
	looks   time.Time        // when it is looked for again
	held    map[string][]grant.Process
	next    time.Time              // not before
	told    map[string]grant.Bytes // what was last recorded as outside the ledger
	written time.Time              // when
	saved   watch.Report           // for who asks what is used
	failure error                  // of the last pass

	mu      sync.Mutex
	watched watch.Status
}

func newWatcher(n func() *node.Node, ledger *book, config string, roots []string, log *logrus.Logger) *watcher {
	return &watcher{node: n, book: ledger, sampler: newMeter(config), roots: roots, log: log, census: watch.ProcessTable{Host: n().Host}, nodes: watch.GPUDevices, unheld: remark{log: log}}
}

func (w *watcher) Name() string { return "watch" }
func (w *watcher) Stop() {
	w.sampler.Close()
	w.census.Close()
	w.closeAll()
}

// Ensure takes a sample and does what policy says about it, and rests for a while where the interval is shorter than that is worth.
func (w *watcher) Ensure(ctx context.Context) error {
	if time.Now().Before(w.next) {
		return w.failure
	}
	began, worked := time.Now(), cpu()
	w.failure = w.pass(ctx, w.node())
	w.next = began.Add(min(passRest*(cpu()-worked), maxPassRest))
	return w.failure
}

// passRest is how many times as long as it worked the watch rests, and maxPassRest how long at most: a tick of a second later it looks
// again, whatever it cost.
const (
	passRest    = 20
	maxPassRest = 900 * time.Millisecond
)

func (w *watcher) pass(ctx context.Context, n *node.Node) error {
	sample, err := w.sampler.Sample(ctx, n.Policy.Inventory)
	if err != nil {
		w.blind(err)
		return err
	}
	w.look(n)
	report, err := w.judge(n, sample)
	if err != nil {
		w.blind(err)
		return err
	}
	var wrong error // the configuration is checked for both
	w.tracker.Grace, wrong = time.ParseDuration(n.Policy.Daemon.Grace)
	w.tracker.Interval, _ = time.ParseDuration(n.Policy.Daemon.Interval)
	news := w.tracker.Update(&report)
	w.tell(n, news)
	if w.alsoFound != nil {
		report.Findings = append(report.Findings, w.alsoFound()...)
	}
	w.show(report)
	w.publish(n, report)
	w.hold(n, w.ledger.Grants, report)
	err = w.record(n, report, len(news.Begun)+len(news.Ended) > 0)
	if wrong == nil {
		wrong = w.react(n, report)
	}
	return errors.Join(err, wrong) // a full disk saves nobody from being stopped
}

// openRest is how long the open files of the node's processes are not looked at again, and openShare how many times as long as the look
// took: it takes some 10 milliseconds for 400 processes.
const (
	openRest  = 5 * time.Second
	openShare = 100
)

// look finds out who has a GPU's node open. The driver tells only who uses the GPU.
func (w *watcher) look(n *node.Node) {
	began := time.Now()
	if began.Before(w.looks) {
		return
	}
	inv, problem := n.Inventory()
	if problem != nil {
		return
	}
	w.opened = watch.OpenGPUs(n.Host, w.nodes(inv))
	w.looks = time.Now().Add(max(openRest, openShare*time.Since(began)))
}

// judge holds a sample against the ledger. What is new is held against a ledger that was read after the sample: a container that
// has just started may have its grant only there.
func (w *watcher) judge(n *node.Node, sample grant.Sample) (watch.Report, error) {
	for anew := false; ; anew = true {
		o, fresh, err := w.book.open(n, anew)
		if err != nil {
			return watch.Report{}, fmt.Errorf("cannot hold what is used against the ledger: %w", err)
		}
		w.ledger = o
		people := w.people(sample, o.Grants)
		scene := watch.Input{Sample: sample, Processes: people, Grants: o.Grants, Inventory: o.Inventory, Users: w.castFor(o.Grants, people),
			Identify: func(u grant.User) grant.User { return w.others.identify(n, w.roots, u) }, Serves: n.MPSServes, Open: w.opened}
		if report := watch.Compare(scene); fresh || !w.tracker.HasNew(report) {
			return report, nil
		}
	}
}

func (w *watcher) people(sample grant.Sample, grants []grant.Grant) map[int]watch.ProcessInfo {
	w.pids = append(w.pids[:0], watch.InitPIDs(grants)...)
	for _, g := range sample.GPUs {
		for _, p := range g.Processes {
			w.pids = append(w.pids, p.PID)
		}
	}
	for _, pids := range w.opened {
		w.pids = append(w.pids, pids...)
	}
	people := w.census.Lookup(w.pids)
	w.unheld.heard(w.census.VigilError(), "that a process has ended is noticed late")
	return people
}

// grouping tells one state of the ledger's grants and of the processes from another.
type grouping struct {
	grants  *grant.Grant // the first: who reads the ledger anew makes others, and these are not made use of anew while they are pointed to
	count   int
	changes uint64 // of the processes
}

// castFor is the last one, where neither the ledger was read again since nor a process has come, gone or moved.
func (w *watcher) castFor(grants []grant.Grant, people map[int]watch.ProcessInfo) *watch.ProcessUsers {
	of := grouping{count: len(grants), changes: w.census.Changes()}
	if len(grants) > 0 {
		of.grants = &grants[0]
	}
	if w.cast == nil || of != w.castOf {
		w.cast, w.castOf = watch.NewProcessUsers(grants, people), of
	}
	return w.cast
}

// blind says that nothing is known any more. What was recorded as outside the ledger stays so: nobody is granted what somebody
// may still use.
func (w *watcher) blind(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watched.Failure = err.Error()
}

// tell writes what has changed to the audit log and to the daemon's own.
func (w *watcher) tell(n *node.Node, news watch.Changes) {
	for _, f := range news.Begun {
		reaction := w.reaction(n, f)
		n.Found("found", f, reaction, f.Message)
		w.log.WithFields(fields(f)).WithField("reaction", reaction).Warn(f.Message)
	}
	for _, f := range news.Ended {
		n.Found("over", f, "", f.Message)
		w.log.WithFields(fields(f)).Info("over: " + f.Message)
	}
}

func fields(f grant.Finding) logrus.Fields {
	return logrus.Fields{"finding": f.Kind, "gpu": f.GPU, "container": grant.Printable(f.User.Container), "grant": f.Grant}
}

// reaction is what policy wants. Where refusals are only recorded, nothing is stopped either.
func (w *watcher) reaction(n *node.Node, f grant.Finding) grant.Reaction {
	if n.Mode() != grant.Enforce {
		return grant.ReportFinding
	}
	return watch.Reaction(f, n.Policy.Rules)
}

// show is what metrics and the page have from now on.
func (w *watcher) show(r watch.Report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watched.Failure = ""
	w.watched.Report = r
	w.watched.Samples++
	w.watched.Events, w.watched.XIDs = maps.Clone(w.tracker.Events), maps.Clone(w.tracker.XIDs)
	w.watched.Changes = w.book.counted()
	w.watched.AddHistory(r, w.ledger.Grants)
}

// State is a copy of what was last found.
func (w *watcher) State() watch.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.watched
	s.History = append([]watch.HistorySample(nil), s.History...)
	s.Stopped = maps.Clone(s.Stopped)
	return s
}

// Stale is why the inventory should be taken again, "" if it need not.
func (w *watcher) Stale() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.watched.Stale
}

// remind is how often what is outside the ledger is recorded again while it does not change, so that its age can be seen.
const remind = time.Minute

// record writes the run directory's files: what every placement counts as taken, and what `gpuledger inspect` shows.
func (w *watcher) record(n *node.Node, r watch.Report, news bool) error {
	outside, held := r.Outside(), r.Held()
	if w.told == nil {
		w.told = w.ledger.Outside // as who ran before us left it
		if len(w.ledger.Held) > 0 {
			w.held = map[string][]grant.Process{"": nil} // and this is written anew
		}
	}
	same := maps.Equal(outside, w.told) && maps.EqualFunc(held, w.held, slices.Equal)
	if !same || len(outside)+len(held) > 0 && r.Taken.Sub(w.written) > remind {
		if err := n.Ledger.SetFound(outside, held); err != nil {
			return fmt.Errorf("cannot record what is used outside the ledger: %w", err)
		}
		w.told, w.held, w.written = outside, held, r.Taken
	}
	if !news && !r.Differs(w.saved) && r.Taken.Sub(w.saved.Taken) < saveRest {
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
const saveRest = 2500 * time.Millisecond

// react stops the containers that policy wants stopped, once their findings stand for the grace time.
func (w *watcher) react(n *node.Node, r watch.Report) (err error) {
	if n.Mode() != grant.Enforce {
		return nil
	}
	for _, f := range w.tracker.Due(r, n.Policy.Rules) {
		if f.Kind == grant.OutsideLedger { // nobody is stopped because somebody could not be asked a while ago who he is
			w.others.forget(f.User)
			if f.User = w.others.identify(n, w.roots, f.User); f.User.Exempt {
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
			w.log.WithFields(fields(f)).Warn(message)
			w.stopped(f.Kind)
		}
	}
	return err
}

func (w *watcher) stopped(kind grant.FindingKind) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watched.Stopped == nil {
		w.watched.Stopped = map[grant.FindingKind]uint64{}
	}
	w.watched.Stopped[kind]++
}

// bystanders remembers who containers without grants are. To find out takes their specs.
type bystanders struct{ known map[string]bystander }

type bystander struct {
	pod    grant.Identity
	engine grant.Engine
	exempt bool
	known  bool // a runtime has a container of the id, in this cgroup
	asked  time.Time
}

// identityRest is how long it is remembered: policy may exempt a container, or not any more.
const identityRest = 10 * time.Second

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
func (b *bystanders) forget(u grant.User) { delete(b.known, u.Key()) }

func (b *bystanders) identify(n *node.Node, roots []string, u grant.User) grant.User {
	if b.known == nil || len(b.known) > 4096 {
		b.known = map[string]bystander{}
	}
	who, found := b.known[u.Key()]
	if !found || time.Since(who.asked) > identityRest {
		who = bystander{asked: time.Now()}
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
