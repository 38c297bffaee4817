// Package sim is a simulated node: the packages of the ledger, of admission and of the node run in
// virtual processes, on a virtual disk, clock and boot, and one seed decides all that happens.
// gpuledgerd serves virtual users there (users.go), keeps the shim's records (limits.go) and has
// virtual control daemons of MPS (mps.go). A life chooses what happens. After every step the node
// must keep its promises (invariants.go, fairness.go). docs/adr/0100-simulated-node.md says why.
package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/host"
	"github.com/gpuledger/gpuledger/internal/ledger"
	"github.com/gpuledger/gpuledger/internal/node"
)

// life is one run of a node, from its first boot to its end.
type life struct {
	*world
	containers *containers
	holdings   *holdings
	users      *users
	mps        *mpsSystem
	last       lastStep
	checkedAt  int // the step at which the records were last checked
}

// newLife makes a node below a directory. All that differs from life to life is drawn from seed.
func newLife(dir string, seed uint64, traced bool) *life {
	w := newWorld(dir, rand.New(rand.NewPCG(seed, 0)), traced)
	cs := &containers{world: w}
	hs := &holdings{world: w, tried: map[grant.ID]bool{}}
	return &life{world: w, containers: cs, holdings: hs,
		users: &users{world: w, containers: cs, holdings: hs},
		mps:   &mpsSystem{world: w, containers: cs, holdings: hs},
		last:  lastStep{had: map[shareOf]grant.Bytes{}}}
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
		found := use(l.random, l.view(), l.inventory, l.containers.boxes)
		l.begin("watch", func(_ *process, n *node.Node) { _ = n.Ledger.SetFound(found) })
		return
	}
	switch n := l.random.IntN(158); {
	case n < 11:
		l.holdings.enter()
	case n < 14:
		l.holdings.enterAll()
	case n < 44:
		l.create(l.random.IntN(names))
	case n < 54:
		l.containers.end()
	case n < 66:
		l.containers.delete()
	case n < 72:
		l.holdings.release()
	case n < 87:
		l.holdings.change()
	case n < 92:
		l.tidy()
	case n < 95:
		l.look()
	case n < 99:
		l.jump()
	case n < 102:
		l.crash()
	case n < 114:
		l.mps.supervise()
	case n < 122:
		l.mps.happens()
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
		l.users.pass()
	case n < 27:
		if l.random.IntN(3) > 0 {
			l.users.ask(false)
			return
		}
		for range 5 {
			l.users.ask(true)
		}
	case n < 34:
		l.users.clients()
	default:
		l.users.releaseOf()
	}
}

// aboutMPS is what happens most in a life with many grants in mode mps.
func (l *life) aboutMPS() {
	switch n := l.random.IntN(10); {
	case l.daemon == nil:
		l.startDaemon()
	case n < 4:
		l.mps.supervise()
	case n < 6:
		l.mps.happens()
	case n < 7:
		l.holdings.enter()
	case n < 8:
		l.holdings.release()
	case len(l.controls) > 0:
		l.mps.createBeside(l.controls[l.random.IntN(len(l.controls))])
	}
}

// killed is kill -9 of a process.
func (l *life) killed(p *process) {
	l.trace("kill %s", p.name)
	if l.happened[kills]++; p.of != nil {
		l.happened[killsOfDaemon]++
		l.endDaemon()
		return
	}
	l.kill(p)
	l.gone(p)
	l.containers.orphaned(p)
	if p.binds && l.random.IntN(2) == 0 { // its engine uses the id again
		l.containers.start(p.makes, grant.Containerd, "")
	}
}

// create makes a container: with a reference, by adoption, by asking, or without a GPU.
func (l *life) create(name int) {
	annotations, engine, size := "", grant.Containerd, 1+l.random.IntN(8)
	switch h := l.holdings.pick(); {
	case h != nil && l.random.IntN(2) == 0:
		annotations = h.annotations()
	case l.random.IntN(2) == 0:
		annotations = identity(podOf(l.random.IntN(pods))) +
			fmt.Sprintf(`,"gpuledger.dev/memory.c":"%dGiB"`, size)
	case l.random.IntN(4) > 0:
		engine = grant.Podman
		annotations = fmt.Sprintf(`"gpuledger.dev/gpus":"1","gpuledger.dev/memory":"%dGiB"`, size)
	}
	l.containers.start(name, engine, annotations)
}

// tidy is a pass of gpuledgerd, or an administrator's check.
func (l *life) tidy() {
	kind := l.random.IntN(5)
	l.begin("tidy", func(p *process, n *node.Node) {
		switch kind {
		case 0:
			n.RemoveDeadBindings()
		case 1:
			report, err := grants.Reconcile(n)
			l.checkedBy(p, report, err)
		case 2, 3:
			_, err := grants.SettleLimits(n)
			l.settledBy(p, err)
		default:
			report, err := grants.Check(n)
			l.checkedBy(p, report, err)
		}
	})
}

// checkedBy judges what a check of the ledger found, unless that check has met errors of the disk.
func (l *life) checkedBy(p *process, report ledger.Report, err error) {
	if err == nil && p.faults == 0 {
		l.report(checkSound(report))
	}
}

// settledBy: when a pass over the records is over that has met no error, they are what the ledger
// says: records are changed under the ledger's lock, and no process has had that since.
func (l *life) settledBy(p *process, err error) {
	if err != nil || p.faults > 0 {
		return
	}
	l.report(checkRecords(l.inside(), l.containers.boxes, l.eyes.Policy, false))
}

// crash is a power cut. The run directory is lost, or is on a disk and stays as it was.
func (l *life) crash() {
	if what := l.disk.differs(); what != "" {
		l.fail("a change was made past internal/host: %s", what)
	}
	l.trace("crash")
	l.happened[powerCuts]++
	l.stop()
	l.containers.boxes = nil
	l.daemon, l.controls = nil, nil
	l.users.powerCut()
	l.disk.cut(l.random)
	l.changes++
	must(l.disk.rebuild())
	if l.random.IntN(2) == 0 {
		l.remove("run")
	}
	l.boot()
	l.eyes = l.node(observer)
	l.sawInventory()
	if l.random.IntN(3) > 0 {
		must(l.scan(l.eyes))
	}
	l.holdings.powerCut()
}
