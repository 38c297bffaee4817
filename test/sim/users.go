package sim

import (
	"fmt"
	"time"

	"github.com/gpuledger/gpuledger/internal/admission"
	"github.com/gpuledger/gpuledger/internal/daemon/userqueue"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/node"
)

// quotas are those of the users 1001, 1002 and 1003.
const quotas = `
[[quota]]
user = "1001"
memory = "12GiB"
gpus = 3
modes = ["limit", "timeslice"]
ttl = "20h"
idle = "9h"
[[quota]]
user = "1002"
memory = "8GiB"
grants = 2
modes = ["limit", "exclusive"]
[[quota]]
user = "1003"
gpus = 2
modes = ["limit", "timeslice", "exclusive"]
idle = "30h"
`

// limitsOf are the same quotas as numbers, for the invariants. 0: no bound.
var limitsOf = map[uint32]struct {
	memory       grant.Bytes
	gpus, grants int
	idle         time.Duration
}{
	1001: {memory: 12 * grant.GiB, gpus: 3, idle: 9 * time.Hour},
	1002: {memory: 8 * grant.GiB, grants: 2},
	1003: {gpus: 2, idle: 30 * time.Hour},
}

// userAsk is what a user has asked gpuledgerd for, with the client that waits for the answer.
type userAsk struct {
	userqueue.Request
	state  requestState
	waiter *userqueue.Waiter // while it is in the queue
	number int               // of its entry into the queue, in their order
	over   bool              // the time that it waits is over
	passed map[uint32]int    // how often others were served while it could have been (fairness.go)
}

// requestState is what the client of a request knows.
type requestState int

const (
	asking    requestState = iota // a thread of the daemon serves it
	cut                           // the connection is gone: the client asks again
	left                          // the client is gone, and the thread has not noticed yet
	granted                       // answered
	refused                       // answered: it is not granted
	unsettled                     // the client is gone, or does not ask again after a lost answer
)

func (s requestState) open() bool { return s == asking || s == cut || s == left }

// ask has a user ask for a grant, or for one of many small ones, for which users wait together.
func (l *life) ask(small bool) {
	if l.daemon == nil || l.daemon.ending {
		return
	}
	random := l.Random()
	r := &userAsk{passed: map[uint32]int{}}
	r.User, r.Since = 1001+uint32(l.random.IntN(3)), l.now.Add(-time.Duration(l.random.IntN(3))*time.Minute)
	r.Waits = l.random.IntN(3) > 0
	r.Ask = admission.Ask{Owner: grant.Bearer, Source: grant.ByUser, User: r.User,
		Label: fmt.Sprintf("ask-%d", len(l.requests)), Secret: grant.NewSecret(random),
		GPUs: 1 + l.random.IntN(min(2, l.gpus)), Mode: []grant.Mode{grant.Limit, grant.Limit, grant.Limit,
			grant.Timeslice, grant.Exclusive}[l.random.IntN(5)]}
	if r.Ask.Mode != grant.Exclusive {
		r.Ask.Memory = grant.Bytes(1+l.random.IntN(3)*l.random.IntN(4)) * grant.GiB * grant.Bytes(r.Ask.GPUs)
	}
	if small {
		r.Waits, r.Ask.Mode, r.Ask.GPUs, r.Ask.Memory = true, grant.Limit, 1, grant.GiB
	}
	l.requests = append(l.requests, r)
	l.send(r)
}

// send has a thread of the daemon serve a request.
func (l *life) send(r *userAsk) {
	r.state = asking
	l.thread(fmt.Sprintf("%s of %d", r.Ask.Label, r.User),
		func(p *process, n *node.Node) { l.serve(p, n, r) })
}

// serve is what package userserver does about a request for a grant.
func (l *life) serve(p *process, n *node.Node, r *userAsk) {
	d := p.of
	g, waiter, err := d.queue.GrantOrWait(func() *node.Node { return n }, grants.Read, r.Request)
	if waiter != nil {
		l.entries++
		r.waiter, r.number = waiter, l.entries
		l.trace("%s waits", p.name)
		out := l.await(p, n, r)
		r.waiter = nil
		switch {
		case out != nil:
			g, err = out.Grant, out.Err
		case r.state == left || d.ending:
			l.clientless(r, p)
			return
		}
	}
	l.trace("%s: %v", p.name, err)
	l.pause()
	switch {
	case err == nil && (r.state == left || d.ending):
		userqueue.TakeBack(n, r.User, g.ID)
		l.clientless(r, p)
	case r.state == left:
		l.clientless(r, p)
	case err == nil:
		l.holds(r, g)
	case !d.ending:
		r.state = refused
		l.refusedFinally(r)
	}
}

// await waits in the queue, and returns what came of it; nil: nothing.
func (l *life) await(p *process, n *node.Node, r *userAsk) *userqueue.Outcome {
	d, w := p.of, r.waiter
	for {
		p.blocked = func() bool { return len(w.Woken()) == 0 && !r.over && r.state == asking && !d.ending }
		l.pause()
		p.blocked = nil
		if r.over || r.state == left || d.ending {
			r.number = 0 // if it is not in the queue any more, it has left it
		}
		switch {
		case r.state == left || d.ending:
			out := d.queue.Leave(w)
			if out != nil && out.Err == nil && !d.ending {
				userqueue.TakeBack(n, r.User, out.Grant.ID)
			}
			return nil
		case r.over:
			return d.queue.Leave(w)
		}
		select {
		case <-w.Woken():
		default:
		}
		if place, _ := d.queue.Place(w); place == 0 {
			return d.queue.Leave(w)
		}
	}
}

// clientless is the end of a thread whose client is gone or was cut off.
func (l *life) clientless(r *userAsk, p *process) {
	l.trace("%s has no client any more", p.name)
	if r.state == left {
		r.state = unsettled
		if !p.of.ending { // it takes nothing back then: clients ask the next gpuledgerd again
			l.refusedFinally(r)
		}
	}
}

// holds: the client has the answer, and a grant. It may have been entered long before: a lost
// answer is asked for again, and that is no use of the grant.
func (l *life) holds(r *userAsk, g grant.Grant) {
	r.state = granted
	used, seen := l.holdings.entered[g.ID]
	if !seen {
		used = l.awake
	}
	l.holdings.list = append(l.holdings.list, &holding{label: r.Ask.Label, id: g.ID, user: r.User,
		acked: true, over: l.holdings.closing, expires: g.Expires, used: used,
		reference: grant.Reference{ID: g.ID, Secret: r.Ask.Secret}, possible: []grant.Bytes{g.Memory()}})
}

// cutOff: the daemon has ended, and with it all connections. Who does not wait does not ask again.
func (l *life) cutOff() {
	for _, r := range l.requests {
		if r.waiter = nil; r.state == asking && r.Waits {
			r.state = cut
		} else if r.state.open() && r.state != cut {
			r.state = unsettled
		}
	}
}

// clients is what clients do: ask again after the daemon was started again, give up, or go away.
func (l *life) clients() {
	var open []*userAsk
	for _, r := range l.requests {
		if r.state.open() {
			open = append(open, r)
		}
	}
	if len(open) == 0 {
		return
	}
	switch r := open[l.random.IntN(len(open))]; {
	case r.state == cut && l.daemon != nil && !l.daemon.ending:
		l.send(r)
	case r.state == cut && l.random.IntN(3) == 0:
		r.state = unsettled
	case r.state == asking && r.waiter != nil && l.random.IntN(3) == 0:
		l.trace("the time of %s is over", r.Ask.Label)
		r.over = true
	case r.state == asking && l.random.IntN(4) == 0:
		l.trace("the client of %s goes away", r.Ask.Label)
		r.state = left
	}
}

// releaseOf has a user release a grant, which may be another's.
func (l *life) releaseOf() {
	h := l.holdings.pick()
	if h == nil || l.daemon == nil || l.daemon.ending {
		return
	}
	user := h.user
	if l.random.IntN(4) == 0 {
		user = 1001 + uint32(l.random.IntN(3))
	}
	own := h.user == user && user != 0
	if own {
		h.busy, h.over = true, true
	}
	d := l.daemon
	l.thread(fmt.Sprintf("release by %d", user), func(p *process, n *node.Node) {
		_, err := grants.ReleaseOf(n, h.id, user)
		switch {
		case own:
			h.answered(p, err)
		case err == nil:
			l.fail("user %d has released grant %s of user %d", user, h.id, h.user)
		}
		d.queue.Poke()
	})
}
