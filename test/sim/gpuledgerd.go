package sim

import (
	"io"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/daemon/userqueue"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/mps"
	"github.com/gpuledger/gpuledger/internal/node"
)

// gpuledgerd is the daemon of the node: several virtual processes with one pid and one queue, which
// end together. Each of them opens the node for itself, because a virtual process must not wait for
// what another one reads once.
type gpuledgerd struct {
	pid     int
	queue   userqueue.Queue
	threads []*process
	passing bool // its manager of users is at work

	mps         *mps.Manager
	supervising bool // its manager of MPS daemons is at work

	ending bool // it was told to end: clients are cut off, and its threads come to their ends
}

// startDaemon starts gpuledgerd unless it runs.
func (l *life) startDaemon() {
	if l.daemon != nil {
		return
	}
	pid, _ := l.fork("/")
	n, quiet := l.node(pid), logrus.New()
	quiet.SetOutput(io.Discard)
	l.daemon = &gpuledgerd{pid: pid, mps: &mps.Manager{Node: func() *node.Node { return n },
		Ledger: grants.Read, Log: quiet, System: mpsSystem{l}}}
	l.trace("gpuledgerd[%d] starts", pid)
}

// pass is a pass of the daemon's managers for users. There is one at a time.
func (l *life) pass() {
	d := l.daemon
	if d == nil || d.passing || d.ending {
		return
	}
	d.passing = true
	l.thread("pass", func(_ *process, n *node.Node) {
		_ = d.queue.Pass(n, grants.Read)
		l.releaseIdle(n)
		if !l.calm && l.random.IntN(3) == 0 {
			l.holdings.sawEntered(l.inside())
			l.clock(l.now.Add(31 * time.Hour)) // longer than any grant may be idle
			l.releaseIdle(n)
		}
		d.passing = false
	})
}

// releaseIdle is the part of a pass that releases what nothing uses.
func (l *life) releaseIdle(n *node.Node) {
	clock := func() time.Time { return epoch.Add(l.awake) }
	over, _ := l.daemon.queue.ReleaseIdle(n, grants.Read, clock,
		func(_ grant.Inventory, g grant.Grant, due bool) bool {
			if due {
				l.lastMoment(g.ID)
			}
			return false
		})
	for _, h := range l.holdings.list {
		if slices.ContainsFunc(over, func(g grant.Grant) bool { return g.ID == h.id }) {
			h.over, h.released = true, true
		}
	}
}

// lastMoment is when gpuledgerd has found that nothing uses a grant, and has not released it yet: a
// container may take it.
func (l *life) lastMoment(id grant.ID) {
	h := l.holdings.of(id)
	l.holdings.tried[id] = true
	if h == nil || !h.acked || h.busy || h.over || l.random.IntN(2) == 0 {
		return
	}
	l.containers.start(l.random.IntN(names), grant.Containerd, h.annotations())
	for range l.random.IntN(60) {
		l.pause()
	}
}

// stopDaemon tells the daemon to end, as a restart of its service does.
func (l *life) stopDaemon() {
	if l.daemon == nil {
		return
	}
	l.trace("gpuledgerd[%d] is told to end", l.daemon.pid)
	l.daemon.ending = true
}

// goneDaemon lets the daemon go that was told to end, when its threads are done.
func (l *life) goneDaemon() {
	d := l.daemon
	if d == nil || !d.ending {
		return
	}
	for _, p := range d.threads {
		if !p.done {
			return
		}
	}
	l.endDaemon()
}

// endDaemon is the end of the daemon with all of its threads.
func (l *life) endDaemon() {
	d := l.daemon
	l.trace("gpuledgerd[%d] ends", d.pid)
	l.daemon = nil
	for _, p := range d.threads {
		if !p.done {
			l.kill(p)
		}
	}
	l.exit(d.pid)
	l.cutOff()
	if !l.calm && l.random.IntN(4) == 0 { // by a service manager that ends all that it has started
		for _, c := range slices.Clone(l.controls) {
			l.endControl(c)
		}
	}
}
