package sim

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// world is the simulated node: its machine and its processes, and what an observer sees of them.
type world struct {
	*machine
	*scheduler
	step      int
	calm      bool // no more faults: what fits must be admitted
	eyes      *node.Node
	seen      sight
	inventory grant.Inventory // that is read now; without GPUs where it cannot be
	scanner   *process        // which took the inventory last
	awake     time.Duration   // by the monotonic clock
	times
	clockSet bool        // since the turns of users were looked at
	daemon   *gpuledgerd // nil: it does not run
	controls []*control

	server  bool // its grants are mostly of mode mps
	divides bool // its administrator makes MIG devices, and removes them
	watches bool // gpuledgerd finds use that was not granted

	happened map[string]int // how often, for the sum of a run

	lines []string // of the trace
	wrong string   // the first promise that was broken
}

// newWorld makes a node below a directory, from random numbers.
func newWorld(dir string, r *rand.Rand, traced bool) *world {
	w := &world{machine: newMachine(dir, 1+r.IntN(3)), happened: map[string]int{}}
	w.scheduler = &scheduler{random: r,
		disk: newDisk(filepath.Join(dir, "state")), yielded: make(chan struct{}),
		locks: map[string]*process{}, locked: w.sawLock, made: w.sawStep}
	w.times = times{from: w.now, to: w.now, used: map[grant.ID]time.Duration{},
		ends: map[grant.ID]time.Time{}}
	w.rates.yield = []float64{.02, .1, .5}[r.IntN(3)]
	if r.IntN(2) == 0 {
		w.rates.fault, w.rates.readFault = .01, .001
	}
	w.trace = func(format string, args ...any) {
		if !traced {
			return
		}
		w.lines = append(w.lines, fmt.Sprintf("%d ", w.step)+fmt.Sprintf(format, args...))
	}
	w.server = r.IntN(3) == 0
	w.divides, w.watches = !w.server && r.IntN(3) == 0, r.IntN(3) == 0
	host.Simulated = w.scheduler // package host acts on this node from now on
	w.eyes = w.node(observer)
	must(w.scan(w.eyes))
	return w
}

func (w *world) fail(format string, args ...any) {
	if w.wrong == "" {
		// the same seed says the same in another process
		w.wrong = fmt.Sprintf("step %d: ", w.step) + ownPID.Replace(fmt.Sprintf(format, args...))
		w.trace("WRONG %s", w.wrong)
	}
}

// report notes a promise that a check has found broken; "" is none.
func (w *world) report(broken string) {
	if broken != "" {
		w.fail("%s", broken)
	}
}

// What is counted, beside the grants in each mode.
const (
	containersStarted = "of containers"
	powerCuts         = "power cuts"
	kills             = "kills"
	killsOfDaemon     = "kills of gpuledgerd"
	grantsOfQueue     = "grants of the queue"
	releasesIdle      = "releases as idle"
)

func grantsIn(m grant.Mode) string { return "grants in mode " + string(m) }

// begin starts a process of the node. act gets a node of its own.
func (w *world) begin(name string, act func(p *process, n *node.Node)) *process {
	pid, start := w.fork("/")
	p := &process{name: fmt.Sprintf("%s[%d]", name, pid), pid: pid, start: start,
		inventories: []grant.Inventory{w.inventory}}
	w.trace("begin %s", p.name)
	w.spawn(p, func() {
		act(p, w.node(pid))
		w.gone(p)
	})
	return p
}

// gone is the end of a process, which may have been the creator of a container.
func (w *world) gone(p *process) {
	w.exit(p.pid)
	if p.binds {
		w.changes++
	}
}

// thread starts a thread of the daemon.
func (w *world) thread(name string, act func(p *process, n *node.Node)) *process {
	d := w.daemon
	p := &process{name: fmt.Sprintf("%s[%d]", name, d.pid), pid: d.pid, of: d,
		inventories: []grant.Inventory{w.inventory}}
	d.threads = append(d.threads, p)
	w.trace("begin %s", p.name)
	w.spawn(p, func() { act(p, w.node(d.pid)) })
	return p
}

// stop ends what still runs, so that no goroutine stays.
func (w *world) stop() {
	for _, p := range w.all {
		if !p.done {
			w.kill(p)
		}
	}
}

// jump sets the clock forward or back.
func (w *world) jump() {
	w.clock(w.now.Add(time.Duration(w.random.IntN(40)-8) * time.Hour))
}

func (w *world) clock(to time.Time) {
	w.sawGrants(w.inside())
	w.clockSet = true
	w.trace("clock %v", to)
	w.awake += max(to.Sub(w.now), 0)
	w.now = to
	if to.After(w.latest) {
		w.latest = to
	}
	if to.Before(w.from) {
		w.from = to
	}
	if to.After(w.to) {
		w.to = to
	}
	for _, p := range w.all {
		p.ledger = nil
		if p.creates && to.Before(p.earliest) {
			p.earliest = to
		}
	}
}

// epoch is the beginning of the monotonic clock, of which awake is how long it runs.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// sight is what the observer has seen of the node, and when.
type sight struct {
	steps, changes int
	now            time.Time
	view           grant.View
}

// view is the whole ledger. It is read again when something has changed.
func (w *world) view() grant.View {
	now := sight{steps: w.steps, changes: w.changes, now: w.now}
	if s := w.seen; s.steps != now.steps || s.changes != now.changes || !s.now.Equal(now.now) {
		must(w.eyes.Ledger.View(func(tx *ledger.Tx) (err error) {
			now.view, err = tx.Whole(w.now)
			return err
		}))
		w.seen = now
	}
	return w.seen.view
}

// inside is a view from within a process, which does not yield for it.
func (w *world) inside() grant.View {
	p := w.current
	w.current = nil
	defer func() { w.current = p }()
	return w.view()
}
