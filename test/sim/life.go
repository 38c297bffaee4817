// Package sim is a simulated node: the packages of the ledger, of admission and of the node run in
// virtual processes, on a virtual disk, clock and boot, and one seed decides all that happens.
// gpuledgerd serves virtual users there (users.go), keeps the shim's records (limits.go) and has
// virtual control daemons of MPS (mps.go). After every step the node must keep its promises
// (invariants.go, fairness.go). docs/adr/0100-simulated-node.md says why.
package sim

import (
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/node"
)

// holding is a grant that a virtual administrator asked for.
type holding struct {
	label     string
	id        grant.ID
	reference grant.Reference
	pod       string        // whose container c owns it; "": it has a bearer
	possible  []grant.Bytes // its memory, as acknowledged or as tried since
	expires   time.Time
	acked     bool // the ledger has said that it is there
	busy      bool // a process changes it
	over      bool // a release was tried
	released  bool // and acknowledged

	user uint32        // who has asked for it
	used time.Duration // when a container had it last
}

// box is a container that the virtual runtime has made, or is about to make.
type box struct {
	name    int
	creator *process // nil after the create
	pid     int      // of its init; 0 before and after it runs
	start   uint64
	grant   grant.ID
	gpus    []string
	alone   bool // its grant is exclusive
	limited bool // the shim keeps it to its memory
	mps     bool // its grant is in mode mps
	written bool // the runtime's state is
	left    bool // processes are left in its cgroup
}

func (b *box) runs() bool { return b.creator != nil || b.pid != 0 || b.left }

// life is one run of a node, from its first boot to its end.
type life struct {
	*world
	closing bool // all grants are being released
	held    []*holding
	boxes   []*box
	watches bool // gpuledgerd finds use that was not granted

	requests  []*userAsk
	server    bool                       // its grants are mostly of mode mps
	divides   bool                       // its administrator makes MIG devices, and removes them
	entries   int                        // into the queue
	started   int                        // containers
	entered   map[grant.ID]time.Duration // when each grant was first seen, by the monotonic clock
	tried     map[grant.ID]bool          // gpuledgerd has tried to release it because nothing uses it
	last      lastStep
	checkedAt int // the step at which the records were last checked
}

// newLife makes a node below a directory. All that differs from life to life is drawn from seed.
func newLife(dir string, seed uint64, traced bool) *life {
	r := rand.New(rand.NewPCG(seed, 0))
	l := &life{world: newWorld(dir, r, traced), entered: map[grant.ID]time.Duration{},
		tried: map[grant.ID]bool{}, last: lastStep{had: map[shareOf]grant.Bytes{}}}
	l.server = r.IntN(3) == 0
	l.divides, l.watches = !l.server && r.IntN(3) == 0, r.IntN(3) == 0
	l.open()
	return l
}

// Run lives through a number of steps and the end, and returns the promise that was broken, or "".
func (l *life) Run(steps int) string {
	defer func() { host.Simulated = nil }()
	for l.step = 1; l.step <= steps && l.wrong == ""; l.step++ {
		l.act()
		l.check()
	}
	if l.wrong == "" {
		l.finish()
	}
	l.stop()
	return l.wrong
}

// act does one thing that the random numbers choose.
func (l *life) act() {
	l.all = slices.DeleteFunc(l.all, func(p *process) bool { return p.done })
	l.goneDaemon()
	if ready := l.ready(); len(ready) > 0 && (len(ready) > 4 || l.random.IntN(10) < 7) {
		p := ready[l.random.IntN(len(ready))]
		if l.random.IntN(40) == 0 || p.update && l.random.IntN(5) == 0 {
			l.killed(p)
			return
		}
		l.run(p)
		return
	}
	if l.server && l.random.IntN(2) == 0 {
		l.aboutMPS()
		return
	}
	if l.watches && l.random.IntN(20) == 0 {
		found := use(l.random, l.view(), l.inventory, l.boxes)
		l.begin("watch", func(_ *process, n *node.Node) { _ = n.Ledger.SetFound(found) })
		return
	}
	switch n := l.random.IntN(158); {
	case n < 11:
		l.enter()
	case n < 14:
		l.enterAll()
	case n < 44:
		l.create(l.random.IntN(names))
	case n < 54:
		l.end()
	case n < 66:
		l.remove()
	case n < 72:
		l.release()
	case n < 87:
		l.change()
	case n < 92:
		l.tidy()
	case n < 95:
		l.look()
	case n < 99:
		l.jump()
	case n < 102:
		l.crash()
	case n < 114:
		l.supervise()
	case n < 122:
		l.forMPS()
	default:
		l.forUsers()
	}
}

// forUsers is something that users, their clients or the daemon do.
func (l *life) forUsers() {
	switch n := l.random.IntN(40); {
	case n < 4:
		l.startDaemon()
	case n < 5:
		l.stopDaemon()
	case n < 15:
		l.pass()
	case n < 27:
		if l.random.IntN(3) > 0 {
			l.ask(false)
			return
		}
		for range 5 {
			l.ask(true)
		}
	case n < 34:
		l.clients()
	default:
		l.releaseOf()
	}
}

// killed is kill -9 of a process. What the runtime has made without writing it down goes with it.
func (l *life) killed(p *process) {
	l.trace("kill %s", p.name)
	if p.of != nil {
		l.endDaemon()
		return
	}
	l.kill(p)
	l.gone(p)
	for _, b := range l.boxes {
		if b.creator == p {
			b.creator = nil
			if !b.written && b.pid != 0 {
				l.emptied(b)
			}
		}
	}
	l.forget()
}

// emptied ends all processes of a container.
func (l *life) emptied(b *box) {
	l.machine.exit(b.pid)
	if b.pid != 0 || b.left {
		l.populate(b.name, 0)
	}
	b.pid, b.left = 0, false
}

// forget drops containers of which nothing runs; their states stay until they are deleted.
func (l *life) forget() {
	l.boxes = slices.DeleteFunc(l.boxes, func(b *box) bool { return !b.runs() })
}

// crash is a power cut. The run directory is lost, or is on a disk and stays as it was.
func (l *life) crash() {
	if what := l.disk.differs(); what != "" {
		l.fail("a change was made past internal/host: %s", what)
	}
	l.trace("crash")
	l.stop()
	l.boxes = nil
	l.daemon, l.controls = nil, nil
	for _, r := range l.requests { // the clients are on this node
		if r.waiter = nil; r.state.open() {
			r.state = unsettled
		}
	}
	l.disk.cut(l.random)
	l.machine.changes++
	must(l.disk.rebuild())
	if l.random.IntN(2) == 0 {
		l.machine.remove("run")
	}
	l.boot()
	l.eyes = l.node(observer)
	l.sawInventory()
	if l.random.IntN(3) > 0 {
		must(l.machine.scan(l.eyes))
	}
	for _, h := range l.held {
		releasing := h.busy && h.over // its holder was, and it may be done or not
		h.busy = false
		if _, err := os.Stat(l.path("state/grants/" + string(h.id) + ".json")); l.tried[h.id] && err == nil {
			h.over = h.released || releasing // what is there now is durable
			delete(l.tried, h.id)
		}
	}
}
