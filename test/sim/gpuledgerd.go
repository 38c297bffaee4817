package sim

import (
	"io"
	"slices"

	"github.com/sirupsen/logrus"

	"github.com/gpuledger/gpuledger/internal/daemon/userqueue"
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
		Ledger: grants.Read, Log: quiet, System: l.mps}}
	l.trace("gpuledgerd[%d] starts", pid)
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
	l.users.cutOff()
	if !l.calm && l.random.IntN(4) == 0 { // by a service manager that ends all that it has started
		for _, c := range slices.Clone(l.controls) {
			l.mps.endControl(c)
		}
	}
}
