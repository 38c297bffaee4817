package sim

import (
	"fmt"
	"time"

	"github.com/gpuledger/gpuledger/internal/daemon/userqueue"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/node"
)

// gpuledgerd is the daemon of the node: several virtual processes with one pid and one queue, which
// end together. Each of them opens the node for itself, because a virtual process must not wait for
// what another one reads once.
type gpuledgerd struct {
	pid     int
	queue   userqueue.Queue
	threads []*process
	passing bool // its managers are at work
	ending  bool // it was told to end: clients are cut off, and its threads come to their ends
}

// startDaemon starts gpuledgerd unless it runs.
func (l *life) startDaemon() {
	if l.daemon != nil {
		return
	}
	pid, _ := l.fork("/")
	l.daemon = &gpuledgerd{pid: pid}
	l.trace("gpuledgerd[%d] starts", pid)
}

// thread starts a thread of the daemon.
func (l *life) thread(name string, act func(p *process, n *node.Node)) *process {
	d := l.daemon
	p := &process{name: fmt.Sprintf("%s[%d]", name, d.pid), pid: d.pid, of: d}
	d.threads = append(d.threads, p)
	l.trace("begin %s", p.name)
	l.spawn(p, func() { act(p, l.node(d.pid)) })
	return p
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
		_, _ = d.queue.ReleaseIdle(n, grants.Read, epoch.Add(l.awake),
			func(grant.Inventory, grant.Grant, bool) bool { return false })
		d.passing = false
	})
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
	l.machine.exit(d.pid)
	l.cutOff()
}

// epoch is the beginning of the clock that nobody sets, of which awake is how long it runs.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
